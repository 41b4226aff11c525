"""Published ports: they are bound, can be moved to another guest, and flows that lead to no guest are deleted."""

import asyncio
import errno
import json
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from tests.contract.guest import Guest
from tests.contract.netns import Outside, run
from tests.contract.netservice import Client, Service, nic, tcp, udp, until
from tests.contract.sockets import ask_tcp, ask_udp
from tests.contract.test_network_exhaustion import tracked
from tests.contract.test_network_life import _rewrite, until_answered

from solo5_systemd.base.errors import InvalidRequestError, NotFoundError, TakenError
from solo5_systemd.base.names import TaskName
from solo5_systemd.network.conntrack import (
    _DELETE,
    _GET,
    UdpPorts,
    delete_flows_of,
    delete_udp_flows,
    delete_udp_flows_to_others,
    open_connections,
)
from solo5_systemd.network.netlink import NetlinkSocket
from solo5_systemd.networkd.held_ports import bind


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


async def restart_after_a_flow_without_tables(service: Service, port: int) -> None:
    """Kill the service, and start it; return once it has deleted the flow to a port that began in between."""
    service.kill()
    run("nft", "delete table ip solo5")
    with (
        other_table("type filter hook output priority 0", "ct state new accept"),
        closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sender,
    ):
        before = tracked()
        sender.sendto(b"no table", ("127.0.0.1", port))
        assert tracked() == before + 1
        await service.restart()
        await until(lambda: tracked() == before)


@pytest.mark.parametrize("delete", [delete_udp_flows, lambda ports: delete_udp_flows_to_others(ports, ())])
def test_many_flows_and_many_ports_cost_no_more_than_either(
    namespace: None, delete: Callable[[UdpPorts], None]
) -> None:
    """Anyone can fill the table with flows to a host, and a job can publish 256 ports."""
    run("nft", "add table ip t; add chain ip t c { type filter hook output priority 0; }; add rule ip t c ct state new")
    with closing(socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)) as raw:
        for port in range(1000, 21000):
            raw.sendto(struct.pack("!HHHH", 7777, port, 8, 0), ("127.0.0.1", 0))
    assert tracked() == 20000
    begun = time.process_time()
    delete(dict.fromkeys(range(20900, 21100), (IPv4Address("127.0.0.1"),)))
    assert time.process_time() - begun < 3
    assert tracked() == 19900


@pytest.mark.parametrize("refused", [False, True], ids=["", "before Linux 6.8"])
@pytest.mark.parametrize("of", ["a guest", "a port"])
def test_the_flows_of_one_guest_or_port_are_deleted_at_once(
    namespace: None, monkeypatch: pytest.MonkeyPatch, *, of: str, refused: bool
) -> None:
    """Anyone can fill the table with flows to a guest."""
    run("nft", "add table ip t; add chain ip t c { type filter hook output priority 0; }; add rule ip t c ct state new")
    with closing(socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)) as raw:
        for guest, to in (("127.0.0.2", 7), ("127.0.0.3", 8)):
            for port in range(1000, 2000):
                raw.sendto(struct.pack("!HHHH", port, to, 8, 0), (guest, 0))
    assert tracked() == 2000
    kinds: list[int] = []
    send = NetlinkSocket.request

    def request(netfilter: NetlinkSocket, kind: int, flags: int, payload: bytes) -> Iterator[tuple[int, bytes]]:
        kinds.append(kind)
        if refused and kind == _DELETE:
            raise OSError(errno.EINVAL, "refused")
        return send(netfilter, kind, flags, payload)

    monkeypatch.setattr(NetlinkSocket, "request", request)
    if of == "a guest":
        delete_flows_of([], [IPv4Address("127.0.0.2")])
    else:
        delete_udp_flows({7: {IPv4Address("127.0.0.2")}})
    assert tracked() == 1000
    assert kinds == [_DELETE, _GET][: len(kinds)], "not one for each flow"


