"""Tasks that wait without a process, and are started for their first packet; their guests take a while to boot."""

import asyncio
import errno
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from statistics import median
from typing import Any

import pytest
from tests.contract.family import Family
from tests.contract.guest import (
    ACK,
    ARP,
    BROADCAST,
    ICMP,
    IPV4,
    NOWHERE,
    RST,
    SYN,
    TCP,
    WHOLE,
    Guest,
    _sum,
    _tcp,
    opened_tap,
)
from tests.contract.netns import Outside, link, run, sent_again
from tests.contract.netservice import Client, Pid1, Service, Socket, nic, tcp, udp, until
from tests.contract.sockets import ask_tcp
from tests.contract.syn_flood import flood
from tests.contract.test_network_exhaustion import at, round_trips
from tests.contract.test_network_exhaustion import flood as flooded
from tests.contract.test_network_joined import _addressed
from tests.contract.test_network_ports import other_table
from tests.contract.test_network_sleep import UNIT, WEB, get_at_once, sleeper

from solo5_systemd.base.errors import TakenError
from solo5_systemd.network.derived_addresses import ASKER, link_local
from solo5_systemd.network.model import Lease, LeaseState, Limits, NicRequest, Reservation
from solo5_systemd.network.neighbours import Neighbours
from solo5_systemd.network.remembered_addresses import LastRequest, write_request
from solo5_systemd.settings.egress import destination

NETWORKS = """
[network.apart]
isolated = true
[network.elsewhere]
isolated = false
[network.open]
isolated = false
"""
WAITS: Any = {"idle_s": 5, "idle_stops": True}
ECHO, TIMESTAMP = 8, 13


async def state(client: Client) -> LeaseState | None:
    record = await client.record(WEB)
    return record.state if record else None


async def waiting(client: Client, manager: Pid1, fifo: Socket, nics: Sequence[NicRequest] = ()) -> Reservation:
    """Run a task, which has not run before, end it, and wait until it waits."""
    reservation = await started(client, manager, fifo, nics)
    await until(lambda: all(link(lease.tap) != {} for lease in reservation.leases))
    await over(client, manager, reservation)
    return reservation


async def over(client: Client, manager: Pid1, reservation: Reservation) -> None:
    manager.end(UNIT)
    await until(lambda: not link(reservation.leases[0].tap))
    assert await state(client) is LeaseState.WAITING
    assert await client.orphans() == ()
    # Last, the kernel holds packets: its neighbour entry is deleted.
    await until(lambda: "lladdr" not in run("ip", "neigh", "show", str(reservation.leases[0].first_address)))


async def started(client: Client, manager: Pid1, fifo: Socket, nics: Sequence[NicRequest] = ()) -> Reservation:
    """Start the task, as PID 1 does."""
    await until(lambda: fifo.taken() != b"")
    reservation = await client.have("web", tcp(8080), nics=nics, **WAITS)
    manager.begin(UNIT)
    return reservation


async def answers(client: Client, manager: Pid1, fifo: Socket, lease: Lease) -> None:
    """Have the task started by a request, which its guest answers."""
    async with asyncio.TaskGroup() as tasks:
        answer = tasks.create_task(ask_tcp(str(lease.address)))
        await started(client, manager, fifo)
        async with Guest(lease):
            assert await asyncio.wait_for(answer, 20) == b"HELLO"


async def test_the_first_packet_starts_the_task_and_is_answered(
    service: Service, manager: Pid1, fifo: Socket, family: Family
) -> None:
    async with service.running(family.settings()) as client:
        reservation = await waiting(client, manager, fifo)
        [lease], before = reservation.leases, sent_again()
        async with asyncio.TaskGroup() as tasks:
            answer = tasks.create_task(ask_tcp(family.address(lease)))
            await started(client, manager, fifo)
            async with Guest(lease):
                assert await asyncio.wait_for(answer, 20) == b"HELLO"
                assert sent_again() == before, "the first packet has come"
                assert fifo.taken() == b"", "once"
                assert await ask_tcp(family.address(lease)) == b"HELLO"
        assert (await client.reservations()) == (reservation,)


