"""What one guest can do to neighbour discovery and groups of the host and of its neighbours, with real packets."""

import json
import struct
import time
from collections.abc import Sequence
from ipaddress import IPv6Address
from itertools import product

from tests.contract.guest import UDP
from tests.contract.guest6 import (
    ADVERT,
    ALL_NODES,
    ICMPV6,
    NOWHERE,
    REDIRECT,
    ROUTER_ADVERT,
    ROUTER_SOLICIT,
    SOLICIT,
    Guest6,
    datagram,
    kind_of,
    multicast,
)
from tests.contract.netns import CLIENT6, HOST6, Outside, link, run
from tests.contract.netservice import Service
from tests.contract.test_network_exhaustion import neighbours
from tests.contract.test_network_ipv6 import CONF, default, far_socket, prefix
from tests.contract.test_network_life import until_answered
from tests.contract.test_network_paths import ask_udp

MLD_QUERY, MLD_REPORT = 130, 143
MANY = 300
FEW = 20
"""Neighbours: two addresses of each of two guests, and the groups to which the host itself sends."""


def _tap_mac(tap: str) -> bytes:
    """Return the MAC address of the host's end of a tap, which its bridge takes for its own."""
    return bytes.fromhex(link(tap)["address"].replace(":", ""))


def at(base: str, number: int) -> IPv6Address:
    return IPv6Address(int(IPv6Address(base)) + number)


async def answered(guest: Guest6) -> None:
    """Wait until the host has processed all earlier frames: it answers a solicitation after them."""
    guest.frames.clear()
    await guest.resolve(guest.gateway6)


async def test_neither_a_guest_nor_a_client_fills_the_table_of_neighbours(
    service: Service, wan: Outside, bridge_nf: None
) -> None:
    """The host solicits each new destination on a link, and keeps an entry: 1024 for all links."""
    (service.settings / "solo5.toml").write_text(default("ipv6 = true\nrouted = true"))
    run("ip", "address", "add", "2001:db8:99::1/64", "dev", f"{wan.link}-in", "nodad")
    async with service.running() as client:
        first, second = await client.lease("a"), await client.lease("b")
        wan.ip("route", "replace", str(prefix(first)), "via", HOST6)
        with far_socket(wan, port=7) as far:
            async with Guest6(first) as a, Guest6(second) as b:
                hop, begun = await a.resolve(a.gateway6), time.monotonic()
                inside = [at(str(prefix(first).network_address), 0x77770000 + number) for number in range(MANY)]
                beyond = [at("2001:db8:99::1:0", number) for number in range(MANY)]
                links = [at("fe80::1:0", number) for number in range(MANY)]
                macs = (hop, _tap_mac(first.tap), multicast(ALL_NODES))
                for mac, to in product(macs, (*inside, *beyond, *links)):
                    a.send(a.udp(mac, to, 9, b"x"))
                for mac, to in product(macs, (*inside, *links)):
                    a.send(a.ipv6(mac, to, UDP, datagram(a.link_local, to, 9, 9, b"x"), source=a.link_local))
                    for source in (a.ip6, a.link_local, NOWHERE):  # as messages that pass within a link
                        body = bytes(4) + a.ip6.packed
                        a.send(a.icmp6(mac, to, SOLICIT, body, source=source))
                        a.send(a.icmp6(mac, to, ADVERT, body, source=source))
                        a.send(a.icmp6(mac, to, ROUTER_SOLICIT, bytes(4), source=source))
                        a.send(a.icmp6(mac, to, MLD_REPORT, bytes(4), source=source))
                for to in inside:
                    far.sendto(b"x", (str(to), 9))
                await answered(a)
                assert neighbours(first.bridge) <= FEW
                # An entry for each address and, for a while, one for the group that its solicitation is sent to.
                assert neighbours(f"{wan.link}-in") <= 2 * (64 + 16 * (time.monotonic() - begun)) + 9
                await until_answered(lambda: ask_udp(str(b.ip6), 7, sock=far.dup()), b"HELLO")


async def test_solicitations_and_advertisements_fill_no_table(service: Service, bridge_nf: None) -> None:
    """A receiver keeps an entry for the sender of each solicitation, and takes addresses from advertisements."""
    async with service.running(default()) as client:
        first, second = await client.lease("a"), await client.lease("b")
        async with Guest6(first) as a, Guest6(second) as b:
            await answered(a)
            await answered(b)
            for number in range(MANY):
                own = bytes.fromhex(f"0200000000{number % 256:02x}")
                for source in (at("fe80::2:0", number), at(str(prefix(first).network_address), 0x99990000 + number)):
                    for target in (a.gateway6, b.ip6):
                        a.send(a.solicit(target, source=source))
                        a.send(a.solicit(target, source=source, mac=own))
                        a.send(own.join((a.solicit(target, source=source)[:6], a.solicit(target, source=source)[12:])))
                    a.send(a.advertise(source))
            await answered(a)
            assert neighbours(first.bridge) <= FEW
            sources = {f[22:38] for f in b.frames if kind_of(f) in (SOLICIT, ADVERT)}
            assert sources <= {each.packed for each in (a.ip6, a.link_local, a.gateway6, *_of_host(first.bridge))}


def _of_host(link: str) -> Sequence[IPv6Address]:
    [found] = json.loads(run("ip", "-j", "-6", "address", "show", "dev", link))
    return [IPv6Address(each["local"]) for each in found["addr_info"]]


