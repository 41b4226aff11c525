"""Egress: what a guest may open connections to, with real packets in the kernel.

Each attempt ends in one of two ways, which the test waits for: an answer, or a packet that is counted as unlisted.
"""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from tests.contract.family import FOUR, OUTSIDE, SIX, Family
from tests.contract.guest import (
    ALL_NODES,
    BROADCAST,
    ECHO_REPLY,
    FRAGMENT,
    ICMP,
    ICMPV6,
    MORE,
    NOWHERE,
    ROUTER_SOLICIT,
    SYN,
    TCP,
    UDP,
    Address,
    Guest,
    _udp,
    datagram,
    kind_of,
    multicast,
)
from tests.contract.netns import CLIENT6, HOST6, Outside, counted, run
from tests.contract.netservice import Client, Service, host_state, tcp, udp, until
from tests.contract.sockets import Inbox, arrived, ask_tcp, ask_udp, bound, wire

from solo5_systemd.network.model import Lease, Limits, PortRequest
from solo5_systemd.settings.egress import egress
from solo5_systemd.settings.rate import rate

FAR6 = IPv6Address(CLIENT6)
MLD_REPORT = 143
HOP_BY_HOP, ROUTING, OPTIONS, IN_IPV6 = 0, 43, 60, 41


def only(*texts: str) -> Limits:
    return Limits(egress=egress(texts))


async def leased(client: Client, wan: Outside, task: str, limits: Limits, *ports: PortRequest) -> Lease:
    """Lease an address, to which the neighbour of the host has a route by IPv6."""
    lease = await client.lease(task, *ports, limits=limits)
    if lease.ipv6 is not None:
        wan.ip("route", "replace", str(lease.ipv6.network), "via", HOST6)
    return lease


def unlisted(guest: Guest, of: Family = FOUR) -> int:
    """Return the packets of a guest that its egress has dropped."""
    sets = (of.table, "unlisted"), ("bridge", "unlisted" if of is FOUR else "unlisted6")
    return sum(counted(*each).get(str(of.own(guest)), 0) for each in sets)


@asynccontextmanager
async def echoes(outside: Outside, *ports: int, addresses: Sequence[str] = (OUTSIDE,)) -> AsyncIterator[None]:
    """Answer datagrams at ports of the neighbour of the host."""

    class Echo(asyncio.DatagramProtocol):
        def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
            self._transport = transport

        def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
            self._transport.sendto(data.upper(), addr)

    loop, transports = asyncio.get_running_loop(), []
    for address in addresses:
        for port in ports:
            with outside.entered():
                opened = bound(address, port)
            transports.append((await loop.create_datagram_endpoint(Echo, sock=opened))[0])
    yield
    for transport in transports:
        transport.close()


class Attempts:
    """Attempts of one guest by one family, each from another port, with what came of each."""

    def __init__(self, guest: Guest, of: Family = FOUR) -> None:
        self.guest, self._family = guest, of
        self._port = 40000 if of is FOUR else 42000

    async def reaches(self, where: object, what: str, mac: bytes | None = None) -> bool:
        """Return whether an address answers by `PORT/udp`, `PORT/tcp` or `ping`; waits for an answer or a drop.

        Args:
            mac: to which the frame is sent; None: the gateway's.
        """
        guest, to, by_ipv4 = self.guest, ip_address(str(where)), self._family is FOUR
        mac = mac or await guest.resolve(self._family.router(guest))
        before, frames = unlisted(guest, self._family), len(guest.frames)
        self._port += 1
        port, _, protocol = what.partition("/")
        if protocol == "udp":
            guest.send(guest.udp(mac, to, int(port), b"from %d" % self._port, self._port))
        elif protocol == "tcp":
            guest.send(guest.tcp(mac, to, (self._port, int(port)), (1, 0), SYN))
        else:
            guest.send(guest.echo(mac, to, self._port))
        number = {"udp": UDP, "tcp": TCP}.get(protocol, ICMP if by_ipv4 else ICMPV6)
        own, reply = self._port.to_bytes(2), 0 if by_ipv4 else ECHO_REPLY

        def is_answer(frame: bytes) -> bool:
            if frame[12:14] != (b"\x08\0" if by_ipv4 else b"\x86\xdd"):
                return False
            source, body = (frame[26:30], frame[34:]) if by_ipv4 else (frame[22:38], frame[54:])
            ours = body[2:4] == own if protocol else (body[0], body[4:6]) == (reply, own)
            return frame[23 if by_ipv4 else 20] == number and source == to.packed and ours

        def answered() -> bool:
            return any(map(is_answer, guest.frames[frames:]))

        await until(lambda: answered() or unlisted(guest, self._family) > before, 20)
        return answered()