async def test_packets_are_held_through_a_long_start(client: Client, manager: Pid1, fifo: Socket) -> None:
    reservation = await waiting(client, manager, fifo)
    async with asyncio.TaskGroup() as tasks:
        answer = tasks.create_task(ask_tcp(str(reservation.leases[0].address)))
        await until(lambda: fifo.taken() != b"")
        manager.jobs.add(UNIT)
        await asyncio.sleep(4.5)
        manager.jobs.discard(UNIT)
        await client.have("web", tcp(8080), **WAITS)
        manager.begin(UNIT)
        async with Guest(reservation.leases[0]):
            assert await asyncio.wait_for(answer, 20) == b"HELLO"
    assert fifo.taken() == b"", "once"


async def test_a_bridge_that_loses_its_last_carrier_drops_nothing(
    service: Service, manager: Pid1, fifo: Socket
) -> None:
    async with service.running("[network.default]\nipv6 = true\n") as client:
        reservation = await waiting(client, manager, fifo)
        lease = reservation.leases[0]
        run("ip", "link", "add", "port", "up", "type", "veth", "peer", "name", "port-peer")
        run("ip", "link", "set", "port-peer", "up")
        run("ip", "link", "set", "port", "master", lease.bridge)
        await until(lambda: link(lease.bridge)["operstate"] == "UP")
        async with asyncio.TaskGroup() as tasks:
            answers = [tasks.create_task(ask_tcp(str(address))) for address in lease.addresses]
            held = [("ip", "neigh", "show", str(address)) for address in lease.addresses]
            await until(lambda: all("INCOMPLETE" in run(*show) for show in held))
            run("ip", "link", "delete", "port")
            await until(lambda: link(lease.bridge)["operstate"] == "DOWN")  # the kernel has dropped what it drops then
            assert all("INCOMPLETE" in run(*show) for show in held)
            await started(client, manager, fifo)
            async with Guest(lease):
                assert [await asyncio.wait_for(answer, 20) for answer in answers] == [b"HELLO", b"HELLO"]


async def test_a_link_passes_frames_once_its_other_end_is_up(client: Client) -> None:
    """Not from its first moment, before the kernel has looked at its carrier (IFF_RUNNING is set then)."""
    with closing(Neighbours()) as neighbours:
        for _ in range(20):
            run("ip", "link", "add", "one", "up", "type", "veth", "peer", "name", "other")
            assert not neighbours.passes_frames("one")
            run("ip", "link", "set", "other", "up")
            await until(lambda: neighbours.passes_frames("one"))
            run("ip", "link", "delete", "one")
        assert not neighbours.passes_frames("one")


async def test_a_packet_for_a_task_that_has_not_its_tap_yet_waits_for_it(
    client: Client, manager: Pid1, fifo: Socket
) -> None:
    reservation = await waiting(client, manager, fifo)
    address = str(reservation.leases[0].address)
    await client.have("web", tcp(8080), **WAITS)
    manager.begin(UNIT)
    before = sent_again()
    async with asyncio.TaskGroup() as tasks:
        answer = tasks.create_task(ask_tcp(address))
        await until(lambda: "INCOMPLETE" in run("ip", "neigh", "show", address))
        await client.reservations()  # it has been announced by then
        assert "INCOMPLETE" in run("ip", "neigh", "show", address)
        async with Guest(reservation.leases[0]):
            assert await asyncio.wait_for(answer, 20) == b"HELLO"
            assert sent_again() == before, "the first packet has come"


@pytest.mark.parametrize("opened", [True, False], ids=["opened later", "never"])
async def test_a_nic_whose_tap_is_not_open_keeps_no_packet_of_another(
    service: Service, manager: Pid1, fifo: Socket, *, opened: bool
) -> None:
    nics = [nic("service"), nic("second", network="second")]
    async with service.running("[network.second]\n") as client:
        reservation = await waiting(client, manager, fifo, nics)
        answers = [asyncio.ensure_future(ask_tcp(str(lease.address))) for lease in reservation.leases]
        held = [("ip", "neigh", "show", str(lease.address)) for lease in reservation.leases]
        await until(lambda: all("INCOMPLETE" in run(*show) for show in held))
        await started(client, manager, fifo, nics)
        async with Guest(reservation.leases[0]):
            assert await asyncio.wait_for(answers[0], 20) == b"HELLO"
            assert "INCOMPLETE" in run(*held[1])
            if opened:
                async with Guest(reservation.leases[1]):
                    assert await asyncio.wait_for(answers[1], 20) == b"HELLO"
            else:
                await client.drop("web")
                with pytest.raises(OSError, match="Errno 113"):
                    await asyncio.wait_for(answers[1], 5)


