"""Egress: what a guest may open connections to, with real packets in the kernel.

Each attempt ends in one of two ways, which the test waits for: an answer, or a packet that is counted as unlisted.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from ipaddress import IPv4Address

import pytest
from tests.contract.guest import BROADCAST, ICMP, MORE, SYN, UDP, Guest, _udp
from tests.contract.netns import Outside, run
from tests.contract.netservice import Client, Service, host_state, nic, tcp, udp, until
from tests.contract.test_network_paths import ask_tcp, ask_udp, bridge_nf
from tests.contract.test_network_policy import until_pinged
from tests.support.nft_listing import settled

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import TaskName
from solo5_systemd.network.guest_limits import Limits
from solo5_systemd.network.model import Lease, PortRequest
from solo5_systemd.settings.egress import egress
from solo5_systemd.settings.rate import rate

__all__ = ["bridge_nf"]

ECHO = b"\x08\0\xf7\xff\0\0\0\0"
OUTSIDE = "192.0.2.2"


def only(*texts: str) -> Limits:
    return Limits(egress=egress(texts))


async def have(client: Client, task: str, limits: Limits, *ports: PortRequest, network: str = "default") -> Lease:
    requested = nic("service", network, limits=limits)
    return (await client.have(task, *ports, nics=(requested,))).leases[0]


def unlisted(guest: Guest) -> int:
    """Return the packets of a guest that its egress has dropped."""
    count = 0
    for family in ("ip", "bridge"):
        listed = json.loads(run("nft", "-j", "list", "set", family, "solo5", "unlisted"))["nftables"]
        for item in listed:
            for each in item.get("set", {}).get("elem", ()):
                if each["elem"]["val"] == str(guest.ip):
                    count += each["elem"]["counter"]["packets"]
    return count


@asynccontextmanager
async def echoes(
    outside: Outside, *ports: int, bound: Callable[[int], socket.socket] | None = None
) -> AsyncIterator[None]:
    """Answer datagrams at ports of the neighbour of the host; `bound` makes a socket, by default of IPv4."""

    class Echo(asyncio.DatagramProtocol):
        def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
            self._transport = transport

        def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
            self._transport.sendto(data.upper(), addr)

    loop, transports = asyncio.get_running_loop(), []
    for port in ports:
        opened = bound(port) if bound else _bound(outside, port)
        transports.append((await loop.create_datagram_endpoint(Echo, sock=opened))[0])
    yield
    for transport in transports:
        transport.close()


def _bound(outside: Outside, port: int) -> socket.socket:
    with outside.entered():
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind((outside.address, port))
    return made


class Attempts:
    """Attempts of one guest, each from another port, with what came of each."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self._port = 40000

    async def reaches(self, what: str, mac: bytes | None = None) -> bool:
        """Return whether `ADDRESS:PORT/udp`, `ADDRESS:PORT/tcp` or `ADDRESS/icmp` answers, or is counted as unlisted.

        Args:
            what: the destination.
            mac: to which the frame is sent; None: the gateway's.
        """
        guest = self.guest
        mac = mac or await guest.resolve(guest.gateway)
        where, _, protocol = what.partition("/")
        address, _, port = where.partition(":")
        to, before, frames = IPv4Address(address), unlisted(guest), len(guest.frames)
        self._port += 1
        data = f"from {self._port}".encode()
        if protocol == "udp":
            guest.send(guest.ipv4(mac, to, UDP, _udp(self._port, int(port), data)))
        elif protocol == "tcp":
            guest.send(guest.tcp(mac, to, (self._port, int(port)), (1, 0), SYN))
        else:
            guest.send(guest.ipv4(mac, to, ICMP, ECHO))
        number = {"udp": 17, "tcp": 6, "icmp": 1}[protocol]

        def is_answer(frame: bytes) -> bool:
            ours = frame[36:38] == self._port.to_bytes(2) if number != ICMP else frame[34:35] == b"\0"
            return frame[12:14] == b"\x08\0" and frame[23] == number and frame[26:30] == to.packed and ours

        def answered() -> bool:
            return any(map(is_answer, guest.frames[frames:]))

        await until(lambda: answered() or unlisted(guest) > before, 20)
        return answered()


