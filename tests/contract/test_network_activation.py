"""Tasks that wait without a process, and are started for their first packet."""

import asyncio
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from ipaddress import IPv4Address
from statistics import median
from typing import Any

import pytest
from tests.contract.guest import IPV4, SYN, TCP, WHOLE, Guest, _sum, _tcp, opened_tap
from tests.contract.guest6 import Guest6
from tests.contract.netns import Outside, link, run, sent_again
from tests.contract.netservice import Client, Pid1, Service, nic, tcp, udp, until
from tests.contract.syn_flood import flood
from tests.contract.test_network_exhaustion import round_trips
from tests.contract.test_network_sleep import UNIT, WEB, Sleeper6, get

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


class Socket:
    """The FIFO of a socket unit, as PID 1 has it."""

    def __init__(self, service: Service) -> None:
        self.path = service.waiting / WEB
        os.mkfifo(self.path)
        self._fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)

    def taken(self) -> bytes:
        """Return what is in the FIFO, and empty it."""
        try:
            return os.read(self._fd, 100)
        except BlockingIOError:  # a writer has opened it, and not written yet
            return b""

    def close(self) -> None:
        os.close(self._fd)
        self.path.unlink()


@pytest.fixture
def fifo(service: Service) -> Socket:
    return Socket(service)


async def state(client: Client) -> LeaseState | None:
    record = await client.record(WEB)
    return record.state if record else None


async def waiting(client: Client, manager: Pid1, fifo: Socket) -> Reservation:
    """Run a task, end it, and wait until it waits."""
    await until(lambda: fifo.taken() != b"")  # it has not run before
    reservation = await client.have("web", tcp(8080), **WAITS)
    manager.begin(UNIT)
    await until(lambda: link(reservation.leases[0].tap) != {})
    await over(client, manager, reservation)
    return reservation


async def over(client: Client, manager: Pid1, reservation: Reservation) -> None:
    manager.end(UNIT)
    await until(lambda: not link(reservation.leases[0].tap))
    assert await state(client) is LeaseState.WAITING
    assert await client.orphans() == ()
    # Last, the kernel holds packets: its neighbour entry is deleted.
    await until(lambda: "lladdr" not in run("ip", "neigh", "show", str(reservation.leases[0].first_address)))


async def started(client: Client, manager: Pid1, fifo: Socket, nics: Sequence[NicRequest] = ()) -> None:
    """Start the task again, as PID 1 does."""
    await until(lambda: fifo.taken() != b"")
    await client.have("web", tcp(8080), **{**WAITS, **({"nics": nics} if nics else {})})
    manager.begin(UNIT)


async def answers(client: Client, manager: Pid1, fifo: Socket, lease: Lease) -> None:
    """Have the task started by a request, which its guest answers."""
    async with asyncio.TaskGroup() as tasks:
        answer = tasks.create_task(get(str(lease.address)))
        await started(client, manager, fifo)
        async with Guest(lease):
            assert await asyncio.wait_for(answer, 20) == b"HELLO"


async def test_the_first_packet_starts_the_task_and_is_answered(client: Client, manager: Pid1, fifo: Socket) -> None:
    reservation = await waiting(client, manager, fifo)
    lease = reservation.leases[0]
    before = sent_again()
    async with asyncio.TaskGroup() as tasks:
        answer = tasks.create_task(get(str(lease.address)))
        await started(client, manager, fifo)
        async with Guest(lease):
            assert await asyncio.wait_for(answer, 20) == b"HELLO"
            assert sent_again() == before, "the first packet has come"
            assert fifo.taken() == b"", "once"
            assert await get(str(lease.address)) == b"HELLO"
    assert (await client.reservations()) == (reservation,)
    fifo.close()


async def test_the_first_packet_of_ipv6_starts_the_task(service: Service, manager: Pid1, fifo: Socket) -> None:
    async with service.running("[network.default]\nipv6 = true\n") as client:
        reservation = await waiting(client, manager, fifo)
        lease = reservation.leases[0]
        async with asyncio.TaskGroup() as tasks:
            answer = tasks.create_task(get(str(lease.address6)))
            await started(client, manager, fifo)
            async with Sleeper6(lease):
                async with asyncio.timeout(0.9):
                    assert await answer == b"HELLO"
        fifo.close()