async def test_a_start_and_an_end_leave_the_rules_of_others(client: Client, manager: Pid1, fifo: Socket) -> None:
    reservation = await waiting(client, manager, fifo)
    handles = sorted(_handles())
    assert handles
    await client.have("web", tcp(8080), **WAITS)
    manager.begin(UNIT)
    assert sorted(_handles()) == handles
    await over(client, manager, reservation)
    assert sorted(_handles()) == handles


def _handles() -> Iterator[str]:
    """Yield what the kernel has numbered, rules, sets and chains: in a table that is made anew it has other numbers."""
    for line in run("nft", "--handle", "list", "ruleset").splitlines():
        text, _, number = line.partition("# handle ")
        if number:
            yield f"{number} {text.split()[0]}"


async def test_a_failed_start_is_reported_to_the_sender_and_repeated_for_the_next_packet(
    client: Client, manager: Pid1, fifo: Socket
) -> None:
    reservation = await waiting(client, manager, fifo)
    for _ in range(2):
        with pytest.raises(OSError, match="Errno 113"):
            await asyncio.wait_for(ask_tcp(str(reservation.leases[0].address)), 5)
        assert fifo.taken() != b""


async def test_a_sweep_starts_nothing(client: Client, manager: Pid1, fifo: Socket, outside: Outside) -> None:
    reservation = await waiting(client, manager, fifo)
    neighbours = len(run("ip", "neigh").splitlines())
    mac, network = link(f"{outside.link}-in")["address"], reservation.leases[0].ipv4
    assert network is not None
    first = int(network.network.network_address)
    swept = [str(IPv4Address(first + number)) for number in range(256)]
    send(outside, mac, [(address, 80) for address in swept if address != str(network.ip)] * 8)
    await asyncio.sleep(0.5)
    assert fifo.taken() == b""
    assert len(run("ip", "neigh").splitlines()) <= neighbours + 1, "those of the network itself"


FLOOD = 100_000
"""Packets a second."""

FLOOD_S = int(os.environ.get("FLOOD_S", "2"))


@pytest.mark.timeout(120)
async def test_a_flood_starts_it_once_and_another_guest_answers(
    client: Client, manager: Pid1, fifo: Socket, outside: Outside
) -> None:
    """For one half of the time, the start goes on; for the other, the guest does not keep up with its packets."""
    reservation = await waiting(client, manager, fifo)
    other = await client.have("other", udp(5353))
    with outside.entered():
        neighbour = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with neighbour, flood(outside, 8080, FLOOD, FLOOD_S) as flooding:
        manager.jobs.add(UNIT)
        begun = time.monotonic()
        async with Guest(other.leases[0]):
            trips = await round_trips(10, neighbour, outside.host)
            await until(lambda: fifo.taken() != b"")
            while time.monotonic() - begun < FLOOD_S / 2:
                trips += await round_trips(10, neighbour, outside.host)
            assert fifo.taken() == b"", "once"
            manager.jobs.discard(UNIT)
            await client.have("web", tcp(8080), **WAITS)
            manager.begin(UNIT)
            _, descriptor = opened_tap(reservation.leases[0].tap)
            while flooding.goes_on:
                trips += await round_trips(10, neighbour, outside.host)
            os.close(descriptor)
        sent = flooding.sent()
    async with Guest(reservation.leases[0]) as guest:
        assert await ask_tcp(str(guest.ip)) == b"HELLO"
    assert fifo.taken() == b"", "once"
    print(f"{sent.rate:.0f} packets/s; another guest answers in {median(trips):.2f} ms, at most {max(trips):.2f}")


def send(outside: Outside, mac: str, to: Iterable[tuple[str, int]]) -> None:
    """Send the first packet of a TCP connection to each address and port, as fast as possible."""
    with outside.entered():
        sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    with sender:
        sender.bind((f"{outside.link}-out", 0))
        source = sender.getsockname()[4]
        for number, (address, port) in enumerate(to):
            ends = IPv4Address(outside.address).packed + IPv4Address(address).packed
            head = struct.pack("!BBHHHBB", 0x45, 0, 40, 0, WHOLE, 64, TCP)
            segment = _tcp(ends, 1024 + number % 60_000, port, number, 0, SYN)
            packet = head + _sum(head + b"\0\0" + ends) + ends + segment
            sender.send(bytes.fromhex(mac.replace(":", "")) + source + IPV4.to_bytes(2) + packet)