async def test_solicitations_and_groups_are_as_rare_as_broadcasts(service: Service) -> None:
    """Those of one guest reach every other one: 500 a second, and a burst of 100."""
    async with (
        service.running(default()) as client,
        Guest6(await client.lease("a")) as a,
        Guest6(await client.lease("b")) as b,
    ):
        await answered(b)
        await answered(a)
        group = IPv6Address("ff02::fb")
        to_all = a.udp(multicast(group), group, 5353, b"for all")
        dropped = 0
        for frames in ([a.solicit(at("fe80::3:0", number)) for number in range(3000)], [to_all] * 3000):
            b.frames.clear()
            begun = time.monotonic()
            for frame in frames:
                a.send(frame)
            await b.pinged6(b.gateway6, b"last")
            seen = [f for f in b.frames if f[6:12] == a.mac and (kind_of(f) == SOLICIT or f[-7:] == b"for all")]
            assert len(seen) <= 100 + 500 * (time.monotonic() - begun) + 10
            (network,) = await client.networks()
            assert network.dropped.by_rule()["broadcasts"] > dropped
            dropped = network.dropped.by_rule()["broadcasts"]
            assert len(seen) > 0


async def test_no_guest_changes_routes_or_neighbours_of_the_host(
    service: Service, wan: Outside, bridge_nf: None
) -> None:
    """By advertisements, redirects and router advertisements, also behind headers, from any source, to any address."""
    async with service.running(default()) as client:
        first, second = await client.lease("a"), await client.lease("b")
        for each in ("all", first.bridge):  # as a host that would take all of it
            (CONF / each / "accept_redirects").write_text("1")
        (CONF / first.bridge / "accept_ra").write_text("2")
        async with Guest6(first) as a, Guest6(second) as b:
            await a.pinged6(a.gateway6, b"up")
            await b.pinged6(b.gateway6, b"up")
            before = run("ip", "-6", "route", "show", "table", "all"), _entries(first.bridge)
            hop = await a.resolve(a.gateway6)
            [router, *_] = [each for each in _of_host(first.bridge) if each.is_link_local]
            lifetime = bytes([64, 0]) + (1800).to_bytes(2) + bytes(8)
            there = IPv6Address(CLIENT6)
            for source in (a.ip6, a.link_local, b.ip6, b.link_local, a.gateway6, router):
                for to, mac in ((ALL_NODES, multicast(ALL_NODES)), (router, hop), (a.gateway6, hop), (b.ip6, b.mac)):
                    for target in (b.ip6, b.link_local, a.gateway6):
                        a.send(a.advertise(target, source=source, to=to, to_mac=mac))
                        a.send(a.icmp6(mac, to, SOLICIT, bytes(4) + target.packed + b"\1\1" + a.mac, source=source))
                    a.send(a.icmp6(mac, to, ROUTER_ADVERT, lifetime, source=source))
                    redirect = bytes(4) + a.link_local.packed + there.packed
                    a.send(a.icmp6(mac, to, REDIRECT, redirect, source=source))
                    for kind, rest in ((ROUTER_ADVERT, lifetime), (REDIRECT, redirect)):
                        body = bytes([ICMPV6, 0, 1, 4, 0, 0, 0, 0]) + a.icmp6(mac, to, kind, rest, source=source)[54:]
                        a.send(a.ipv6(mac, to, 60, body, source=source))
            await a.pinged6(a.gateway6, b"last")
            await b.pinged6(b.gateway6, b"last")
            assert (run("ip", "-6", "route", "show", "table", "all"), _entries(first.bridge)) == before
            assert not [f for f in b.frames if kind_of(f) in (ROUTER_ADVERT, REDIRECT) and f[6:12] == a.mac]
            adverts = [f for f in b.frames if kind_of(f) == ADVERT and f[6:12] == a.mac]
            assert {f[62:78] for f in adverts} <= {a.ip6.packed, a.link_local.packed}


def _entries(link: str) -> dict[str, str]:
    found = json.loads(run("ip", "-j", "-6", "neigh", "show", "dev", link))
    return {each["dst"]: each.get("lladdr", "") for each in found if not each["dst"].startswith("fe80")}


async def test_a_guest_is_a_member_of_groups_and_no_querier(service: Service, bridge_nf: None) -> None:
    """A querier gets the traffic of all groups from a bridge that learns them, such as one of the LAN."""
    async with service.running(default()) as client:
        first = await client.lease("a")
        async with Guest6(first) as a, Guest6(await client.lease("b")) as b:
            await answered(a)
            await answered(b)
            groups = IPv6Address("ff02::16")
            for source in (a.link_local, a.ip6, NOWHERE):
                for length in (20, 24):  # of MLDv1 and MLDv2
                    a.send(a.icmp6(multicast(ALL_NODES), ALL_NODES, MLD_QUERY, bytes(length), source=source))
            for number in range(MANY):
                record = struct.pack("!HHBBH", 0, 1, 4, 0, 0) + at("ff05::", number).packed
                a.send(a.icmp6(multicast(groups), groups, MLD_REPORT, record, source=a.link_local))
            await b.pinged6(b.gateway6, b"last")
            kinds = [kind_of(f) for f in b.frames if f[6:12] == a.mac]
            assert MLD_REPORT in kinds
            assert MLD_QUERY not in kinds
            assert run("bridge", "mdb", "show", "dev", first.bridge) == ""
            (network,) = await client.networks()
            assert network.dropped.by_rule()["unsafe"] == 3 * 2
