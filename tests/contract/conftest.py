"""One real peer at a time: here, the kernel of a private network namespace and a private bus."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.contract.netns import Outside, private_namespace
from tests.contract.netservice import PrivateBus, Service, leaving_nothing


@pytest.fixture
def namespace() -> Iterator[None]:
    with private_namespace():
        yield


@pytest.fixture
def bus() -> Iterator[PrivateBus]:
    """In a directory that other users may enter, which pytest's are not."""
    with TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        bus = PrivateBus(Path(directory))
        yield bus
        bus.close()


@pytest.fixture
def service(namespace: None, bus: PrivateBus) -> Iterator[Service]:
    """The service, not yet started; in the end, with all tasks released, nothing of it is left.

    In a directory of root's alone, on the way too, as settings are.
    """
    with TemporaryDirectory(dir="/run") as directory:
        Path(directory).chmod(0o755)
        with leaving_nothing(Path(directory), bus) as service:
            yield service


@pytest.fixture
def outside(namespace: None) -> Iterator[Outside]:
    outside = Outside()
    yield outside
    outside.close()