async def test_a_neighbours_question_starts_the_task(
    service: Service, manager: Pid1, fifo: Socket, family: Family
) -> None:
    async with service.running(family.settings()) as client:
        [lease] = (await waiting(client, manager, fifo)).leases
        async with Guest(await client.lease("other")) as neighbour, asyncio.TaskGroup() as tasks:
            asked = tasks.create_task(neighbour.resolve(ip_address(family.address(lease))))
            await started(client, manager, fifo)
            async with Guest(lease) as guest:
                assert await asyncio.wait_for(asked, 10) == guest.mac


@pytest.mark.parametrize(
    "asker",
    [
        nic("service", network="apart"),
        nic("service", network="elsewhere"),
        nic("service", network="open", limits=Limits(egress=(destination("192.0.2.1"),))),
    ],
    ids=["isolated", "another network", "egress"],
)
async def test_a_question_of_a_guest_that_may_not_reach_it_starts_nothing(
    asker: NicRequest, service: Service, manager: Pid1, fifo: Socket
) -> None:
    own = "apart" if asker.network == "apart" else "open"
    async with service.running(NETWORKS) as client:
        reservation = await waiting(client, manager, fifo, [nic("service", network=own)])
        assert reservation.leases[0].address is not None
        other = await client.have("other", nics=[asker])
        async with Guest(other.leases[0]) as guest:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(guest.resolve(reservation.leases[0].address), 1)
        assert fifo.taken() == b""


def test_only_root_can_announce_a_packet() -> None:
    script = "import socket\ns = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)\ns.sendto(bytes(28), (0, 1 << 2))"
    done = subprocess.run([sys.executable, "-c", script], user="nobody", capture_output=True, text=True)
    assert "Operation not permitted" in done.stderr


async def test_what_belongs_to_no_connection_starts_nothing(
    service: Service, manager: Pid1, fifo: Socket, outside: Outside
) -> None:
    """By a port of the host, and on a way to the guest itself, by which a ping starts it."""
    async with service.running("[network.default]\nrouted = true\n") as client:
        reservation = await started(client, manager, fifo)
        [lease], loop = reservation.leases, asyncio.get_running_loop()
        outside.ip("route", "replace", f"{lease.address}/32", "via", outside.host)
        with outside.entered():
            sender = socket.socket(socket.AF_INET)
            raw = {kind: socket.socket(socket.AF_INET, socket.SOCK_RAW, kind) for kind in (TCP, ICMP)}
        sender.setblocking(False)
        with sender, raw[TCP], raw[ICMP]:
            async with Guest(lease):
                await loop.sock_connect(sender, (outside.host, 8080))
            await over(client, manager, reservation)
            await loop.sock_sendall(sender, b"hello")
            with pytest.raises(ConnectionResetError):
                await asyncio.wait_for(loop.sock_recv(sender, 100), 5)
            ends = IPv4Address(outside.address).packed + lease.addresses[0].packed
            raw[TCP].sendto(_tcp(ends, 5000, 80, 1, 1, ACK), (str(lease.address), 0))
            for kind in (TIMESTAMP, ECHO):
                await asyncio.sleep(0.5)
                assert fifo.taken() == b""
                message = bytes((kind, 0)) + bytes(2) + bytes(16)
                raw[ICMP].sendto(message[:2] + _sum(message) + message[4:], (str(lease.address), 0))
            await until(lambda: fifo.taken() != b"")
        await client.drop("web")


async def test_a_service_that_was_killed_starts_it_for_what_is_held(
    service: Service, client: Client, manager: Pid1, fifo: Socket
) -> None:
    reservation = await waiting(client, manager, fifo)
    service.kill()
    async with asyncio.TaskGroup() as tasks:
        answer = tasks.create_task(ask_tcp(str(reservation.leases[0].address)))
        await asyncio.sleep(0.2)
        await service.restart()
        await started(client, manager, fifo)
        async with Guest(reservation.leases[0]):
            assert await asyncio.wait_for(answer, 20) == b"HELLO"