async def test_a_guest_opens_connections_to_what_is_listed_and_to_nothing_else(
    service: Service, wan: Outside, bridge_nf: None, family: Family
) -> None:
    here, far, other = family.here, family.far, SIX if family is FOUR else FOUR
    listed = (
        family.entry(far, ":7/udp"), family.entry(f"{far[:-1]}0/{30 if family is FOUR else 126}", ":100-102/tcp"),
        family.entry(here, "/icmp"), other.entry(other.far, ":8/udp"),
    )  # fmt: skip
    async with (
        service.running(family.settings()) as client,
        echoes(wan, 7, 8, addresses=(OUTSIDE, CLIENT6)),
        Guest(await leased(client, wan, "a", only(*listed))) as guest,
    ):
        attempts = Attempts(guest, family)
        for to, what in ((far, "7/udp"), (far, "100/tcp"), (far, "102/tcp"), (here, "ping")):
            assert await attempts.reaches(to, what), (to, what)
        refused = (
            (far, "8/udp"), (far, "7/tcp"), (far, "99/tcp"), (far, "103/tcp"), (far, "ping"),
            (family.near, "100/tcp"), (family.router(guest), "ping"),
        )  # fmt: skip
        for where, what in refused:
            assert not await attempts.reaches(where, what), (where, what)
        assert unlisted(guest, family) == len(refused)
        [network] = await client.networks()
        assert network.dropped.by_guest("egress") == {family.own(guest): len(refused)}
        if family is SIX:
            by_ipv4 = Attempts(guest)
            assert await by_ipv4.reaches(OUTSIDE, "8/udp")
            assert not await by_ipv4.reaches(OUTSIDE, "7/udp"), "an entry of IPv6 opens nothing by IPv4"


async def test_an_entry_without_protocol_or_ports_is_for_all_of_them(
    service: Service, wan: Outside, family: Family
) -> None:
    async with service.running(family.settings()) as client, echoes(wan, 7, addresses=[family.far]):
        for task, which, ports in (("a", family.far, ""), ("b", family.every, ""), ("c", family.link, ":1-65535")):
            listed = only(family.entry(which, ports))
            async with Guest(await leased(client, wan, task, listed)) as guest:
                attempts = Attempts(guest, family)
                assert await attempts.reaches(family.far, "7/udp")
                assert await attempts.reaches(family.far, "99/tcp")
                assert await attempts.reaches(family.far, "ping") == (not ports)


@pytest.mark.parametrize("empty", [True, False], ids=["empty", "entries of the other family"])
async def test_a_guest_without_entries_of_a_family_opens_nothing_by_it_and_answers_everyone(
    service: Service, wan: Outside, bridge_nf: None, family: Family, empty: bool
) -> None:
    listed = only("none" if empty else {FOUR: "::/0", SIX: "0.0.0.0/0"}[family])
    async with (
        service.running(family.settings("routed = true")) as client,
        echoes(wan, 7, addresses=[family.far]),
        Guest(await leased(client, wan, "a", listed, udp(5353), tcp(8080))) as guest,
        Guest(await client.lease("b")) as neighbour,
    ):
        wan.ip("route", "replace", f"{guest.ip}/32", "via", wan.host)
        attempts, own, near = Attempts(guest, family), family.own(guest), family.own(neighbour)
        assert not await attempts.reaches(family.far, "7/udp")
        assert not await attempts.reaches(near, "7/udp", await guest.resolve(near))
        assert not await attempts.reaches(family.router(guest), "ping")
        for address in (family.here, str(family.router(guest)), *(["127.0.0.1"] if family is FOUR else [])):
            assert await ask_udp(address, 5353) == b"HELLO"
            assert await ask_tcp(address, 8080) == b"HELLO"
        assert await ask_udp(str(own), 7) == b"HELLO"
        for to, port in ((family.here, 5353), (str(own), 7)):
            with wan.entered():
                asking = bound(family.far, 0)
            assert await ask_udp(to, port, sock=asking) == b"HELLO"
        with wan.entered():
            stream = socket.socket(socket.AF_INET if family is FOUR else socket.AF_INET6)
        assert await ask_tcp(family.here, 8080, sock=stream) == b"HELLO"
        towards = Attempts(neighbour, family)
        mac = await neighbour.resolve(own)
        for what in ("7/udp", "7/tcp", "ping"):
            assert await towards.reaches(own, what, mac), what


