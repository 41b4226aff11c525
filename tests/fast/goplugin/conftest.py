import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from tests.fast.goplugin.host import Host, Plugin, launched


@pytest.fixture(scope="session", autouse=True)
def _grpc_stays() -> Iterator[None]:
    """Initialise gRPC's process-wide state before the tests, so that no test counts as having left it behind.

    By a call: a channel whose state is watched (`channel_ready_future`) sometimes cannot be closed.
    """
    with grpc.insecure_channel("unix:/nowhere") as channel:
        call: Callable[..., object] = channel.unary_unary("/nothing")
        with pytest.raises(grpc.RpcError):
            call(b"")
        yield


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A directory with a path short enough for a socket."""
    directory = Path(tempfile.mkdtemp(prefix="t-"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="session")
def lasting(_grpc_stays: None) -> Iterator[Plugin]:
    """One plugin for all tests that neither stop it nor read its log."""
    directory = Path(tempfile.mkdtemp(prefix="t-"))
    with launched(directory) as plugin:
        yield plugin
    shutil.rmtree(directory)


@pytest.fixture
def caller(lasting: Plugin) -> Host:
    """A host connected to the lasting plugin."""
    return connected(lasting)


@pytest.fixture
def plugin(temporary: Path) -> Iterator[Plugin]:
    with launched(temporary) as plugin:
        yield plugin


@pytest.fixture
def host(plugin: Plugin) -> Host:
    """A host connected to the test's own plugin."""
    return connected(plugin)


def connected(plugin: Plugin) -> Host:
    assert plugin.host
    assert plugin.host.greet("you") == "hello you"
    return plugin.host
