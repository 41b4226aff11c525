"""Flows of UDP clients that no longer lead to the guest of a published port: each is found and deleted."""

import asyncio
import errno
import signal
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from tests.contract.guest import Guest
from tests.contract.netns import Outside, run
from tests.contract.netservice import Service, tcp, udp, until
from tests.contract.test_network_exhaustion import tracked
from tests.contract.test_network_life import _rewrite, until_answered
from tests.contract.test_network_paths import ask_udp

from solo5_systemd.base.names import TaskName
from solo5_systemd.network.conntrack import (
    _DELETE,
    _GET,
    RedirectedPort,
    delete_flows_of,
    delete_udp_flows,
    open_connections,
)
from solo5_systemd.network.netlink import NetlinkSocket


@pytest.fixture
def client_socket(service: Service) -> Iterator[socket.socket]:
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as made:
        made.bind(("127.0.0.1", 6000))
        yield made


@contextmanager
def other_table(chain: str, rule: str) -> Iterator[None]:
    """A table of another program. With `ct`, the kernel tracks connections without this service's tables, too."""
    run("nft", f"add table ip other; add chain ip other c {{ {chain}; }}; add rule ip other c {rule}")
    try:
        yield
    finally:
        run("nft", "delete table ip other")


async def _reaches(client_socket: socket.socket, greeting: bytes = b"") -> None:
    async with asyncio.timeout(10):
        await until_answered(lambda: ask_udp("127.0.0.1", 5353, sock=client_socket.dup()), greeting + b"HELLO")


def test_many_flows_and_many_ports_cost_no_more_than_either(namespace: None) -> None:
    """Anyone can fill the table with flows to a host, and a job can publish 256 ports."""
    run("nft", "add table ip t; add chain ip t c { type filter hook output priority 0; }; add rule ip t c ct state new")
    with closing(socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)) as raw:
        for port in range(1000, 21000):
            raw.sendto(struct.pack("!HHHH", 7777, port, 8, 0), ("127.0.0.1", 0))
    assert tracked() == 20000
    begun = time.process_time()
    guest = IPv4Address("192.0.2.1")
    delete_udp_flows([RedirectedPort(port=port, guest=guest) for port in range(20900, 21100)])
    assert time.process_time() - begun < 3
    assert tracked() == 19900


@pytest.mark.parametrize("refused", [False, True], ids=["", "before Linux 6.8"])
def test_the_flows_of_one_guest_are_deleted_at_once(
    namespace: None, monkeypatch: pytest.MonkeyPatch, *, refused: bool
) -> None:
    """Anyone can fill the table with flows to a guest."""
    run("nft", "add table ip t; add chain ip t c { type filter hook output priority 0; }; add rule ip t c ct state new")
    with closing(socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)) as raw:
        for guest in ("127.0.0.2", "127.0.0.3"):
            for port in range(1000, 2000):
                raw.sendto(struct.pack("!HHHH", 7777, port, 8, 0), (guest, 0))
    assert tracked() == 2000
    kinds: list[int] = []
    send = NetlinkSocket.request

    def request(netfilter: NetlinkSocket, kind: int, flags: int, payload: bytes) -> Iterator[tuple[int, bytes]]:
        kinds.append(kind)
        if refused and kind == _DELETE:
            raise OSError(errno.EINVAL, "refused")
        return send(netfilter, kind, flags, payload)

    monkeypatch.setattr(NetlinkSocket, "request", request)
    delete_flows_of([], [IPv4Address("127.0.0.2")])
    assert tracked() == 1000
    assert kinds == [_DELETE, _GET][: len(kinds)], "not one for each flow"


async def test_a_flow_that_another_program_has_translated_is_found(
    service: Service, client_socket: socket.socket
) -> None:
    """Its chain comes before this service's translation, and has ended by the time the port is published."""
    async with service.running() as client:
        await client.lease("neighbour", udp(5301))
        with other_table("type nat hook output priority -150", "udp dport 5353 dnat to 127.0.0.1:5354"):
            client_socket.sendto(b"translated", ("127.0.0.1", 5353))
        async with Guest(await client.lease("a", udp(5353)), greeting=b"a"):
            await _reaches(client_socket, b"a")


async def test_a_flow_from_before_a_restored_ruleset_is_found(
    service: Service, client_socket: socket.socket, tmp_path: Path
) -> None:
    """The same rules and elements, without what the kernel has recorded since they were saved."""
    async with service.running(None, "--shared-tables") as client:
        await client.lease("neighbour", udp(5301))
        (tmp_path / "saved").write_text("flush ruleset\n" + run("nft", "--stateless", "list", "ruleset"))
        client_socket.sendto(b"nobody there", ("127.0.0.1", 5353))
        run("nft", "-f", str(tmp_path / "saved"))
        async with Guest(await client.lease("a", udp(5353)), greeting=b"a"):
            await _reaches(client_socket, b"a")


