"""Egress by IPv6: what a guest may open connections to, with real packets in the kernel.

Each attempt ends in one of two ways, which the test waits for: an answer, or a packet that is counted as dropped.
"""

import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import IPv6Address

import pytest
from tests.contract.guest import SYN, TCP, UDP
from tests.contract.guest6 import (
    ALL_NODES,
    ECHO_REPLY,
    ECHO_REQUEST,
    FRAGMENT,
    ICMPV6,
    NOWHERE,
    ROUTER_SOLICIT,
    Guest6,
    datagram,
    kind_of,
    multicast,
)
from tests.contract.netns import Outside, run
from tests.contract.netservice import Client, Service, host_state, tcp, udp, until
from tests.contract.test_network_egress import Attempts, echoes, have, only
from tests.contract.test_network_ipv6 import CLIENT6, HOST6, ask6, bound6, bridge_nf, far_socket, wan
from tests.contract.test_network_policy import arrived
from tests.support.nft_listing import settled

from solo5_systemd.network.guest_limits import Limits
from solo5_systemd.network.model import Lease
from solo5_systemd.settings.egress import egress

__all__ = ["bridge_nf", "wan"]

FAR6 = IPv6Address(CLIENT6)
MLD_REPORT = 143
HOP_BY_HOP, ROUTING, OPTIONS, IN_IPV6 = 0, 43, 60, 41


def count(words: str, key: str) -> int:
    """Return the packets of an element of a set of table `words`."""
    listed = json.loads(run("nft", "-j", "list", "set", *words.split()))["nftables"]
    found = (each["elem"] for item in listed for each in item.get("set", {}).get("elem", ()))
    return sum(int(each["counter"]["packets"]) for each in found if each["val"] == key)


def unlisted6(guest: Guest6) -> int:
    """Return the IPv6 packets of a guest that its egress has dropped."""
    address = str(guest.ip6)
    return count("ip6 solo5 unlisted", address) + count("bridge solo5 unlisted6", address)


class Attempts6:
    """Attempts of one guest, each from another port, with what came of each."""

    def __init__(self, guest: Guest6) -> None:
        self.guest = guest
        self._port = 42000

    async def reaches(self, to: IPv6Address | str, what: str, mac: bytes | None = None) -> bool:
        """Return whether an address answers by `PORT/udp`, `PORT/tcp` or `ping`; waits for an answer or a drop.

        Args:
            to: the destination.
            what: port and protocol.
            mac: to which the frame is sent; None: the gateway's.
        """
        guest, to = self.guest, IPv6Address(to)
        mac = mac or await guest.resolve6(guest.gateway6)
        before, frames = unlisted6(guest), len(guest.frames)
        self._port += 1
        port, _, protocol = what.partition("/")
        if protocol == "udp":
            guest.send(guest.udp6(mac, to, int(port), b"from %d" % self._port, self._port))
        elif protocol == "tcp":
            guest.send(guest.tcp6(mac, to, (self._port, int(port)), (1, 0), SYN))
        else:
            guest.send(guest.icmp6(mac, to, ECHO_REQUEST, self._port.to_bytes(2) + b"\0\1"))
        number = {"udp": UDP, "tcp": TCP}.get(protocol, ICMPV6)

        def is_answer(frame: bytes) -> bool:
            if number == ICMPV6:
                ours = kind_of(frame) == ECHO_REPLY and frame[58:60] == self._port.to_bytes(2)
            else:
                ours = frame[56:58] == self._port.to_bytes(2)
            return frame[12:14] == b"\x86\xdd" and frame[20] == number and frame[22:38] == to.packed and ours

        def answered() -> bool:
            return any(map(is_answer, guest.frames[frames:]))

        await until(lambda: answered() or unlisted6(guest) > before, 20)
        return answered()


@asynccontextmanager
async def echoes6(wan: Outside, *ports: int) -> AsyncIterator[None]:
    """Answer datagrams at ports of the neighbour of the host."""
    async with echoes(wan, *ports, bound=lambda port: far_socket(wan, port=port)):
        yield


def configure(service: Service, options: str = "") -> None:
    (service.settings / "solo5.toml").write_text(f"[network.default]\nipv6 = true\n{options}\n")


async def leased(client: Client, wan: Outside, task: str, limits: Limits, *ports: object) -> Lease:
    """Lease an address, to which the neighbour of the host has a route."""
    lease = await have(client, task, limits, *ports)  # type: ignore[arg-type]
    assert lease.ipv6 is not None
    wan.ip("route", "replace", str(lease.ipv6.network), "via", HOST6)
    return lease