@pytest.mark.parametrize("restarts", [False, True], ids=["an attach", "a restart"])
async def test_flows_of_others_with_a_published_port_stay(
    service: Service, client: Client, outside: Outside, *, restarts: bool
) -> None:
    """To another address of the host, and from a guest to another machine: answers on their way would be lost."""
    run("ip", "address", "add", "192.0.2.9/24", "dev", f"{outside.link}-in")
    ports = udp(5353, host_ip="192.0.2.9"), udp(5354)
    async with Guest(await client.lease("a", udp(5353, host_ip=outside.host)), greeting=b"a") as guest:
        if restarts:
            await client.lease("b", *ports)
        with outside.entered(), closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sender:
            await until_answered(lambda: ask_udp(outside.host, 5353, sock=sender.dup()), b"aHELLO")
        for port in (5353, 5354):
            await guest.send_udp(IPv4Address(outside.address), port, b"question")
        await until(lambda: tracked() == 3)
        if restarts:
            await restart_after_a_flow_without_tables(service, 5354)
        else:
            await client.lease("b", *ports)
        assert tracked() == 3


async def test_a_flow_that_another_program_has_translated_is_found(
    client: Client, client_socket: socket.socket
) -> None:
    """Its chain comes before this service's translation, and has ended by the time the port is published."""
    await client.lease("neighbour", udp(5301))
    with other_table("type nat hook output priority -150", "udp dport 5353 dnat to 127.0.0.1:5354"):
        client_socket.sendto(b"translated", ("127.0.0.1", 5353))
    async with Guest(await client.lease("a", udp(5353)), greeting=b"a"):
        await reaches(b"a", sock=client_socket)


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
            await reaches(b"a", sock=client_socket)


async def test_a_flow_from_a_time_without_tables_is_deleted(service: Service, client_socket: socket.socket) -> None:
    """The client of a running guest would not reach it until it pauses."""
    async with service.running(None, "--shared-tables") as client:
        with other_table("type filter hook output priority 0", "ct state new accept"):
            async with Guest(await client.lease("a", udp(5353))):
                pid = service._process
                assert pid is not None
                pid.send_signal(signal.SIGSTOP)
                run("nft", "delete table ip solo5")
                client_socket.sendto(b"no table", ("127.0.0.1", 5353))
                pid.send_signal(signal.SIGCONT)
                await reaches(b"", sock=client_socket)


async def test_an_interrupted_release_is_finished_with_the_flows_of_its_guest(
    service: Service, outside: Outside, client: Client
) -> None:
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
async def test_open_connections_of_a_guest_are_counted(outside: Outside, client: Client, host: str) -> None:
    lease = await client.lease("a", tcp(8080))
    other = await client.lease("b", tcp(8081))
    async with Guest(lease):  # the other one does not answer
        assert await client.connections([*lease.addresses, *other.addresses]) == 0
        with closing(socket.socket()) as unanswered:
            unanswered.setblocking(False)
            unanswered.connect_ex((host, 8081))
            await until(lambda: tracked() > 0)
            assert await client.connections(other.addresses) == 1
        await until(lambda: open_connections(other.addresses) == 0)  # its client has gone
        assert tracked() > 0
        with closing(socket.socket()) as made:
            made.setblocking(False)
            await asyncio.get_running_loop().sock_connect(made, (host, 8080))
            assert await client.connections(lease.addresses) == 1
            assert await client.connections(other.addresses) == 0
            made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await until(lambda: open_connections(lease.addresses) == 0)


@pytest.mark.parametrize("moved", [False, True], ids=["its ports", "ports moved by an update"])
async def test_connections_to_a_guest_that_is_gone_are_forgotten(outside: Outside, client: Client, moved: bool) -> None:
    """The kernel keeps them for days: an update of the next guest with the address would wait for their end."""
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
    connect = asyncio.get_running_loop().sock_connect
    async with service.running() as client:
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


# -- ports that are moved from one task's guest to another's: what is new reaches the other, what was there stays ----


OLD, NEW = TaskName("old"), TaskName("new")