async def test_packets_are_held_through_a_long_start(client: Client, manager: Pid1, fifo: Socket) -> None:
    reservation = await waiting(client, manager, fifo)
    async with asyncio.TaskGroup() as tasks:
        answer = tasks.create_task(get(str(reservation.leases[0].address)))
        await until(lambda: fifo.taken() != b"")
        manager.jobs.add(UNIT)
        await asyncio.sleep(4.5)
        manager.jobs.discard(UNIT)
        await client.have("web", tcp(8080), **WAITS)
        manager.begin(UNIT)
        async with Guest(reservation.leases[0]):
            assert await asyncio.wait_for(answer, 20) == b"HELLO"
    assert fifo.taken() == b"", "once"
    fifo.close()


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
            answers = [tasks.create_task(get(str(address))) for address in lease.addresses]
            held = [("ip", "neigh", "show", str(address)) for address in lease.addresses]
            await until(lambda: all("INCOMPLETE" in run(*show) for show in held))
            run("ip", "link", "delete", "port")
            await until(lambda: link(lease.bridge)["operstate"] == "DOWN")  # the kernel has dropped what it drops then
            assert all("INCOMPLETE" in run(*show) for show in held)
            await started(client, manager, fifo)
            async with Sleeper6(lease):
                assert [await asyncio.wait_for(answer, 20) for answer in answers] == [b"HELLO", b"HELLO"]
        fifo.close()


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
        answer = tasks.create_task(get(address))
        await until(lambda: "INCOMPLETE" in run("ip", "neigh", "show", address))
        await client.reservations()  # it has been announced by then
        assert "INCOMPLETE" in run("ip", "neigh", "show", address)
        async with Guest(reservation.leases[0]):
            assert await asyncio.wait_for(answer, 20) == b"HELLO"
            assert sent_again() == before, "the first packet has come"
    fifo.close()


@pytest.mark.parametrize("opened", [True, False], ids=["opened later", "never"])
async def test_a_nic_whose_tap_is_not_open_keeps_no_packet_of_another(
    service: Service, manager: Pid1, fifo: Socket, *, opened: bool
) -> None:
    nics = [nic("service"), nic("second", network="second")]
    async with service.running("[network.second]\n") as client:
        await started(client, manager, fifo, nics)
        (reservation,) = await client.reservations()
        await until(lambda: all(link(lease.tap) != {} for lease in reservation.leases))
        await over(client, manager, reservation)
        answers = [asyncio.ensure_future(get(str(lease.address))) for lease in reservation.leases]
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
        fifo.close()


async def test_a_start_and_an_end_leave_the_rules_of_others(client: Client, manager: Pid1, fifo: Socket) -> None:
    reservation = await waiting(client, manager, fifo)
    handles = sorted(_handles())
    assert handles
    await client.have("web", tcp(8080), **WAITS)
    manager.begin(UNIT)
    assert sorted(_handles()) == handles
    await over(client, manager, reservation)
    assert sorted(_handles()) == handles
    fifo.close()


def _handles() -> Iterator[str]:
    """Yield what the kernel has numbered, rules, sets and chains: in a table that is made anew it has other numbers."""
    for line in run("nft", "--handle", "list", "ruleset").splitlines():
        text, _, number = line.partition("# handle ")
        if number:
            yield f"{number} {text.split()[0]}"


async def test_a_start_that_fails_is_told_to_the_sender_and_repeated_for_the_next_packet(
    client: Client, manager: Pid1, fifo: Socket
) -> None:
    reservation = await waiting(client, manager, fifo)
    for _ in range(2):
        with pytest.raises(OSError, match="Errno 113"):
            await asyncio.wait_for(get(str(reservation.leases[0].address)), 5)
        assert fifo.taken() != b""
    fifo.close()


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
    fifo.close()


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
        assert await get(str(guest.ip)) == b"HELLO"
    assert fifo.taken() == b"", "once"
    print(f"{sent.rate:.0f} packets/s; another guest answers in {median(trips):.2f} ms, at most {max(trips):.2f}")
    fifo.close()


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


async def test_a_neighbours_question_starts_the_task(client: Client, manager: Pid1, fifo: Socket) -> None:
    reservation = await waiting(client, manager, fifo)
    other = await client.have("other")
    async with Guest(other.leases[0]) as neighbour, asyncio.TaskGroup() as tasks:
        assert reservation.leases[0].address is not None
        asked = tasks.create_task(neighbour.resolve(reservation.leases[0].address))
        await started(client, manager, fifo)
        async with Guest(reservation.leases[0]) as guest:
            assert await asyncio.wait_for(asked, 10) == guest.mac
    fifo.close()