LISTED = ("[2001:db8:f::2]:7/udp", "[2001:db8:f::/126]:100-102/tcp", "2001:db8:f::1/icmp", "192.0.2.2:8/udp")


async def test_a_guest_opens_connections_to_what_is_listed_and_to_nothing_else(
    service: Service, wan: Outside, bridge_nf: None
) -> None:
    configure(service)
    await service.restart()
    async with service.client() as client, echoes6(wan, 7, 8), echoes(wan, 7, 8):
        async with Guest6(await leased(client, wan, "a", only(*LISTED))) as guest:
            await guest.resolve6(guest.gateway6)
            attempts = Attempts6(guest)
            for to, what in ((CLIENT6, "7/udp"), (CLIENT6, "100/tcp"), (CLIENT6, "102/tcp"), (HOST6, "ping")):
                assert await attempts.reaches(to, what), (to, what)
            refused = (
                (CLIENT6, "8/udp"), (CLIENT6, "7/tcp"), (CLIENT6, "99/tcp"), (CLIENT6, "103/tcp"), (CLIENT6, "ping"),
                ("2001:db8:f::5", "100/tcp"), (str(guest.gateway6), "ping"),
            )  # fmt: skip
            for to, what in refused:
                assert not await attempts.reaches(to, what), (to, what)
            assert unlisted6(guest) == len(refused)
            [network] = await client.networks()
            assert network.dropped.egress == {guest.ip6: len(refused)}
            by_ipv4 = Attempts(guest)
            assert await by_ipv4.reaches("192.0.2.2:8/udp")
            assert not await by_ipv4.reaches("192.0.2.2:7/udp"), "an entry of IPv6 opens nothing by IPv4"
        await client.drop("a")


@pytest.mark.parametrize("text", ["2001:db8:f::2", "[::/0]", "[2001:db8:f::/64]:1-65535"])
async def test_an_entry_without_protocol_or_ports_is_for_all_of_them(service: Service, wan: Outside, text: str) -> None:
    configure(service)
    await service.restart()
    async with service.client() as client, echoes6(wan, 7):
        async with Guest6(await leased(client, wan, "a", only(text))) as guest:
            attempts = Attempts6(guest)
            assert await attempts.reaches(CLIENT6, "7/udp")
            assert await attempts.reaches(CLIENT6, "99/tcp")
            assert await attempts.reaches(CLIENT6, "ping") == ("]:" not in text)
        await client.drop("a")


@pytest.mark.parametrize("text", ["none", "0.0.0.0/0"])
async def test_a_list_without_ipv6_opens_nothing_by_ipv6_and_answers_everyone(
    service: Service, wan: Outside, bridge_nf: None, text: str
) -> None:
    configure(service, "routed = true")
    await service.restart()
    async with service.client() as client, echoes6(wan, 7):
        lease = await leased(client, wan, "a", only(text), udp(5353), tcp(8080))
        async with Guest6(lease) as guest, Guest6(await client.lease("b")) as neighbour:
            attempts = Attempts6(guest)
            assert not await attempts.reaches(CLIENT6, "7/udp")
            assert not await attempts.reaches(neighbour.ip6, "7/udp", await guest.resolve6(neighbour.ip6))
            assert not await attempts.reaches(guest.gateway6, "ping")
            assert await ask6(HOST6, 5353, sock=far_socket(wan)) == b"HELLO"
            assert await ask6(str(guest.ip6), 7, sock=far_socket(wan)) == b"HELLO"
            assert await ask6(str(guest.ip6), 7) == b"HELLO"
            towards = Attempts6(neighbour)
            mac = await neighbour.resolve6(guest.ip6)
            for what in ("7/udp", "7/tcp", "ping"):
                assert await towards.reaches(guest.ip6, what, mac), what
        await client.drop("a")
        await client.drop("b")


def behind(guest: Guest6, mac: bytes, to: IPv6Address, kind: int, header: bytes, port: int, word: bytes) -> bytes:
    """Return a frame with a datagram behind an extension header, whose first byte names the next one."""
    return guest.ipv6(mac, to, kind, bytes([UDP]) + header[1:] + datagram(guest.ip6, to, 40000, port, word))


def routed(guest: Guest6, mac: bytes, by: IPv6Address, to: IPv6Address, kind: int, word: bytes) -> bytes:
    """Return a frame with a datagram that a routing header of a type sends on from one address to another.

    Its checksum is that of the first one: so conntrack finds nothing wrong with it.
    """
    body = datagram(guest.ip6, by, 40000, 7, word)
    return guest.ipv6(mac, by, ROUTING, struct.pack("!BBBBI", UDP, 2, kind, 1, 0) + to.packed + body)