async def test_no_way_around_the_list(service: Service, outside: Outside, bridge_nf: None) -> None:
    """By a neighbour, broadcasts, fragments, another source, its own published port, or a port of the host."""
    async with (
        service.running('[network.default]\nhost = ["53/udp"]\nfragments = true\n') as client,
        echoes(outside, 7),
    ):
        lease = await client.lease("a", udp(5353), limits=only("192.0.2.2:7/udp"))
        other = await client.lease("b", udp(5354))
        async with Guest(lease) as guest, Guest(other) as neighbour:
            attempts = Attempts(guest)
            gateway, beside = await guest.resolve(guest.gateway), await guest.resolve(neighbour.ip)
            for mac in (gateway, beside):
                for what in ("7/udp", "7/tcp", "ping"):
                    assert not await attempts.reaches(neighbour.ip, what, mac), what
            for port in (5353, 5354):  # published, its own and the neighbour's
                assert not await attempts.reaches(guest.gateway, f"{port}/udp")
                assert not await attempts.reaches(outside.host, f"{port}/udp")
            assert not await attempts.reaches(guest.gateway, "53/udp")
            assert not await attempts.reaches("255.255.255.255", "7/udp", BROADCAST)
            assert not await attempts.reaches(neighbour.ip, "7/udp", BROADCAST)
            # The port of a fragment is in the first one: the host puts them together before it decides.
            body, before = _udp(40000, 8, b"x" * 64), unlisted(guest)
            guest.send(guest.ipv4(gateway, IPv4Address(OUTSIDE), UDP, body[:40], number=7, fragment=MORE))
            guest.send(guest.ipv4(gateway, IPv4Address(OUTSIDE), UDP, body[40:], number=7, fragment=5))
            await until(lambda: unlisted(guest) > before)
            # As the neighbour, which has no list: dropped before all of this, as for every guest.
            before = unlisted(guest)
            forged = guest.ipv4(gateway, IPv4Address(OUTSIDE), UDP, _udp(1, 7, b"forged"), source=neighbour.ip)
            guest.send(forged)
            assert await attempts.reaches(OUTSIDE, "7/udp")
            assert unlisted(guest) == before
            assert not [f for f in neighbour.frames if f[26:30] == guest.ip.packed and f[12:14] == b"\x08\0"]
            assert not [f for f in neighbour.frames if b"FORGED" in f]


def behind(guest: Guest, mac: bytes, to: IPv6Address, kind: int, header: bytes, port: int, word: bytes) -> bytes:
    """Return a frame with a datagram behind an extension header, whose first byte names the next one."""
    return guest.ipv6(mac, to, kind, bytes([UDP]) + header[1:] + datagram(guest.ip6, to, 40000, port, word))


def routed(guest: Guest, mac: bytes, by: IPv6Address, to: IPv6Address, kind: int, word: bytes) -> bytes:
    """Return a frame with a datagram that a routing header of a type sends on from one address to another.

    Its checksum is that of the first one: so conntrack finds nothing wrong with it.
    """
    body = datagram(guest.ip6, by, 40000, 7, word)
    return guest.ipv6(mac, by, ROUTING, struct.pack("!BBBBI", UDP, 2, kind, 1, 0) + to.packed + body)


def fragments(guest: Guest, mac: bytes, to: IPv6Address, kind: int, body: bytes, cut: int, number: int) -> list[bytes]:
    """Return the frames of two fragments; `cut`, a multiple of 8: where the second one begins."""
    first = struct.pack("!BBHI", kind, 0, 1, number) + body[:cut]
    return [
        guest.ipv6(mac, to, FRAGMENT, each) for each in (first, struct.pack("!BBHI", kind, 0, cut, number) + body[cut:])
    ]


PADDED = bytes([0, 0, 1, 4, 0, 0, 0, 0])
"""An extension header of options: the next header, its length, and an option that pads it to 8 bytes."""


