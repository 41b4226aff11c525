"""Guests that take a while to boot after they were started for their first packet, as MirageOS does."""

import asyncio
import errno
import os
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, suppress
from ipaddress import IPv4Address, IPv6Address
from typing import Any

import pytest
from tests.contract.guest import ACK, ARP, BROADCAST, ICMP, IPV4, RST, SYN, TCP, Guest, _sum, _tcp
from tests.contract.guest6 import Guest6
from tests.contract.netns import Outside, link, run, sent_again
from tests.contract.netservice import Client, Pid1, Service, nic, tcp, until
from tests.contract.test_network_activation import Socket, send, started, waiting
from tests.contract.test_network_exhaustion import flood
from tests.contract.test_network_joined import _addressed
from tests.contract.test_network_rates import at
from tests.contract.test_network_sleep import WEB, get, sleeper

from solo5_systemd.base.errors import TakenError
from solo5_systemd.network.derived_addresses import ASKER, link_local
from solo5_systemd.network.model import Lease
from solo5_systemd.network.neighbours import Neighbours

ASKING = bytes.fromhex(ASKER.replace(":", ""))


@pytest.fixture
def fifo(service: Service) -> Socket:
    return Socket(service)


class Booting(Guest):
    """A guest that boots as MirageOS: it announces its address, drops what it reads until its stack is complete, and
    then refuses connections and datagrams until it listens."""

    listens_after_s = 0.005
    refusal = b"\3\3", bytes(4)  # of a datagram: port unreachable

    def __init__(self, lease: Lease, seconds: float) -> None:
        super().__init__(lease)
        self._complete = time.monotonic() + seconds
        self._listens = 0.0
        self._announce()

    def _announce(self) -> None:
        self.send(self.arp(1, BROADCAST, self.ip))

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


class Booting6(Booting, Guest6):
    """The same with IPv6 alone."""

    def _announce(self) -> None:
        self.send(self.advertise(self.ip6))


class Late(Booting):
    """One that has other work before it listens."""

    listens_after_s = 0.5


class Late6(Booting6):
    """The same with IPv6 alone."""

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
        answer = tasks.create_task(get(str(lease.first_address)))
        await started(client, manager, fifo)
        async with guest_of(lease) as guest:
            assert await asyncio.wait_for(answer, 20) == b"HELLO"
            yield guest, sent_again() == before
    fifo.close()


@pytest.mark.parametrize("seconds", [0, 0.3])
async def test_a_guest_that_boots_gets_the_first_packet_once_it_answers(
    client: Client, manager: Pid1, fifo: Socket, seconds: float
) -> None:
    async with answering(client, manager, fifo, lambda lease: Booting(lease, seconds)) as (guest, at_once):
        assert at_once
        assert await get(str(guest.ip)) == b"HELLO"


@pytest.mark.parametrize("seconds", [0, 0.3])
async def test_a_guest_with_ipv6_alone_gets_the_first_packet_once_it_answers(
    service: Service, manager: Pid1, fifo: Socket, seconds: float
) -> None:
    async with (
        service.running("[network.default]\nipv4 = false\nipv6 = true\n") as client,
        answering(client, manager, fifo, lambda lease: Booting6(lease, seconds)) as (guest, at_once),
    ):
        assert at_once
        assert await get(str(guest.own(IPv6Address(0)))) == b"HELLO"