def fragments(guest: Guest6, mac: bytes, to: IPv6Address, kind: int, body: bytes, cut: int, number: int) -> list[bytes]:
    """Return the frames of two fragments; `cut`, a multiple of 8: where the second one begins."""
    first = struct.pack("!BBHI", kind, 0, 1, number) + body[:cut]
    return [
        guest.ipv6(mac, to, FRAGMENT, each) for each in (first, struct.pack("!BBHI", kind, 0, cut, number) + body[cut:])
    ]


PADDED = bytes([0, 0, 1, 4, 0, 0, 0, 0])
"""An extension header of options: the next header, its length, and an option that pads it to 8 bytes."""


async def test_no_way_around_the_list(service: Service, wan: Outside, bridge_nf: None) -> None:
    """By headers, fragments, sources, routes, neighbours, groups, link-local addresses, or published ports."""
    configure(service, 'host = ["53/udp"]\nfragments = true')
    await service.restart()
    async with service.client() as client, echoes6(wan, 7, 8):
        lease = await leased(client, wan, "a", only("[2001:db8:f::2]:7/udp"), udp(5353))
        other = await client.lease("b", udp(5354))
        with far_packets(wan) as far, bound6("::", 53) as host, bound6("::", 7) as host7:
            for each in (far, host, host7):
                each.setblocking(False)
            async with Guest6(lease) as a, Guest6(other) as b:
                attempts, hop, beside = Attempts6(a), await a.resolve6(a.gateway6), await a.resolve6(b.ip6)
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
        await client.drop("a")
        await client.drop("b")


def _forged(a: Guest6, b: Guest6, hop: bytes, beside: bytes) -> dict[str, bytes]:
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


def far_packets(wan: Outside) -> socket.socket:
    """Return a socket of all packets that arrive at the neighbour of the host."""
    with wan.entered():
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))  # ETH_P_ALL
        made.bind((f"{wan.link}-out", 0))
    return made


async def test_a_guest_with_a_list_is_found_and_finds_routers(service: Service, wan: Outside, bridge_nf: None) -> None:
    """Neighbour discovery, detection of duplicates, router solicitations and groups, as without a list."""
    configure(service)
    await service.restart()
    async with service.client() as client:
        lease, other = await leased(client, wan, "a", only("none")), await client.lease("b")
        async with Guest6(lease) as a, Guest6(other) as b:
            assert await b.resolve6(a.ip6) == a.mac
            assert await b.resolve6(a.link_local) == a.mac
            assert await a.resolve6(b.ip6) == b.mac
            assert await a.resolve6(a.gateway6) != b.mac
            routers, groups = IPv6Address("ff02::2"), IPv6Address("ff02::16")
            with icmp_of_host(lease.bridge) as host:
                for source in (a.link_local, NOWHERE):
                    a.send(a.icmp6(multicast(routers), routers, ROUTER_SOLICIT, bytes(4), source=source))
                a.send(a.icmp6(multicast(groups), groups, MLD_REPORT, bytes(4), source=a.link_local))
                seen: list[bytes] = []

                def solicited() -> bool:
                    seen.extend(arrived(host))
                    return len([each for each in seen if each[0] == ROUTER_SOLICIT]) == 2

                await until(solicited)
            await b.pinged6(b.gateway6, b"last")
            assert not [f for f in b.frames if kind_of(f) in (ROUTER_SOLICIT, MLD_REPORT) and f[6:12] == a.mac]
            assert unlisted6(a) == 0
        await client.drop("a")
        await client.drop("b")


def icmp_of_host(link: str) -> socket.socket:
    made = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, link.encode())
    group = IPv6Address("ff02::2").packed + struct.pack("@I", socket.if_nametoindex(link))
    made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group)
    return made


async def test_listed_neighbours_and_published_ports_are_reached(
    service: Service, wan: Outside, bridge_nf: None
) -> None:
    configure(service)
    await service.restart()
    async with service.client() as client:
        other = await client.lease("b", udp(5354, 7))
        listed = only(f"[{other.address6}]:7", f"[{HOST6}]:5354/udp")
        async with Guest6(await leased(client, wan, "a", listed)) as guest, Guest6(other) as neighbour:
            attempts = Attempts6(guest)
            beside = await guest.resolve6(neighbour.ip6)
            assert await attempts.reaches(neighbour.ip6, "7/udp", beside)
            assert await attempts.reaches(neighbour.ip6, "7/tcp", beside)
            assert not await attempts.reaches(neighbour.ip6, "8/udp", beside)
            assert await attempts.reaches(HOST6, "5354/udp"), "as it is sent, before its translation"
            seen = [f for f in neighbour.frames if f[12:14] == b"\x86\xdd" and f[56:58] == (7).to_bytes(2)]
            assert {f[22:38] for f in seen} >= {guest.ip6.packed}, "a neighbour sees the guest as it is"
        await client.drop("a")
        await client.drop("b")