@pytest.mark.parametrize("lives", [True, False], ids=["while it lives", "while it is dead"])
async def test_a_bridge_that_is_made_again_starts_it(
    service: Service, client: Client, manager: Pid1, fifo: Socket, *, lives: bool
) -> None:
    """Another program has replaced it for a while, in which no start succeeds."""
    [lease] = (await waiting(client, manager, fifo)).leases
    before = await client.record(WEB)
    if lives:
        service.send(signal.SIGSTOP)  # else it may make the bridge again between the two
    else:
        service.kill()
    run("ip", "link", "delete", lease.bridge)
    run("ip", "link", "add", lease.bridge, "type", "veth", "peer", "name", "theirs")
    if lives:
        service.send(signal.SIGCONT)
    else:
        await service.restart()
    with pytest.raises(TakenError, match=f"^link {lease.bridge} exists"):
        await client.attach(WEB)
    assert await client.record(WEB) == before, "it waits since the same time"
    run("ip", "link", "delete", "theirs")
    await until(lambda: "10.153" in run("ip", "address", "show", lease.bridge) if link(lease.bridge) else False)
    await client.collect(dry_run=False)  # the writer has done with the bridge
    await answers(client, manager, fifo, lease)


async def test_a_task_that_a_killed_service_was_about_to_end_is_awake(
    service: Service, client: Client, manager: Pid1, fifo: Socket
) -> None:
    await client.have("web", **WAITS)
    manager.begin(UNIT)
    service.kill()
    file = service.state / "tasks" / f"{WEB}.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "asleep": 1}))
    await service.restart()
    record = await client.record(WEB)
    assert record is not None
    assert (record.state, record.asleep) == (LeaseState.ATTACHED, 0)


def boot(service: Service, reservation: Reservation) -> None:
    """End the service, with all that a boot takes away; `waits_after_boot` starts it."""
    service.end()
    for path in (*(service.state / "tasks").iterdir(), *(service.state / "networks").iterdir()):
        path.unlink()
    run("ip", "link", "delete", reservation.leases[0].bridge)
    run("nft", "flush", "ruleset")
    write_request(WEB, LastRequest(**vars(reservation.request)))  # as its preparation has


async def waits_after_boot(service: Service, client: Client) -> None:
    await service.restart()
    async with asyncio.timeout(30):
        while await state(client) is not LeaseState.WAITING:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.02)


async def test_after_a_boot_it_waits_with_what_it_had(
    service: Service, client: Client, manager: Pid1, fifo: Socket
) -> None:
    reservation = await waiting(client, manager, fifo)
    boot(service, reservation)
    await waits_after_boot(service, client)
    assert await client.reservations() == (reservation,)
    await answers(client, manager, fifo, reservation.leases[0])


@pytest.mark.parametrize("boots", [True, False], ids=["a boot", "a restart without tables"])
async def test_a_client_that_sent_without_rules_starts_it(
    service: Service, client: Client, manager: Pid1, fifo: Socket, *, boots: bool
) -> None:
    """The kernel keeps its flow, without a translation, while it sends."""
    await until(lambda: fifo.taken() != b"")
    reservation = await client.have("web", udp(5353), **WAITS)
    manager.begin(UNIT)
    await over(client, manager, reservation)
    if boots:
        boot(service, reservation)
    else:
        service.kill()
        run("nft", "flush ruleset")
    with (
        other_table("type filter hook output priority 0", "ct state new accept"),
        closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sender,
    ):
        sender.bind(("127.0.0.1", 6000))
        sender.sendto(b"too early", ("127.0.0.1", 5353))
        await waits_after_boot(service, client)
        assert fifo.taken() == b""
        await until(lambda: sender.sendto(b"again", ("127.0.0.1", 5353)) > 0 and fifo.taken() != b"")


async def test_a_task_of_which_nothing_is_known_is_started_once(client: Client, fifo: Socket, manager: Pid1) -> None:
    await until(lambda: fifo.taken() != b"")
    await asyncio.sleep(0.5)
    assert fifo.taken() == b""


async def test_a_task_that_only_sleeps_is_released_at_its_end(client: Client, manager: Pid1, fifo: Socket) -> None:
    await until(lambda: fifo.taken() != b"")
    [lease] = (await client.have("web", tcp(8080), idle_s=5)).leases
    manager.begin(UNIT)
    manager.end(UNIT)
    await until(lambda: not link(lease.tap))
    assert await state(client) is not LeaseState.WAITING


@pytest.mark.parametrize("changed", [True, False], ids=["changed", "unchanged"])
async def test_a_socket_unit_that_is_started_again_at_once_has_the_declaration_of_now(
    service: Service, client: Client, manager: Pid1, fifo: Socket, *, changed: bool
) -> None:
    reservation = await waiting(client, manager, fifo)
    if not changed:
        write_request(WEB, LastRequest(**vars(reservation.request)))  # as its preparation has
    fifo.close()
    again = Socket(service)
    if changed:
        await until(lambda: again.taken() != b"")
        assert await client.record(WEB) is None, "it is started once, and then has another lease"
    else:
        await answers(client, manager, again, reservation.leases[0])
    again.close()