@pytest.mark.parametrize("killed", [True, False], ids=["the service is killed", "the service is slow"])
async def test_a_flow_from_a_time_without_tables_is_deleted(
    service: Service, client_socket: socket.socket, killed: bool
) -> None:
    """The client of a running guest would not reach it until it pauses."""
    await service.restart("--shared-tables")
    async with service.client() as client:
        with other_table("type filter hook output priority 0", "ct state new accept"):
            async with Guest(await client.lease("a", udp(5353))):
                pid = service._process
                assert pid is not None
                if killed:
                    service.kill()
                else:
                    pid.send_signal(signal.SIGSTOP)
                run("nft", "delete table ip solo5")
                client_socket.sendto(b"no table", ("127.0.0.1", 5353))
                if killed:
                    await service.restart("--shared-tables")
                else:
                    pid.send_signal(signal.SIGCONT)
                await _reaches(client_socket)
    async with service.client() as client:
        await client.drop("a")


async def test_an_interrupted_release_is_finished_with_the_flows_of_its_guest(
    service: Service, outside: Outside
) -> None:
    await service.restart()
    async with service.client() as client:
        await client.lease("neighbour")
        before = tracked()
        async with Guest(await client.lease("a")) as guest:
            await guest.send_udp(IPv4Address(outside.address), 9, b"hello")
            await until(lambda: tracked() == before + 1)
    service.kill()
    _rewrite(service.state / "tasks/a.json", state="releasing")
    _rewrite(service.state / "tasks/neighbour.json", state="releasing")
    await service.restart()
    await until(lambda: not list((service.state / "tasks").iterdir()))
    assert tracked() == before


@pytest.mark.parametrize("host", ["127.0.0.1", "192.0.2.1"])
async def test_open_connections_of_a_guest_are_counted(service: Service, outside: Outside, host: str) -> None:
    async with service.running() as client:
        lease = await client.lease("a", tcp(8080))
        other = await client.lease("b", tcp(8081))
        async with Guest(lease):  # the other one does not answer
            assert await client.connections([*lease.addresses, *other.addresses]) == 0
            with closing(socket.socket()) as unanswered:
                unanswered.setblocking(False)
                unanswered.connect_ex((host, 8081))
                await until(lambda: tracked() > 0)
                assert await client.connections(other.addresses) == 0
            with closing(socket.socket()) as made:
                made.setblocking(False)
                await asyncio.get_running_loop().sock_connect(made, (host, 8080))
                assert await client.connections(lease.addresses) == 1
                assert await client.connections(other.addresses) == 0
                made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await until(lambda: open_connections(lease.addresses) == 0)


@pytest.mark.parametrize("moved", [False, True], ids=["its ports", "ports moved by an update"])
async def test_connections_to_a_guest_that_is_gone_are_forgotten(
    service: Service, outside: Outside, moved: bool
) -> None:
    """The kernel keeps them for days: an update of the next guest with the address would wait for their end."""
    async with service.running() as client:
        lease = await client.lease("a", tcp(8080))
        await client.lease("b")
        with closing(socket.socket()) as made:
            made.setblocking(False)
            async with Guest(lease):
                await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", 8080))
            if moved:
                await client.move_ports(TaskName("a"), TaskName("b"))
            assert open_connections(lease.addresses) == 1
            await client.drop("a")
            assert open_connections(lease.addresses) == 0


async def test_many_releases_at_once_delete_the_connections_to_their_guests_alone(
    service: Service, outside: Outside
) -> None:
    """Of many addresses the whole table is read, once for all releases that wait."""
    await service.restart()
    connect = asyncio.get_running_loop().sock_connect
    async with service.client() as client:
        leases = {f"t{number}": await client.lease(f"t{number}", tcp(8080 + number)) for number in range(9)}
        kept = await client.lease("kept", tcp(8079))
        with closing(socket.socket()) as first, closing(socket.socket()) as last, closing(socket.socket()) as other:
            async with Guest(leases["t0"]), Guest(leases["t8"]), Guest(kept):
                for made, port in ((first, 8080), (last, 8088), (other, 8079)):
                    made.setblocking(False)
                    await connect(made, ("127.0.0.1", port))
            gone = [address for lease in leases.values() for address in lease.addresses]
            assert open_connections(gone) == 2
            await asyncio.gather(*map(client.drop, leases))
            assert (open_connections(gone), open_connections(kept.addresses)) == (0, 1)
        await client.drop("kept")