async def test_an_isolated_network_stays_so_for_a_guest_with_a_list(service: Service, wan: Outside) -> None:
    configure(service, "isolated = true")
    await service.restart()
    async with service.client() as client:
        other = await client.lease("b")
        async with Guest6(await leased(client, wan, "a", only("[::/0]"))) as guest, Guest6(other) as neighbour:
            for one, peer in ((guest, neighbour), (neighbour, guest)):
                hop = await one.resolve6(one.gateway6)
                for mac in (hop, peer.mac):
                    one.send(one.udp6(mac, peer.ip6, 7, b"to a neighbour"))
                    one.send(one.ipv6(mac, peer.link_local, UDP, datagram(one.link_local, peer.link_local, 1, 7,
                                      b"to a neighbour"), source=one.link_local))  # fmt: skip
                await one.pinged6(one.gateway6, b"last")
                assert not [f for f in peer.frames if b"to a neighbour" in f]
        await client.drop("a")
        await client.drop("b")


async def test_a_network_has_a_list_that_no_job_widens(service: Service, wan: Outside) -> None:
    configure(service, 'egress = ["[2001:db8:f::2]:7-8/udp"]')
    await service.restart()
    async with service.client() as client, echoes6(wan, 7, 8, 9):
        lists: tuple[tuple[Limits, set[int]], ...] = (
            (Limits(), {7, 8}),
            (only("[::/0]"), {7, 8}),
            (only("[2001:db8:f::/64]:8-9"), {8}),
            (only("[2001:db8:f::2]:9/udp"), set()),
            (only("0.0.0.0/0"), set()),
        )
        for number, (limits, expected) in enumerate(lists):
            async with Guest6(await leased(client, wan, f"a{number}", limits)) as guest:
                attempts = Attempts6(guest)
                assert {port for port in (7, 8, 9) if await attempts.reaches(CLIENT6, f"{port}/udp")} == expected
            await client.drop(f"a{number}")


ENTRIES = (
    "10.0.0.0/8:5432/tcp", "[2001:db8::/32]:443/tcp", "[2001:db8::7]", "[2001:db8::2]:53", "[2001:db8:1::/48]/icmp",
    "[::/0]:9-10/udp", "[2001:db8:2::/48]/tcp",
)  # fmt: skip


async def test_tables_that_others_may_change_are_repaired_when_they_do_and_only_then(service: Service) -> None:
    configure(service)
    await service.restart("--shared-tables")
    async with service.client() as client:
        lease = await have(client, "a", Limits(egress=egress(ENTRIES)))
        assert lease.address6 is not None
        chain = f"egress-{lease.address6.packed.hex()}"
        run("nft", "add", "table", "ip", "other")
        await client.lease("b")
        run("nft", "delete", "table", "ip", "other")
        await client.drop("b")
        assert "repaired" not in service.log.read_text()
        before = host_state()
        for harm in (
            ("flush", "ruleset"),
            ("flush", "chain", "ip6", "solo5", chain),
            ("insert", "rule", "ip6", "solo5", chain, "ip6 daddr 8000::/1 return"),
            ("flush", "map", "ip6", "solo5", "egress"),
            ("delete", "table", "ip6", "solo5"),
        ):
            run("nft", *harm)
            await until(lambda: host_state() == before)
        await client.drop("a")


async def test_a_damaged_record_keeps_its_list(service: Service) -> None:
    configure(service)
    await service.restart()
    async with service.client() as client:
        await have(client, "a", Limits(egress=egress(ENTRIES)))
        service.kill()
        before = settled(run("nft", "--stateless", "list", "ruleset"))
        (service.state / "tasks" / "a.json").write_text("{")
        await service.restart()
        assert settled(run("nft", "--stateless", "list", "ruleset")) == before
    async with service.client() as client:
        await client.drop("a")


async def test_a_release_leaves_nothing_of_a_list(service: Service) -> None:
    configure(service)
    await service.restart()
    async with service.client() as client:
        await client.lease("b")
        before = host_state()
        await have(client, "a", Limits(egress=egress(ENTRIES)))
        assert host_state() != before
        await client.drop("a")
        assert host_state() == before
        await client.drop("b")