async def test_no_way_around_the_list_by_ipv6(service: Service, wan: Outside, bridge_nf: None) -> None:
    """By headers, fragments, sources, routes, neighbours, groups, link-local addresses, or published ports."""
    async with (
        service.running(SIX.settings('host = ["53/udp"]\nfragments = true')) as client,
        echoes(wan, 7, 8, addresses=[CLIENT6]),
    ):
        lease = await leased(client, wan, "a", only("[2001:db8:f::2]:7/udp"), udp(5353))
        other = await client.lease("b", udp(5354))
        with wan.entered():
            packets = wire(f"{wan.link}-out")
        with packets as far, bound("::", 53) as host, bound("::", 7) as host7:
            for each in (far, host, host7):
                each.setblocking(False)
            async with Guest(lease) as a, Guest(other) as b:
                attempts, hop, beside = Attempts(a, SIX), await a.resolve(a.gateway6), await a.resolve(b.ip6)
                for mac in (hop, beside):
                    for what in ("7/udp", "7/tcp", "ping"):
                        assert not await attempts.reaches(b.ip6, what, mac), what
                for port in (5353, 5354):  # published, its own and the neighbour's
                    for to in (str(a.gateway6), HOST6):
                        assert not await attempts.reaches(to, f"{port}/udp"), (to, port)
                assert not await attempts.reaches(a.gateway6, "53/udp")
                for group in (ALL_NODES, b.ip6):
                    assert not await attempts.reaches(group, "7/udp", multicast(ALL_NODES)), group
                proper = {
                    b"behind hops": behind(a, hop, FAR6, HOP_BY_HOP, PADDED, 7, b"BEHIND HOPS"),
                    b"behind options": behind(a, hop, FAR6, OPTIONS, PADDED, 7, b"BEHIND OPTIONS"),
                }
                forged = _forged(a, b, hop, beside)
                whole = fragments(a, hop, FAR6, UDP, datagram(a.ip6, FAR6, 40000, 7, b"IN PARTS" * 8), 40, 70)
                for frame in (*forged.values(), *proper.values(), *whole):
                    a.send(frame)
                cut = datagram(a.ip6, FAR6, 40000, 8, b"WORD: cut" * 8)
                late = bytes([UDP, *PADDED[1:]]) + cut  # the first fragment ends before the port
                for frame in (
                    *fragments(a, hop, FAR6, UDP, cut, 40, 71),
                    *fragments(a, hop, FAR6, OPTIONS, late, 8, 72),
                ):
                    a.send(frame)
                assert await attempts.reaches(CLIENT6, "7/udp")
                await b.pinged6(b.gateway6, b"last")
                everywhere = [*arrived(far), *b.frames, *arrived(host), *arrived(host7)]
                assert [name for name in forged if any(b"WORD: " + name.encode() in each for each in everywhere)] == []
                assert not any(b"WORD: cut" in each for each in everywhere)
                assert [name for name in proper if not any(name.upper() in each for each in everywhere)] == []
                assert any(b"IN PARTS" in each for each in everywhere), "fragments for a listed port arrive"


