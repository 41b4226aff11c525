"""One real peer at a time: here, the kernel of a private network namespace and a private bus."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.contract.dhcp import Pid1WithServers
from tests.contract.family import FOUR, SIX, Family
from tests.contract.netns import BRIDGE_NF, BRIDGE_NF6, CLIENT6, HOST6, Outside, private_namespace, run
from tests.contract.netservice import Client, Pid1, PrivateBus, Service, Socket, leaving_nothing, pid1


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
async def client(service: Service) -> AsyncIterator[Client]:
    async with service.running() as client:
        yield client


@pytest.fixture
async def manager(service: Service) -> AsyncIterator[Pid1]:
    async with pid1(service, Pid1(service)) as manager:
        yield manager


@pytest.fixture(name="pid1")
async def with_servers(service: Service) -> AsyncIterator[Pid1WithServers]:
    async with pid1(service, Pid1WithServers(service)) as manager:
        yield manager
        manager.close()


@pytest.fixture
def fifo(service: Service) -> Iterator[Socket]:
    fifo = Socket(service)
    yield fifo
    fifo.close()


@pytest.fixture
def br0(namespace: None) -> Iterator[str]:
    """A bridge of others."""
    run("ip", "link", "add", "br0", "up", "type", "bridge")
    yield "br0"
    run("ip", "link", "del", "br0")


@pytest.fixture
def outside(namespace: None) -> Iterator[Outside]:
    outside = Outside()
    yield outside
    outside.close()


@pytest.fixture
def wan(outside: Outside) -> Outside:
    """The neighbour with addresses of IPv6, too."""
    run("ip", "address", "add", f"{HOST6}/64", "dev", f"{outside.link}-in", "nodad")
    outside.ip("address", "add", f"{CLIENT6}/64", "dev", f"{outside.link}-out", "nodad")
    outside.ip("route", "add", "default", "via", HOST6)
    return outside


@pytest.fixture(params=["0", "1"], ids=["bridged packets", "bridged packets to iptables"])
def bridge_nf(request: pytest.FixtureRequest, namespace: None) -> None:
    """Parameter: with and without br_netfilter, if the kernel has it."""
    for path in (BRIDGE_NF, BRIDGE_NF6):
        if path.exists():
            path.write_text(request.param)


@pytest.fixture(params=[FOUR, SIX], ids=["IPv4", "IPv6"])
def family(request: pytest.FixtureRequest) -> Family:
    found: Family = request.param
    return found