async def test_a_guest_opens_connections_to_what_is_listed_and_to_nothing_else(
    service: Service, outside: Outside, bridge_nf: None
) -> None:
    await service.restart()
    listed = only("192.0.2.2:7/udp", "192.0.2.0/30:100-102/tcp", "192.0.2.1/icmp", "[2001:db8::1]:7/udp")
    async with service.client() as client, echoes(outside, 7, 8):
        async with Guest(await have(client, "a", listed)) as guest:
            attempts = Attempts(guest)
            for what in ("192.0.2.2:7/udp", "192.0.2.2:100/tcp", "192.0.2.2:102/tcp", "192.0.2.1/icmp"):
                assert await attempts.reaches(what), what
            refused = ("2.2:8/udp", "2.2:7/tcp", "2.2:99/tcp", "2.2:103/tcp", "2.2/icmp", "2.5:100/tcp")
            for what in refused:
                assert not await attempts.reaches(f"192.0.{what}"), what
            assert not await attempts.reaches(f"{guest.gateway}/icmp")
            assert unlisted(guest) == len(refused) + 1
        await client.drop("a")


@pytest.mark.parametrize("text", ["192.0.2.2", "0.0.0.0/0", "192.0.2.0/24:1-65535"])
async def test_an_entry_without_protocol_or_ports_is_for_all_of_them(
    service: Service, outside: Outside, text: str
) -> None:
    await service.restart()
    async with service.client() as client, echoes(outside, 7):
        async with Guest(await have(client, "a", only(text))) as guest:
            attempts = Attempts(guest)
            assert await attempts.reaches("192.0.2.2:7/udp")
            assert await attempts.reaches("192.0.2.2:99/tcp")
            assert await attempts.reaches("192.0.2.2/icmp") == (":" not in text)
        await client.drop("a")


async def test_a_guest_with_an_empty_list_opens_nothing_and_answers_everyone(
    service: Service, outside: Outside, bridge_nf: None
) -> None:
    await service.restart()
    async with service.client() as client, echoes(outside, 7):
        lease = await have(client, "a", only("none"), udp(5353), tcp(8080))
        async with Guest(lease) as guest, Guest(await client.lease("b")) as neighbour:
            attempts = Attempts(guest)
            assert not await attempts.reaches("192.0.2.2:7/udp")
            assert not await attempts.reaches(f"{neighbour.ip}:7/udp", await guest.resolve(neighbour.ip))
            for address in ("127.0.0.1", str(lease.gateway4), outside.host):
                assert await ask_udp(address, 5353) == b"HELLO"
                assert await ask_tcp(address, 8080) == b"HELLO"
            with outside.entered():
                datagram, stream = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), socket.socket()
            assert await ask_udp(outside.host, 5353, sock=datagram) == b"HELLO"
            assert await ask_tcp(outside.host, 8080, sock=stream) == b"HELLO"
            towards = Attempts(neighbour)
            mac = await neighbour.resolve(guest.ip)
            for what in (f"{guest.ip}:7/udp", f"{guest.ip}:7/tcp", f"{guest.ip}/icmp"):
                assert await towards.reaches(what, mac), what
        await client.drop("a")
        await client.drop("b")