@pytest.mark.parametrize(("settings", "guest_of"), [("", Late), ("ipv4 = false\nipv6 = true\n", Late6)])
async def test_a_guest_that_listens_late_refuses_no_client(
    service: Service, manager: Pid1, fifo: Socket, settings: str, guest_of: type[Booting]
) -> None:
    async with (
        service.running(f"[network.default]\n{settings}") as client,
        answering(client, manager, fifo, lambda lease: guest_of(lease, 0.1)) as (guest, _),
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
    fifo.close()


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
    fifo.close()


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
    service: Service, manager: Pid1, fifo: Socket
) -> None:
    async with service.running() as client:
        reservation = await waiting(client, manager, fifo)
        lease = reservation.leases[0]
        async with asyncio.TaskGroup() as tasks:
            answer = tasks.create_task(get(str(lease.address)))
            await started(client, manager, fifo)
            async with Booting(lease, 0.5):
                with closing(Neighbours()) as neighbours:
                    await until(lambda: neighbours.passes_frames(lease.bridge))
                service.kill()
                assert "INCOMPLETE" in run("ip", "neigh", "show", str(lease.address))
                await service.restart()
                assert await asyncio.wait_for(answer, 20) == b"HELLO"
        fifo.close()


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
        assert await get(str(guest.ip)) == b"HELLO"
        ports = [each[34:36] for each in guest.frames if is_connecting(each)]
        assert ports[0] == ports[1]


# -- attacks ----------------------------------------------------------------------------------------------------------


def answers_for(guest: Guest, of: Guest) -> Iterator[bytes]:
    """Yield a guest's answers to the question of the service for a guest: for itself, or all for another one."""
    for mac in {of.mac, guest.mac}:
        if isinstance(guest, Guest6) and isinstance(of, Guest6):
            for source in {of.ip6, guest.ip6}:
                yield guest.advertise(of.ip6, mac=mac, source=source, to=link_local(ASKER), to_mac=ASKING)
        else:
            yield guest.arp(2, ASKING, IPv4Address(0), mac=mac, ip=of.ip)


@pytest.mark.parametrize("guest", [Guest, Guest6], ids=["ARP", "IPv6"])
async def test_answers_without_end_cost_the_service_and_a_task_that_sleeps_nothing(
    service: Service, manager: Pid1, guest: type[Guest]
) -> None:
    async with (
        service.running("[network.default]\nipv6 = true\n") as client,
        sleeper(client, manager) as asleep,
    ):
        async with guest(await client.lease("other")) as flooder:
            [answer] = answers_for(flooder, flooder)
        with flood(flooder, answer) as sent:
            await until(lambda: sent() > 1000)
            before, begun = service.processor_time, sent()
            await until(lambda: sent() - begun > 100_000, 30)
            assert service.processor_time - before < 0.2, "of 100,000 it is told few"
            await client.sleep(WEB)
            async with asyncio.timeout(0.9):
                assert await get(str(asleep.ip)) == b"HELLO", "without a retransmission"


class Beset(Booting):
    """A guest that boots, for which another one answers whenever a frame comes to it."""

    def __init__(self, lease: Lease, seconds: float, other: Guest) -> None:
        super().__init__(lease, seconds)
        self._other = other

    def _on_readable(self) -> None:
        super()._on_readable()
        for frame in answers_for(self._other, self):
            self._other.send(frame)


class Beset6(Beset, Booting6):
    """The same with IPv6 alone."""


@pytest.mark.parametrize("network", ["default", "lan"])
@pytest.mark.parametrize(
    ("guest", "beset", "options"),
    [(Guest, Beset, ""), (Guest6, Beset6, "ipv4 = false\nipv6 = true\n")],
    ids=["ARP", "IPv6"],
)
async def test_a_guest_that_answers_for_another_does_not_have_it_called_ready(
    service: Service,
    manager: Pid1,
    fifo: Socket,
    network: str,
    guest: type[Guest],
    beset: Callable[[Lease, float, Guest], Guest],
    options: str,
) -> None:
    """Neither a neighbour does, nor a guest on a bridge of others, without a leased address: it may announce any."""
    run("ip", "link", "add", "br0", "up", "type", "bridge")
    lan = '[network.lan]\njoin = "br0"\nipv6 = true\n'
    async with service.running(f"[network.default]\n{options}{lan}") as client:
        [forger] = (await client.have("forger", nics=(nic("service", network),))).leases
        async with (
            guest(_addressed(forger) if network == "lan" else forger) as other,
            answering(client, manager, fifo, lambda lease: beset(lease, 0.3, other)) as (_, at_once),
        ):
            assert at_once
    run("ip", "link", "del", "br0")


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