async def test_a_question_of_ipv6_starts_the_task(service: Service, manager: Pid1, fifo: Socket) -> None:
    async with service.running("[network.default]\nipv6 = true\n") as client:
        reservation = await waiting(client, manager, fifo)
        (lease,) = reservation.leases
        assert lease.address6 is not None
        other = await client.have("other")
        async with Guest6(other.leases[0]) as neighbour, asyncio.TaskGroup() as tasks:
            asked = tasks.create_task(neighbour.resolve(lease.address6))
            await started(client, manager, fifo)
            async with Guest6(lease) as guest:
                assert await asyncio.wait_for(asked, 10) == guest.mac
        fifo.close()


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
        await until(lambda: fifo.taken() != b"")
        reservation = await client.have("web", nics=[nic("service", network=own)], **WAITS)
        manager.begin(UNIT)
        await until(lambda: link(reservation.leases[0].tap) != {})
        await over(client, manager, reservation)
        assert reservation.leases[0].address is not None
        other = await client.have("other", nics=[asker])
        async with Guest(other.leases[0]) as guest:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(guest.resolve(reservation.leases[0].address), 1)
        assert fifo.taken() == b""
        fifo.close()


def test_only_root_can_announce_a_packet() -> None:
    script = "import socket\ns = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)\ns.sendto(bytes(28), (0, 1 << 2))"
    done = subprocess.run([sys.executable, "-c", script], user="nobody", capture_output=True, text=True)
    assert "Operation not permitted" in done.stderr


async def test_what_belongs_to_no_connection_starts_nothing(
    client: Client, manager: Pid1, fifo: Socket, outside: Outside
) -> None:
    await until(lambda: fifo.taken() != b"")
    reservation = await client.have("web", tcp(8080), **WAITS)
    manager.begin(UNIT)
    loop = asyncio.get_running_loop()
    with outside.entered():
        sender = socket.socket(socket.AF_INET)
    sender.setblocking(False)
    with sender:
        async with Guest(reservation.leases[0]):
            await loop.sock_connect(sender, (outside.host, 8080))
        await over(client, manager, reservation)
        await loop.sock_sendall(sender, b"hello")
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(loop.sock_recv(sender, 100), 5)
    await asyncio.sleep(0.5)
    assert fifo.taken() == b""
    fifo.close()


async def test_a_service_that_was_killed_starts_it_for_what_is_held(
    service: Service, manager: Pid1, fifo: Socket
) -> None:
    async with service.running() as client:
        reservation = await waiting(client, manager, fifo)
        service.kill()
        async with asyncio.TaskGroup() as tasks:
            answer = tasks.create_task(get(str(reservation.leases[0].address)))
            await asyncio.sleep(0.2)
            await service.restart()
            await started(client, manager, fifo)
            async with Guest(reservation.leases[0]):
                assert await asyncio.wait_for(answer, 20) == b"HELLO"
        fifo.close()


async def test_after_a_boot_it_waits_with_what_it_had(service: Service, manager: Pid1, fifo: Socket) -> None:
    async with service.running() as client:
        reservation = await waiting(client, manager, fifo)
        service.end()
        for path in (service.state / "tasks").iterdir():
            path.unlink()
        for path in (service.state / "networks").iterdir():
            path.unlink()
        run("ip", "link", "delete", reservation.leases[0].bridge)
        run("nft", "flush", "ruleset")
        write_request(WEB, LastRequest(**vars(reservation.request)))  # as its preparation has
        await service.restart()
        async with asyncio.timeout(5):
            while await state(client) is not LeaseState.WAITING:  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.02)
        assert await client.reservations() == (reservation,)
        await answers(client, manager, fifo, reservation.leases[0])
        fifo.close()


async def test_a_task_of_which_nothing_is_known_is_started_once(client: Client, fifo: Socket, manager: Pid1) -> None:
    await until(lambda: fifo.taken() != b"")
    await asyncio.sleep(0.5)
    assert fifo.taken() == b""
    fifo.close()


async def test_without_its_socket_unit_the_network_is_released(client: Client, manager: Pid1, fifo: Socket) -> None:
    await waiting(client, manager, fifo)
    fifo.close()
    await until(lambda: "solo5" not in run("nft", "list", "tables"))
    assert await client.record(WEB) is None


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
    answer = asyncio.ensure_future(get(address))
    await until(lambda: fifo.taken() != b"")
    fifo.close()
    manager.jobs.discard(UNIT)
    with pytest.raises(OSError, match="Errno 113"):
        await asyncio.wait_for(answer, 10)
    await until(lambda: "INCOMPLETE" not in run("ip", "neigh", "show", address))
    await until(lambda: not (service.state / "tasks" / f"{WEB}.json").exists())


async def test_an_idle_task_is_ended(client: Client, manager: Pid1, fifo: Socket) -> None:
    reservation = await client.have("web", **WAITS)
    manager.begin(UNIT)
    async with Guest(reservation.leases[0]):
        await until(lambda: (UNIT, int(signal.SIGHUP)) in manager.signals, 10)
    manager.end(UNIT)
    await until(lambda: not link(reservation.leases[0].tap))
    assert await state(client) is LeaseState.WAITING
    fifo.close()