async def test_no_way_around_the_list(service: Service, outside: Outside, bridge_nf: None) -> None:
    """By a neighbour, broadcasts, fragments, another source, its own published port, or a port of the host."""
    (service.settings / "solo5.toml").write_text('[network.default]\nhost = ["53/udp"]\nfragments = true\n')
    await service.restart()
    async with service.client() as client, echoes(outside, 7):
        lease = await have(client, "a", only("192.0.2.2:7/udp"), udp(5353))
        other = await client.lease("b", udp(5354))
        async with Guest(lease) as guest, Guest(other) as neighbour:
            attempts = Attempts(guest)
            gateway, beside = await guest.resolve(guest.gateway), await guest.resolve(neighbour.ip)
            for mac in (gateway, beside):
                for what in (f"{neighbour.ip}:7/udp", f"{neighbour.ip}:7/tcp", f"{neighbour.ip}/icmp"):
                    assert not await attempts.reaches(what, mac), what
            for port in (5353, 5354):  # published, its own and the neighbour's
                assert not await attempts.reaches(f"{guest.gateway}:{port}/udp")
                assert not await attempts.reaches(f"{outside.host}:{port}/udp")
            assert not await attempts.reaches(f"{guest.gateway}:53/udp")
            assert not await attempts.reaches("255.255.255.255:7/udp", BROADCAST)
            assert not await attempts.reaches(f"{neighbour.ip}:7/udp", BROADCAST)
            # The port of a fragment is in the first one: the host puts them together before it decides.
            body, before = _udp(40000, 8, b"x" * 64), unlisted(guest)
            guest.send(guest.ipv4(gateway, IPv4Address(OUTSIDE), UDP, body[:40], number=7, fragment=MORE))
            guest.send(guest.ipv4(gateway, IPv4Address(OUTSIDE), UDP, body[40:], number=7, fragment=5))
            await until(lambda: unlisted(guest) > before)
            # As the neighbour, which has no list: dropped before all of this, as for every guest.
            before = unlisted(guest)
            forged = guest.ipv4(gateway, IPv4Address(OUTSIDE), UDP, _udp(1, 7, b"forged"), source=neighbour.ip)
            guest.send(forged)
            assert await attempts.reaches("192.0.2.2:7/udp")
            assert unlisted(guest) == before
            assert not [f for f in neighbour.frames if f[26:30] == guest.ip.packed and f[12:14] == b"\x08\0"]
            assert not [f for f in neighbour.frames if b"FORGED" in f]
        await client.drop("a")
        await client.drop("b")


async def test_listed_neighbours_and_published_ports_are_reached(
    service: Service, outside: Outside, bridge_nf: None
) -> None:
    await service.restart()
    async with service.client() as client:
        other = await client.lease("b", udp(5354, 7))
        listed = only(f"{other.address}:7", f"{outside.host}:5354/udp")
        async with Guest(await have(client, "a", listed)) as guest, Guest(other) as neighbour:
            attempts = Attempts(guest)
            beside = await guest.resolve(neighbour.ip)
            assert await attempts.reaches(f"{neighbour.ip}:7/udp", beside)
            assert await attempts.reaches(f"{neighbour.ip}:7/tcp", beside)
            assert not await attempts.reaches(f"{neighbour.ip}:8/udp", beside)
            assert await attempts.reaches(f"{outside.host}:5354/udp"), "as it is sent, before its translation"
            seen = [f for f in neighbour.frames if f[12:14] == b"\x08\0" and f[36:38] == (7).to_bytes(2)]
            assert {f[26:30] for f in seen} >= {guest.ip.packed}, "a neighbour sees the guest as it is"
        await client.drop("a")
        await client.drop("b")


async def test_an_isolated_network_stays_so_for_a_guest_with_a_list(service: Service) -> None:
    (service.settings / "solo5.toml").write_text("[network.default]\nisolated = true\n")
    await service.restart()
    async with service.client() as client:
        other = await client.lease("b")
        listed = only("0.0.0.0/0")
        async with Guest(await have(client, "a", listed)) as guest, Guest(other) as neighbour:
            for one, peer in ((guest, neighbour), (neighbour, guest)):
                mac = bytes.fromhex((other.mac if peer is neighbour else guest.mac.hex()).replace(":", ""))
                await one.send_udp(peer.ip, 7, b"to a neighbour")
                one.send(one.ipv4(mac, peer.ip, UDP, _udp(1, 7, b"to a neighbour")))
                await until_pinged(one)
                assert not [f for f in peer.frames if b"to a neighbour" in f]
        await client.drop("a")
        await client.drop("b")


async def test_a_network_has_a_list_that_no_job_widens(service: Service, outside: Outside) -> None:
    (service.settings / "solo5.toml").write_text('[network.default]\negress = ["192.0.2.2:7-8/udp"]\n')
    await service.restart()
    async with service.client() as client, echoes(outside, 7, 8, 9):
        lists: Sequence[tuple[Limits, set[int]]] = (
            (Limits(), {7, 8}),
            (only("0.0.0.0/0"), {7, 8}),
            (only("192.0.2.0/24:8-9"), {8}),
            (only("192.0.2.2:9/udp"), set()),
        )
        for number, (limits, expected) in enumerate(lists):
            async with Guest(await have(client, f"a{number}", limits)) as guest:
                attempts = Attempts(guest)
                assert {port for port in (7, 8, 9) if await attempts.reaches(f"192.0.2.2:{port}/udp")} == expected
            await client.drop(f"a{number}")