async def reaches(greeting: bytes, port: int = 5353, sock: socket.socket | None = None) -> None:
    async with asyncio.timeout(10):
        await until_answered(lambda: ask_udp("127.0.0.1", port, sock=sock and sock.dup()), greeting + b"HELLO")


async def ports_of(client: Client) -> dict[str, int]:
    return {held.task: len(held.ports) for held in await client.reservations()}


async def test_new_flows_reach_the_other_guest_and_old_ones_stay(client: Client) -> None:
    async with (
        Guest(await client.lease("old", udp(5353)), greeting=b"old"),
        Guest(await client.lease("new"), greeting=b"new"),
    ):
        with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as present:
            present.bind(("127.0.0.1", 6000))
            await reaches(b"old", sock=present)
            await client.move_ports(OLD, NEW)
            await reaches(b"old", sock=present)
            await reaches(b"new")
            assert await ports_of(client) == {"old": 0, "new": 1}
            await client.move_ports(OLD, NEW)  # there is nothing left to move
            await client.move_ports(NEW, OLD)
            await reaches(b"old")
    await client.drop("old")
    assert "old" not in await ports_of(client)


async def test_a_udp_flow_that_lasts_is_a_connection_of_the_guest_that_it_stays_with(
    service: Service, client: Client
) -> None:
    """Without an end in the protocol: a VPN's clients would be cut off as soon as the ports are moved."""
    leases = await client.lease("old", udp(5353)), await client.lease("new")
    async with Guest(leases[0], greeting=b"old"), Guest(leases[1], greeting=b"new"):

        async def connections() -> list[int]:
            return [await client.connections(lease.addresses) for lease in leases]

        with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as present:
            present.bind(("127.0.0.1", 6000))
            await reaches(b"old", sock=present)
            assert await connections() == [0, 0], "a question and its answer, as of DNS"
            await client.move_ports(OLD, NEW)
            async with asyncio.timeout(10):
                while await connections() != [1, 0]:
                    await reaches(b"old", sock=present)
                    await asyncio.sleep(0.2)
            await restart_after_a_flow_without_tables(service, 5353)
            await reaches(b"new")
            assert await connections() == [1, 0]


async def test_a_release_of_the_first_task_leaves_the_ports_to_the_second(client: Client) -> None:
    await client.lease("old", udp(5353), tcp(8080))
    async with Guest(await client.lease("new"), greeting=b"new"):
        await client.move_ports(OLD, NEW)
        await client.drop("old")
        await reaches(b"new")
        with pytest.raises(TakenError, match="is taken by task new"):
            await client.lease("third", tcp(8080))
        lease = await client.lease("old")
        async with Guest(lease, greeting=b"again"):
            await client.move_ports(NEW, OLD)
            await reaches(b"again")
            assert await client.reservation(OLD) is not None
            # The same request as the first one: a restart keeps lease and ports.
            again = await client.have("old", udp(5353), tcp(8080))
            assert again.leases == (lease,)


async def test_ports_stay_moved_over_a_kill_and_return_when_the_second_task_ends(
    service: Service, client: Client
) -> None:
    async with Guest(await client.lease("old", udp(5353)), greeting=b"old"):
        async with Guest(await client.lease("new"), greeting=b"new"):
            await client.move_ports(OLD, NEW)
            service.kill()
            await service.restart()
            await reaches(b"new")
            assert await ports_of(client) == {"old": 0, "new": 1}
        await client.drop("new")
        await reaches(b"old")
        assert await ports_of(client) == {"old": 1}
        await client.lease("new")
        await client.move_ports(OLD, NEW)
        await client.move_ports(NEW, OLD)
        await client.drop("old")  # which has only its own ports
        assert await ports_of(client) == {"new": 0}