async def test_what_is_held_for_a_task_ends_with_its_socket_unit(
    service: Service, client: Client, manager: Pid1, fifo: Socket
) -> None:
    reservation = await waiting(client, manager, fifo)
    address = str(reservation.leases[0].address)
    await client.have("other")  # whose bridge stays
    manager.jobs.add(UNIT)
    answer = asyncio.ensure_future(ask_tcp(address))
    await until(lambda: fifo.taken() != b"")
    fifo.close()
    manager.jobs.discard(UNIT)
    with pytest.raises(OSError, match="Errno 113"):
        await asyncio.wait_for(answer, 10)
    await until(lambda: "INCOMPLETE" not in run("ip", "neigh", "show", address))
    await until(lambda: not (service.state / "tasks" / f"{WEB}.json").exists())


# -- guests that take a while to boot after they were started for their first packet, as MirageOS does ---------------


ASKING = bytes.fromhex(ASKER.replace(":", ""))


class Booting(Guest):
    """A guest that boots as MirageOS: it announces its address, drops what it reads until its stack is complete, and
    then refuses connections and datagrams until it listens."""

    listens_after_s = 0.005
    refusal = b"\3\3", bytes(4)  # of a datagram: port unreachable

    def __init__(self, lease: Lease, seconds: float) -> None:
        super().__init__(lease)
        self._complete = time.monotonic() + seconds
        self._listens = 0.0
        self.send(self.arp(1, BROADCAST, self.ip) if lease.ipv4 else self.advertise(self.ip6))

    def _on_readable(self) -> None:
        if time.monotonic() < self._complete:
            self._on_early(os.read(self.descriptor, 65536))
            return
        self._listens = self._listens or time.monotonic() + self.listens_after_s
        super()._on_readable()

    def _on_early(self, frame: bytes) -> None:
        """Drop a frame."""

    def _on_tcp(self, frame: bytes, body: bytes) -> bytes:
        if time.monotonic() >= self._listens:
            return super()._on_tcp(frame, body)
        source, port, sequence = struct.unpack_from("!HHI", body)
        ends = frame[30:34] + frame[26:30] if frame[12:14] == IPV4.to_bytes(2) else frame[38:54] + frame[22:38]
        return _tcp(ends, port, source, 0, sequence + 1, RST | ACK)

    def _on_udp(self, frame: bytes, body: bytes) -> bytes:
        if time.monotonic() >= self._listens:
            return super()._on_udp(frame, body)
        kind, rest = self.refusal[0], self.refusal[1] + frame[14:42]
        message = _sum(kind + rest).join((kind, rest))
        self.send(self.ipv4(frame[6:12], IPv4Address(frame[26:30]), ICMP, message))
        return b""


class Detecting(Booting):
    """One that gives its address up for what it takes for another machine's probe (RFC 5227, section 2.1.1)."""

    def _on_early(self, frame: bytes) -> None:
        if frame[12:14] == ARP.to_bytes(2) and frame[28:32] in (bytes(4), self.ip.packed):
            self._complete += 60


class Late(Booting):
    """One that has other work before it listens."""

    listens_after_s = 0.5


def is_connecting(frame: bytes) -> bool:
    protocol, flags = (23, 47) if frame[12:14] == IPV4.to_bytes(2) else (20, 67)
    return frame[protocol] == TCP and frame[flags] & SYN > 0


@asynccontextmanager
async def answering(
    client: Client, manager: Pid1, fifo: Socket, guest_of: Callable[[Lease], Guest]
) -> AsyncIterator[tuple[Guest, bool]]:
    """Start a guest for its first request; yield it once that is answered, and whether that did not send it again."""
    [lease] = (await waiting(client, manager, fifo)).leases
    async with asyncio.TaskGroup() as tasks:
        before = sent_again()
        answer = tasks.create_task(ask_tcp(str(lease.first_address)))
        await started(client, manager, fifo)
        async with guest_of(lease) as guest:
            assert await asyncio.wait_for(answer, 20) == b"HELLO"
            yield guest, sent_again() == before


ALONE = "ipv4 = false\nipv6 = true\n"