async def test_the_list_outlives_a_flush_and_the_service(service: Service, outside: Outside) -> None:
    await service.restart()
    async with service.client() as client, echoes(outside, 7, 8):
        async with Guest(await have(client, "a", only("192.0.2.2:7/udp"))) as guest:
            attempts = Attempts(guest)
            run("nft", "flush", "ruleset")
            await until(lambda: "jump egress-" in run("nft", "list", "ruleset"))
            assert await attempts.reaches("192.0.2.2:7/udp")
            assert not await attempts.reaches("192.0.2.2:8/udp")
            service.kill()
            assert not await attempts.reaches("192.0.2.2:8/udp")
            await service.restart()
            assert await attempts.reaches("192.0.2.2:7/udp")
            assert not await attempts.reaches("192.0.2.2:8/udp")
        async with service.client() as again:
            await again.drop("a")


LISTED = (
    "10.0.0.0/8:5432/tcp", "192.0.2.7", "192.0.2.2:53", "10.1.0.0/16:8000-8100/tcp", "10.2.0.0/16/icmp",
    "0.0.0.0/0:9/udp",
)  # fmt: skip
RATE = ("sent=1024K", "received=3M", "sent-packets=1000", "received-packets=99")


async def test_tables_that_others_may_change_are_repaired_when_they_do_and_only_then(service: Service) -> None:
    await service.restart("--shared-tables")
    async with service.client() as client:
        limits = Limits(egress=egress(LISTED), rate=rate(RATE))
        lease = await have(client, "a", limits)
        chain, tap = f"egress-{lease.address}", lease.tap
        run("nft", "add", "table", "ip", "other")
        await client.lease("b")
        run("nft", "delete", "table", "ip", "other")
        await client.drop("b")
        assert "repaired" not in service.log.read_text()
        before = host_state()
        for harm in (
            ("flush", "ruleset"),
            ("flush", "chain", "ip", "solo5", chain),
            ("insert", "rule", "ip", "solo5", chain, "ip daddr 0.0.0.0/1 return"),
            ("flush", "map", "ip", "solo5", "egress"),
            ("flush", "map", "bridge", "solo5", "confined"),
            ("delete", "element", "bridge", "solo5", "sent_bytes", f'{{ "{tap}" }}'),
        ):
            run("nft", *harm)
            await until(lambda: host_state() == before)
        await client.drop("a")


async def test_a_damaged_record_keeps_its_limits(service: Service) -> None:
    await service.restart()
    async with service.client() as client:
        await have(client, "a", Limits(egress=egress(LISTED), rate=rate(RATE)))
        service.kill()
        before = settled(run("nft", "--stateless", "list", "ruleset"))
        (service.state / "tasks" / "a.json").write_text("{")
        await service.restart()
        assert settled(run("nft", "--stateless", "list", "ruleset")) == before
    async with service.client() as client:
        await client.drop("a")


async def test_a_release_leaves_nothing_of_a_list(service: Service) -> None:
    await service.restart()
    async with service.client() as client:
        await client.lease("b")
        before = host_state()
        await have(client, "a", only("10.0.0.0/8:5432/tcp", "192.0.2.7"))
        assert host_state() != before
        await client.drop("a")
        assert host_state() == before
        await client.drop("b")


async def test_a_list_is_refused_where_it_cannot_be_enforced(service: Service) -> None:
    (service.settings / "solo5.toml").write_text('[network.lan]\njoin = "br0"\n')
    run("ip", "link", "add", "br0", "type", "bridge")
    run("ip", "link", "set", "br0", "up")
    await service.restart()
    async with service.client() as client:
        with pytest.raises(InvalidRequestError, match="egress of NIC service cannot be enforced in network lan"):
            await client.reserve(TaskName("a"), (nic("service", "lan", limits=only("none")),), ())
    run("ip", "link", "delete", "br0")