def _forged(a: Guest, b: Guest, hop: bytes, beside: bytes) -> dict[str, bytes]:
    """Return frames of a guest that must reach nothing, each with its name in its text."""

    def udp6(to: IPv6Address, mac: bytes, name: str, source: IPv6Address | None = None, port: int = 7) -> bytes:
        body = datagram(source or a.ip6, to, 40000, port, b"WORD: " + name.encode())
        return a.ipv6(mac, to, UDP, body, source=source)

    def group(to: IPv6Address, mac: bytes, name: str, source: IPv6Address, kind: int = MLD_REPORT) -> bytes:
        return a.icmp6(mac, to, kind, b"\0\0\0\0WORD: " + name.encode(), source=source)

    made = {}
    for name, header in (("hops", HOP_BY_HOP), ("options", OPTIONS)):
        for where, to, mac in (("far", FAR6, hop), ("near", b.ip6, beside)):
            word = f"{name} {where}"
            made[word] = behind(a, mac, to, header, PADDED, 8, b"WORD: " + word.encode())
    for kind in (0, 2, 3, 4):
        for name, by, mac in (("far", FAR6, hop), ("host", a.gateway6, hop), ("near", b.ip6, beside)):
            word = f"route {kind} {name}"
            made[word] = routed(a, mac, by, FAR6 if name != "far" else b.ip6, kind, b"WORD: " + word.encode())
    for name, source in (("b", b.ip6), ("b link", b.link_local), ("nothing", NOWHERE), ("host", a.gateway6)):
        made[f"as {name}"] = udp6(FAR6, hop, f"as {name}", source)
        made[f"as {name} near"] = udp6(b.ip6, beside, f"as {name} near", source)
    host = IPv6Address("fe80::1")
    for name, mac in (("direct", beside), ("by the host", hop)):
        made[f"link {name}"] = udp6(b.link_local, mac, f"link {name}", a.link_local)
        made[f"from link {name}"] = udp6(b.ip6, mac, f"from link {name}", a.link_local)
        made[f"to link {name}"] = udp6(b.link_local, mac, f"to link {name}")
        made[f"report {name}"] = group(b.ip6, mac, f"report {name}", a.link_local)
        made[f"report of none {name}"] = group(b.ip6, mac, f"report of none {name}", NOWHERE)
        made[f"solicitation {name}"] = group(b.ip6, mac, f"solicitation {name}", a.link_local, ROUTER_SOLICIT)
    made["link host"] = udp6(host, hop, "link host", a.link_local, 53)
    made["far report"] = group(FAR6, hop, "far report", a.ip6)
    made["far link"] = udp6(FAR6, hop, "far link", a.link_local)
    for name, mac in (("all", multicast(ALL_NODES)), ("one", beside), ("broadcast", b"\xff" * 6)):
        made[f"nodes {name}"] = udp6(ALL_NODES, mac, f"nodes {name}")
        made[f"nodes link {name}"] = udp6(ALL_NODES, mac, f"nodes link {name}", a.link_local)
        made[f"groups {name}"] = group(IPv6Address("ff02::16"), mac, f"groups {name}", a.link_local)
        made[f"groups of none {name}"] = group(IPv6Address("ff02::16"), mac, f"groups of none {name}", NOWHERE)
        made[f"unicast {name}"] = udp6(b.ip6, mac, f"unicast {name}")
    made["mapped"] = udp6(IPv6Address("::ffff:192.0.2.2"), hop, "mapped")
    made["compatible"] = udp6(IPv6Address("::192.0.2.2"), hop, "compatible")
    made["loopback"] = udp6(IPv6Address("::1"), hop, "loopback", port=53)
    made["site"] = udp6(IPv6Address("ff05::2"), hop, "site")
    made["tunnel"] = a.ipv6(hop, FAR6, IN_IPV6, udp6(b.ip6, hop, "tunnel")[14:])
    return made


async def test_a_guest_with_a_list_is_found_and_finds_routers(service: Service, wan: Outside, bridge_nf: None) -> None:
    """Neighbour discovery, detection of duplicates, router solicitations and groups, as without a list."""
    async with service.running(SIX.settings()) as client:
        lease, other = await leased(client, wan, "a", only("none")), await client.lease("b")
        async with Guest(lease) as a, Guest(other) as b:
            assert await b.resolve(a.ip6) == a.mac
            assert await b.resolve(a.link_local) == a.mac
            assert await a.resolve(b.ip6) == b.mac
            assert await a.resolve(a.gateway6) != b.mac
            routers, groups = IPv6Address("ff02::2"), IPv6Address("ff02::16")
            with icmp_of_host(lease.bridge) as host:
                for source in (a.link_local, NOWHERE):
                    a.send(a.icmp6(multicast(routers), routers, ROUTER_SOLICIT, bytes(4), source=source))
                a.send(a.icmp6(multicast(groups), groups, MLD_REPORT, bytes(4), source=a.link_local))
                inbox = Inbox(host)
                await until(lambda: len([each for each in inbox() if each[0] == ROUTER_SOLICIT]) == 2)
            await b.pinged6(b.gateway6, b"last")
            assert not [f for f in b.frames if kind_of(f) in (ROUTER_SOLICIT, MLD_REPORT) and f[6:12] == a.mac]
            assert unlisted(a, SIX) == 0


def icmp_of_host(link: str) -> socket.socket:
    made = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, link.encode())
    group = IPv6Address("ff02::2").packed + struct.pack("@I", socket.if_nametoindex(link))
    made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group)
    return made


async def test_listed_neighbours_and_published_ports_are_reached(
    service: Service, wan: Outside, bridge_nf: None, family: Family
) -> None:
    async with (
        service.running(family.settings()) as client,
        Guest(await client.lease("b", udp(5354, 7))) as neighbour,
    ):
        near = family.own(neighbour)
        listed = only(family.entry(near, ":7"), family.entry(family.here, ":5354/udp"))
        async with Guest(await leased(client, wan, "a", listed)) as guest:
            attempts = Attempts(guest, family)
            beside = await guest.resolve(near)
            assert await attempts.reaches(near, "7/udp", beside)
            assert await attempts.reaches(near, "7/tcp", beside)
            assert not await attempts.reaches(near, "8/udp", beside)
            assert await attempts.reaches(family.here, "5354/udp"), "as it is sent, before its translation"
            assert family.own(guest) in sources(neighbour, 7, family), "a neighbour sees the guest as it is"