@pytest.mark.parametrize("seconds", [0, 0.3])
@pytest.mark.parametrize("options", ["", ALONE], ids=["IPv4", "IPv6"])
async def test_a_guest_that_boots_gets_the_first_packet_once_it_answers(
    service: Service, manager: Pid1, fifo: Socket, options: str, seconds: float
) -> None:
    async with (
        service.running(f"[network.default]\n{options}") as client,
        answering(client, manager, fifo, lambda lease: Booting(lease, seconds)) as (guest, at_once),
    ):
        assert at_once
        assert await ask_tcp(str(guest.own(IPv6Address(0)) if options else guest.ip)) == b"HELLO"


@pytest.mark.parametrize("options", ["", ALONE], ids=["IPv4", "IPv6"])
async def test_a_guest_that_listens_late_refuses_no_client(
    service: Service, manager: Pid1, fifo: Socket, options: str
) -> None:
    async with (
        service.running(f"[network.default]\n{options}") as client,
        answering(client, manager, fifo, lambda lease: Late(lease, 0.1)) as (guest, _),
    ):
        assert len([*filter(is_connecting, guest.frames)]) > 1, "the first request came too early"


async def test_a_datagram_that_comes_before_the_guest_listens_is_lost(
    client: Client, manager: Pid1, fifo: Socket
) -> None:
    [lease] = (await waiting(client, manager, fifo)).leases
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as datagrams:
        datagrams.connect((str(lease.address), 7))
        datagrams.settimeout(0.1)
        datagrams.send(b"hello")
        await started(client, manager, fifo)

        def answered() -> bool:
            datagrams.send(b"hello")
            with suppress(TimeoutError):
                return datagrams.recv(100) == b"HELLO"
            return False

        async with Late(lease, 0.1):
            assert await asyncio.to_thread(lambda: any(answered() for _ in range(30)))


async def test_a_guest_that_boots_may_say_that_a_datagram_was_too_long(
    client: Client, manager: Pid1, fifo: Socket
) -> None:
    """One that forwards packets learns so from behind it: only refusals of its own are dropped."""

    class Narrow(Booting):
        listens_after_s = 60
        refusal = b"\3\4", bytes(2) + (600).to_bytes(2)

    [lease] = (await waiting(client, manager, fifo)).leases
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as datagrams:
        datagrams.connect((str(lease.address), 7))
        datagrams.send(b"hello")
        await started(client, manager, fifo)

        def is_known() -> bool:
            try:
                datagrams.send(b"hello")
            except OSError as error:
                return error.errno == errno.EMSGSIZE
            return False

        async with Narrow(lease, 0.1):
            await until(is_known)


async def test_a_guest_that_detects_conflicts_takes_no_question_for_one(
    client: Client, manager: Pid1, fifo: Socket
) -> None:
    async with answering(client, manager, fifo, lambda lease: Detecting(lease, 0.3)) as (guest, _):
        senders = {IPv4Address(each[28:32]) for each in guest.frames if each[6:14] == ASKING + ARP.to_bytes(2)}
        assert senders == {IPv4Address("192.0.0.8")}, "no guest learns the MAC address of the question for its gateway"


async def test_a_guest_that_answers_no_question_gets_the_first_packet_later(
    client: Client, manager: Pid1, fifo: Socket
) -> None:
    class Mute(Guest):
        def arp(self, kind: int, *arguments: Any, **options: Any) -> bytes:
            assert kind == 2
            return bytes(60)

    async with answering(client, manager, fifo, Mute):
        pass


async def test_what_is_held_for_a_guest_that_boots_survives_the_service(
    service: Service, client: Client, manager: Pid1, fifo: Socket
) -> None:
    reservation = await waiting(client, manager, fifo)
    lease = reservation.leases[0]
    async with asyncio.TaskGroup() as tasks:
        answer = tasks.create_task(ask_tcp(str(lease.address)))
        await started(client, manager, fifo)
        async with Booting(lease, 0.5):
            with closing(Neighbours()) as neighbours:
                await until(lambda: neighbours.passes_frames(lease.bridge))
            service.kill()
            assert "INCOMPLETE" in run("ip", "neigh", "show", str(lease.address))
            await service.restart()
            assert await asyncio.wait_for(answer, 20) == b"HELLO"