@pytest.mark.parametrize("back", [False, True], ids=["there", "back"])
async def test_a_kill_between_the_two_records_leaves_the_ports_moved(
    service: Service, client: Client, back: bool
) -> None:
    await client.lease("old", udp(5353))
    await client.lease("new")
    if back:
        await client.move_ports(OLD, NEW)
    source, target = (NEW, OLD) if back else (OLD, NEW)
    record = service.state / f"tasks/{source}.json"
    before = record.read_bytes()
    await client.move_ports(source, target)
    service.kill()
    record.write_bytes(before)  # as if the second file had not been written
    await service.restart()
    assert await ports_of(client) == {source: 0, target: 1}
    assert "ports" not in json.loads(record.read_text())


async def test_no_connection_is_refused_while_ports_move_back_and_forth(service: Service) -> None:
    stop = threading.Event()

    async def connect() -> int:
        number = 0
        while not stop.is_set():
            assert await ask_tcp("127.0.0.1", 8080)
            number += 1
        return number

    async with (
        service.running() as client,
        Guest(await client.lease("old", tcp(8080)), greeting=b"old"),
        Guest(await client.lease("new"), greeting=b"new"),
    ):
        asking = asyncio.ensure_future(connect())
        for _ in range(50):
            await client.move_ports(OLD, NEW)
            await client.move_ports(NEW, OLD)
        stop.set()
        assert await asking > 0


async def test_what_cannot_be_moved_is_refused_and_nothing_has_changed(client: Client) -> None:
    with pytest.raises(NotFoundError, match="task new has no network"):
        await client.move_ports(OLD, NEW)
    await client.lease("old", udp(5353, nic_name="service"))
    with pytest.raises(InvalidRequestError, match="cannot be moved to itself"):
        await client.move_ports(OLD, OLD)
    await client.have("new", nics=(nic("other"),))
    with pytest.raises(InvalidRequestError, match="has no NIC service, to which port 5353 is published"):
        await client.move_ports(OLD, NEW)
    await client.drop("new")
    await client.lease("new", udp(5354))
    with pytest.raises(TakenError, match="has published ports"):
        await client.move_ports(OLD, NEW)
    await client.drop("new")
    await client.reserve(NEW, (nic("service"),), ())
    with pytest.raises(NotFoundError, match="task new has no network"):  # it is reserved only
        await client.move_ports(OLD, NEW)
    await client.drop("new")
    assert await ports_of(client) == {"old": 1}
    await client.drop("old")
    with pytest.raises(NotFoundError):
        await client.move_ports(OLD, NEW)


# -- port sockets: another process that binds a published port gets EADDRINUSE ---------------------------------------


KINDS = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}
OPTIONS = (0, socket.SO_REUSEADDR, socket.SO_REUSEPORT)


def refused(kind: str, port: int, address: str = "0.0.0.0", option: int = 0) -> bool:
    """Return whether bind(2) fails with EADDRINUSE."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, KINDS[kind]) as late:
        if option:
            late.setsockopt(socket.SOL_SOCKET, option, 1)
        try:
            late.bind((address, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return True
        return False


async def test_a_published_port_is_bound_until_it_is_released(service: Service, client: Client) -> None:
    ports = (tcp(8500), udp(8500), tcp(8501, host_ip="127.0.0.1"), udp(8501, host_ip="127.0.0.1"))
    async with Guest(await client.lease("a", *ports)):
        for option in OPTIONS:
            for kind in KINDS:
                for address in ("0.0.0.0", "127.0.0.1", "::"):
                    assert refused(kind, 8500, address, option)
                for address in ("0.0.0.0", "127.0.0.1"):
                    assert refused(kind, 8501, address, option)
                assert not refused(kind, 8501, "127.0.0.2", option), "published at one address"
                assert not refused(kind, 8502, "0.0.0.0", option)
        for port in (8500, 8501):
            assert await ask_tcp("127.0.0.1", port) == b"HELLO"
            assert await ask_udp("127.0.0.1", port) == b"HELLO"
        service.kill()
        await service.restart()
        assert refused("tcp", 8500)
    await client.drop("a")
    assert not any(refused(kind, port) for kind in KINDS for port in (8500, 8501))


_WITH_STORED = """
import os, socket