def sources(guest: Guest, port: int, of: Family) -> set[Address]:
    """Return the source of each packet to a port of a guest."""
    if of is FOUR:
        packets = [f for f in guest.frames if f[12:14] == b"\x08\0" and f[36:38] == port.to_bytes(2)]
        return {IPv4Address(f[26:30]) for f in packets}
    return {IPv6Address(f[22:38]) for f in guest.frames if f[12:14] == b"\x86\xdd" and f[56:58] == port.to_bytes(2)}


async def test_an_isolated_network_stays_so_for_a_guest_with_a_list(
    service: Service, wan: Outside, family: Family
) -> None:
    async with service.running(family.settings("isolated = true")) as client:
        lease, other = await leased(client, wan, "a", only(family.entry(family.every))), await client.lease("b")
        async with Guest(lease) as guest, Guest(other) as neighbour:
            for one, peer in ((guest, neighbour), (neighbour, guest)):
                for mac in (await one.resolve(family.router(one)), peer.mac):
                    one.send(one.udp(mac, family.own(peer), 7, b"to a neighbour"))
                    if family is SIX:
                        own, to = one.link_local, peer.link_local
                        one.send(one.ipv6(mac, to, UDP, datagram(own, to, 1, 7, b"to a neighbour"), source=own))
                await family.pinged(one)
                assert not [f for f in peer.frames if b"to a neighbour" in f]


async def test_a_network_has_a_list_that_no_job_widens(service: Service, wan: Outside, family: Family) -> None:
    async with (
        service.running(family.settings(f'egress = ["{family.entry(family.far, ":7-8/udp")}"]')) as client,
        echoes(wan, 7, 8, 9, addresses=[family.far]),
    ):
        lists: Sequence[tuple[Limits, set[int]]] = (
            (Limits(), {7, 8}),
            (only(family.entry(family.every)), {7, 8}),
            (only(family.entry(family.link, ":8-9")), {8}),
            (only(family.entry(family.far, ":9/udp")), set()),
            (only("::/0" if family is FOUR else "0.0.0.0/0"), set()),
        )
        for number, (limits, expected) in enumerate(lists):
            async with Guest(await leased(client, wan, f"a{number}", limits)) as guest:
                attempts = Attempts(guest, family)
                assert {port for port in (7, 8, 9) if await attempts.reaches(family.far, f"{port}/udp")} == expected
            await client.drop(f"a{number}")


async def test_the_list_outlives_a_flush_and_the_service(service: Service, wan: Outside, family: Family) -> None:
    async with service.running(family.settings()) as client, echoes(wan, 7, 8, addresses=[family.far]):
        listed = only(family.entry(family.far, ":7/udp"))
        async with Guest(await leased(client, wan, "a", listed)) as guest:
            attempts = Attempts(guest, family)
            run("nft", "flush", "ruleset")
            await until(lambda: "jump egress-" in run("nft", "list", "ruleset"))
            assert await attempts.reaches(family.far, "7/udp")
            assert not await attempts.reaches(family.far, "8/udp")
            service.kill()
            assert not await attempts.reaches(family.far, "8/udp")
            await service.restart()
            assert await attempts.reaches(family.far, "7/udp")
            assert not await attempts.reaches(family.far, "8/udp")


LISTED = (
    "10.0.0.0/8:5432/tcp", "192.0.2.7", "192.0.2.2:53", "10.1.0.0/16:8000-8100/tcp", "10.2.0.0/16/icmp",
    "0.0.0.0/0:9/udp", "[2001:db8::/32]:443/tcp", "[2001:db8::7]", "[2001:db8::2]:53", "[2001:db8:1::/48]/icmp",
    "[::/0]:9-10/udp", "[2001:db8:2::/48]/tcp",
)  # fmt: skip
LIMITS = Limits(
    egress=egress(LISTED), rate=rate(("sent=1024K", "received=3M", "sent-packets=1000", "received-packets=99"))
)


async def test_a_release_leaves_nothing_of_a_list(service: Service, family: Family) -> None:
    async with service.running(family.settings()) as client:
        await client.lease("b")
        before = host_state()
        await client.lease("a", limits=LIMITS)
        assert host_state() != before
        await client.drop("a")
        assert host_state() == before