async def test_a_request_for_a_connection_that_is_sent_again_while_it_is_held_comes_once(
    client: Client, manager: Pid1, fifo: Socket
) -> None:
    async with answering(client, manager, fifo, lambda lease: Booting(lease, 1.3)) as (guest, _):
        assert len([*filter(is_connecting, guest.frames)]) == 1


async def test_a_request_for_a_connection_that_is_repeated_at_once_reaches_a_guest_that_never_waits(
    client: Client, outside: Outside
) -> None:
    [lease] = (await client.have("web", tcp(8080), nics=(nic("service", limits=at("received=10M")),))).leases
    async with Guest(lease) as guest:
        for _ in range(2):
            send(outside, link(f"{outside.link}-in")["address"], [(outside.host, 8080)])
        assert await ask_tcp(str(guest.ip)) == b"HELLO"
        ports = [each[34:36] for each in guest.frames if is_connecting(each)]
        assert ports[0] == ports[1]


# -- attacks ----------------------------------------------------------------------------------------------------------


def answers_for(guest: Guest, of: Guest) -> Iterator[bytes]:
    """Yield a guest's answers to the question of the service for a guest: for itself, or all for another one."""
    for mac in {of.mac, guest.mac}:
        if of.ip6 != NOWHERE:
            for source in {of.ip6, guest.ip6}:
                yield guest.advertise(of.ip6, mac=mac, source=source, to=link_local(ASKER), to_mac=ASKING)
        else:
            yield guest.arp(2, ASKING, IPv4Address(0), mac=mac, ip=of.ip)


async def test_answers_without_end_cost_the_service_and_a_task_that_sleeps_nothing(
    service: Service, manager: Pid1, family: Family
) -> None:
    async with service.running(family.settings()) as client, sleeper(client, manager) as asleep:
        async with Guest(await client.lease("other")) as flooder:
            [answer] = answers_for(flooder, flooder)
        with flooded(flooder, answer) as sent:
            await until(lambda: sent() > 1000)
            before, begun = service.processor_time, sent()
            await until(lambda: sent() - begun > 100_000, 30)
            assert service.processor_time - before < 0.2, "of 100,000 it is told few"
            await client.sleep(WEB)
            await get_at_once(str(asleep.ip))


class Beset(Booting):
    """A guest that boots, for which another one answers whenever a frame comes to it."""

    def __init__(self, lease: Lease, seconds: float, other: Guest) -> None:
        super().__init__(lease, seconds)
        self._other = other

    def _on_readable(self) -> None:
        super()._on_readable()
        for frame in answers_for(self._other, self):
            self._other.send(frame)


@pytest.mark.parametrize("network", ["default", "lan"])
@pytest.mark.parametrize("options", ["", ALONE], ids=["ARP", "IPv6"])
async def test_a_guest_that_answers_for_another_does_not_have_it_called_ready(
    service: Service, manager: Pid1, fifo: Socket, br0: str, network: str, options: str
) -> None:
    """Neither a neighbour does, nor a guest on a bridge of others, without a leased address: it may announce any."""
    lan = f'[network.lan]\njoin = "{br0}"\nipv6 = true\n'
    async with service.running(f"[network.default]\n{options}{lan}") as client:
        forger = await client.lease("forger", network=network)
        async with (
            Guest(_addressed(forger) if network == "lan" else forger) as other,
            answering(client, manager, fifo, lambda lease: Beset(lease, 0.3, other)) as (_, at_once),
        ):
            assert at_once


async def test_no_guest_has_the_mac_address_by_which_it_is_asked(client: Client) -> None:
    with pytest.raises(TakenError, match=f"^MAC address {ASKER} for NIC service is taken by solo5-networkd: expected"):
        await client.have("web", nics=(nic("service", mac=ASKER),))
    async with Guest(await client.lease("web")) as guest, Guest(await client.lease("other")) as other:
        for frame in (
            guest.arp(1, BROADCAST, other.ip),
            guest.arp(2, other.mac, other.ip),
            guest.udp(other.mac, other.ip, 7, b"forged"),
        ):
            guest.send(frame[:6] + ASKING + frame[12:])
        guest.send(guest.arp(1, BROADCAST, other.ip, mac=ASKING))
        guest.send(guest.frame(BROADCAST, ARP, guest.arp(1, BROADCAST, other.ip, mac=ASKING)[14:], source=ASKING))
        guest.send(guest.udp(other.mac, other.ip, 7, b"sincere"))
        await other.heard_udp(b"sincere")
        assert [each for each in other.frames if ASKING in each] == []