names = [f"u{port}" for port in range(30000, 31100)]
for _ in names:
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).detach()
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(names)), "LISTEN_FDNAMES": ":".join(names)}
"""
"""The service with more descriptors in the store than select(2) has bits for."""


async def test_more_published_ports_than_select_has_bits_for_survive_a_restart(
    service: Service, client: Client
) -> None:
    """libnftables calls select(2), which aborts the process where its socket has a number of 1024 or more."""
    await client.lease("a", udp(8500))
    service.kill()
    await service.restart(change=_WITH_STORED)
    assert refused("udp", 8500)
    for number in range(5):
        await client.lease(f"b{number}", *(udp(20000 + 256 * number + offset) for offset in range(256)))
    await client.attach(TaskName("a"))  # with 1280 ports bound


async def test_a_port_that_a_process_has_bound_and_does_not_listen_at_is_not_published(service: Service) -> None:
    with closing(socket.socket()) as early:
        early.bind(("127.0.0.1", 8500))
        async with service.running() as client:
            with pytest.raises(TakenError, match="port 8500/tcp is taken by another process or a connection"):
                await client.reserve(TaskName("a"), (nic("service"),), (udp(8400), tcp(8500)))
            assert not refused("udp", 8400), "none of a request that failed stays bound"
            assert await client.reservations() == ()


async def test_a_process_that_was_quicker_than_a_restart_keeps_the_port_and_is_reported(
    service: Service, client: Client
) -> None:
    await client.lease("a", tcp(8500))
    service.kill()
    with closing(socket.socket()) as early:
        early.bind(("127.0.0.1", 8500))
        await service.restart()
        assert "cannot bind published port 8500/tcp: another process has bound it" in service.log.read_text()


@pytest.mark.parametrize("make, error", [(tcp, errno.ENOTCONN), (udp, errno.EAGAIN)])
def test_a_socket_that_holds_a_port_answers_nothing_and_keeps_nothing(
    namespace: None, make: Callable[..., object], error: int
) -> None:
    """Without rules, as between a flush and its repair, the port socket has no effect on clients."""
    port = make(8500)
    with closing(bind(port)) as held:  # type: ignore[arg-type]
        with socket.socket() as client, pytest.raises(ConnectionRefusedError):
            client.connect(("127.0.0.1", 8500))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            for _ in range(1000):
                client.sendto(b"x" * 1000, ("127.0.0.1", 8500))
        held.setblocking(False)
        with pytest.raises(OSError, match="") as nothing:
            held.recv(1)
        assert nothing.value.errno == error


async def test_of_a_range_all_ports_are_bound_or_none(service: Service) -> None:
    ports = [make(8600 + number, 80 + number) for make in (tcp, udp) for number in range(100)]
    async with service.running() as client:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
            taken.bind(("0.0.0.0", 8650))
            with pytest.raises(TakenError, match="port 8650/udp is taken by another process"):
                await client.lease("a", *ports)
            assert not any(refused(kind, port) for kind in KINDS for port in range(8600, 8700) if port != 8650)
        await client.lease("b", tcp(8699))
        with pytest.raises(TakenError, match="port 8699/tcp is taken by task b"):
            await client.lease("a", *ports)
        assert not refused("tcp", 8600)
        await client.drop("b")
        await client.lease("a", *ports)
        assert all(refused(kind, port) for kind in KINDS for port in range(8600, 8700))
        await client.drop("a")
        assert not any(refused(kind, port) for kind in KINDS for port in range(8600, 8700))


async def test_a_port_at_an_address_that_the_host_gets_later(outside: Outside, client: Client) -> None:
    """Such as keepalived's, which comes and goes while the guest runs, and is not there at its start."""
    async with Guest(await client.lease("a", udp(5301, host_ip="192.0.2.99"))):
        for _ in range(2):
            run("ip", "address", "add", "192.0.2.99/32", "dev", f"{outside.link}-in")
            assert await ask_udp("192.0.2.99", 5301) == b"HELLO"
            run("ip", "address", "del", "192.0.2.99/32", "dev", f"{outside.link}-in")
