"""IPv6 on networks of this service, and what one guest can do to its neighbour discovery and groups."""

import asyncio
import json
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import closing
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_interface
from itertools import product
from pathlib import Path

import pytest
from tests.contract.family import FOUR, SIX, Family
from tests.contract.guest import (
    ADVERT,
    ALL_NODES,
    FRAGMENT,
    ICMPV6,
    NOWHERE,
    REDIRECT,
    ROUTER_ADVERT,
    ROUTER_SOLICIT,
    SOLICIT,
    UDP,
    Address,
    Guest,
    checksum,
    datagram,
    kind_of,
    multicast,
)
from tests.contract.netns import CLIENT6, HOST6, Outside, counted, link, run
from tests.contract.netservice import Client, Service, tcp, udp, until
from tests.contract.sockets import arrived, ask_udp, bound, next_at, wire
from tests.contract.test_network_exhaustion import neighbours
from tests.contract.test_network_life import until_answered

from solo5_systemd.base.errors import InvalidRequestError, TakenError
from solo5_systemd.network.derived_addresses import bridge_mac, link_local
from solo5_systemd.network.model import Lease

CONF = Path("/proc/sys/net/ipv6/conf")
ALONE = "ipv4 = false\nipv6 = true"


def default(options: str = "ipv6 = true") -> str:
    """Return settings of network `default`."""
    return f"[network.default]\n{options}\n"


def far_socket(wan: Outside, port: int = 0) -> socket.socket:
    with wan.entered():
        made = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    made.bind((CLIENT6, port))
    return made


async def test_a_published_port_answers_at_both_families(service: Service, wan: Outside) -> None:
    async with service.running(default()) as client:
        async with Guest(await client.lease("a", udp(5353), tcp(8080))) as guest:
            assert await ask_udp(HOST6, 5353, sock=far_socket(wan, port=6000)) == b"HELLO"
            asked = [f for f in guest.frames if f[12:14] == b"\x86\xdd" and f[20] == UDP]
            assert IPv6Address(asked[-1][22:38]) == IPv6Address(CLIENT6), "the client's own address"
            assert await ask_udp(str(guest.gateway6), 5353) == b"HELLO"
            assert await ask_udp(wan.host, 5353) == b"HELLO"
            await guest.send_udp(guest.gateway6, 5353, b"hairpin")
            assert await guest.heard_udp(b"HAIRPIN") == (guest.gateway6, 5353)
            # No process of the host can take the port; at ::1, whose replies the kernel does not route, it is refused.
            for kind, number in ((socket.SOCK_STREAM, 8080), (socket.SOCK_DGRAM, 5353)):
                with socket.socket(socket.AF_INET6, kind) as late, pytest.raises(OSError, match="in use"):
                    late.bind(("::", number))
            with socket.socket(socket.AF_INET6) as refused, pytest.raises(ConnectionRefusedError):
                refused.connect(("::1", 8080))
        await client.drop("a")
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as free:
            free.bind(("::", 5353))


async def test_a_port_at_one_ipv6_address_answers_there_alone(service: Service, wan: Outside) -> None:
    async with service.running(default()) as client:
        async with Guest(
            await client.lease("a", udp(5301, host_ip=HOST6), udp(5302, host_ip="::"), udp(5303))
        ) as guest:
            for port in (5301, 5302):
                assert await ask_udp(HOST6, port, sock=far_socket(wan)) == b"HELLO"
            for address, port in ((str(guest.gateway6), 5301), (wan.host, 5302)):
                with pytest.raises(TimeoutError):
                    await refused(address, port)
        for host_ip in ("::1", "fe80::1", "ff02::12"):
            with pytest.raises(InvalidRequestError, match=f"no reply of a guest leaves from {host_ip}"):
                await client.lease("b", udp(5304, host_ip=host_ip))
        with pytest.raises(TakenError, match=r"port \[::\]:5303/udp is taken by task a"):
            await client.lease("b", udp(5303, host_ip="::"))
    service.configure(default(""))
    service.end()
    async with service.running() as client:
        with pytest.raises(InvalidRequestError, match="NIC service: it has no IPv6 address in network default"):
            await client.lease("a", udp(5301, host_ip="::"))


async def refused(address: str, port: int) -> None:
    """Wait half a second for an answer that does not come: the port socket drops what no rule translates."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as client:
        client.setblocking(False)
        client.sendto(b"hello", (address, port))
        async with asyncio.timeout(0.5):
            await asyncio.get_running_loop().sock_recv(client, 100)


async def test_forged_frames_are_dropped(service: Service, bridge_nf: None) -> None:
    async with service.running(default()) as client:
        first, second = await client.lease("a"), await client.lease("b")
        async with Guest(first) as a, Guest(second) as b:
            stranger, other = bytes.fromhex("020000000099"), IPv6Address(int(a.ip6) ^ 1)
            body = b"\0\1\0\1\0\x0e\0\0FORGED"
            unspecified, nodes, routers = NOWHERE, ALL_NODES, IPv6Address("ff02::2")
            right = a.udp(b.mac, b.ip6, 7777, b"PROPER")
            forged = {
                "MAC": right[:6] + stranger + right[12:],
                "address": a.ipv6(b.mac, b.ip6, UDP, body, source=other),
                "another guest's address": a.ipv6(b.mac, b.ip6, UDP, body, source=b.ip6),
                "another link-local address": a.ipv6(b.mac, b.ip6, UDP, body, source=IPv6Address("fe80::99")),
                "no address": a.ipv6(b.mac, b.ip6, UDP, body, source=unspecified),
                "an address of another network": a.ipv6(b.mac, b.ip6, UDP, body, source=IPv6Address("2001:db8::9")),
                "a solicitation with a foreign MAC": a.solicit(b.ip6, mac=stranger),
                "a solicitation of another address": a.solicit(b.ip6, source=other),
                "detection of another guest's address": a.solicit(b.ip6, source=unspecified),
                "advertisement of another guest": a.advertise(b.ip6),
                "advertisement of the gateway": a.advertise(a.gateway6),
                "advertisement to one guest": a.advertise(a.gateway6, to=b.ip6, to_mac=b.mac),
                "advertisement with a foreign MAC": a.advertise(a.ip6, mac=stranger),
                "two options": a.icmp6(
                    multicast(nodes), nodes, ADVERT, b"\x60\0\0\0" + a.ip6.packed + b"\1\1" + a.mac + b"\2\1" + b.mac
                ),
                "behind a header": a.ipv6(
                    multicast(nodes), nodes, 60, bytes([ICMPV6, 0, 1, 4, 0, 0, 0, 0]) + a.advertise(b.ip6)[54:]
                ),
                "router advertisement": a.icmp6(multicast(nodes), nodes, ROUTER_ADVERT, bytes(12), source=a.link_local),
                "redirect": a.icmp6(multicast(nodes), nodes, REDIRECT, bytes(36), source=a.link_local),
                "DHCPv6 reply": a.ipv6(b.mac, b.ip6, UDP, datagram(a.ip6, b.ip6, 547, 546, b"reply")),
                "fragment": a.ipv6(b.mac, b.ip6, FRAGMENT, bytes([UDP, 0, 0, 1, 0, 0, 0, 9]) + body),
                "fragment of the link": a.ipv6(
                    b.mac, b.ip6, FRAGMENT, bytes([UDP, 0, 0, 1, 0, 0, 0, 9]) + body, source=a.link_local
                ),
            }
            proper = {
                "solicitation": a.solicit(b.ip6),
                "from the link": a.solicit(b.ip6, source=a.link_local),
                "own address": a.advertise(a.ip6),
                "own link-local address": a.advertise(a.link_local, source=a.link_local),
                "detection": a.solicit(a.ip6, source=unspecified),
                "router solicitation": a.icmp6(
                    multicast(routers), routers, ROUTER_SOLICIT, bytes(4), source=a.link_local
                ),
                "group": a.icmp6(multicast(nodes), nodes, 143, bytes(4), source=unspecified),
                "unicast": right,
            }
            await a.pinged6(a.gateway6, b"up")
            await b.pinged6(b.gateway6, b"up")
            with wire(first.bridge) as host:
                for frame in (*forged.values(), *proper.values()):
                    a.send(frame)
                await a.pinged6(a.gateway6, b"last")
                await b.heard(lambda f: f[6:] == right[6:])
                seen = arrived(host)
            everything = [frame[6:] for frame in (*b.frames, *seen)]
            assert [what for what, frame in forged.items() if frame[6:] in everything] == []
            assert [what for what, frame in proper.items() if frame[6:] not in everything] == []
        (network,) = await client.networks()
        assert network.dropped.by_guest("fragments") == {first.address6: 1}


async def test_without_ipv6_nothing_of_it_is_there(client: Client) -> None:
    lease = await client.lease("a")
    assert (lease.ipv6, lease.gateway6) == (None, None)
    assert "table ip6" not in run("nft", "list", "tables")
    assert (CONF / "all/forwarding").read_text() == "0\n"
    assert run("ip", "-6", "address", "show", "dev", lease.bridge) == ""


def prefix(lease: Lease) -> IPv6Network:
    assert lease.ipv6 is not None
    return lease.ipv6.network


async def test_the_host_keeps_its_default_route_and_its_sysctls(service: Service, outside: Outside) -> None:
    """With forwarding, a kernel drops the routes of router advertisements, unless accept_ra is 2."""
    link = CONF / f"{outside.link}-in"
    before = sysctls6()
    await advertised(outside)
    async with service.running(default()) as client:
        await client.lease("a")
        assert (CONF / "all/forwarding").read_text() == "1\n"
        assert (link / "accept_ra").read_text() == (CONF / "default/accept_ra").read_text() == "2\n"
        assert "proto ra" in run("ip", "-6", "route", "show", "default")
        run("ip", "-6", "route", "delete", "default")
        await advertised(outside)
        (CONF / "lo/accept_ra").write_text("0")  # by an administrator in the meantime
        service.kill()
        await service.restart()
    assert "proto ra" in run("ip", "-6", "route", "show", "default")
    assert sysctls6() == before | {"lo/accept_ra": "0"}


def sysctls6() -> dict[str, str]:
    found = (path for name in ("forwarding", "accept_ra") for path in CONF.glob(f"*/{name}"))
    return {f"{path.parent.name}/{path.name}": path.read_text().strip() for path in found}


async def advertised(outside: Outside) -> None:
    """Have the neighbour announce itself as a router, until the host has a default route."""
    with outside.entered():
        wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        wire.bind((f"{outside.link}-out", 0))
        [found] = json.loads(outside.ip("-j", "link", "show", f"{outside.link}-out"))
    mac = bytes.fromhex(found["address"].replace(":", ""))
    source, body = link_local(found["address"]), bytes([ROUTER_ADVERT, 0])
    rest = bytes([64, 0]) + (1800).to_bytes(2) + bytes(8)
    message = body + checksum(source, ALL_NODES, ICMPV6, body + b"\0\0" + rest) + rest
    head = b"\x60\0\0\0" + len(message).to_bytes(2) + bytes([ICMPV6, 255])
    frame = multicast(ALL_NODES) + mac + b"\x86\xdd" + head + source.packed + ALL_NODES.packed + message
    with closing(wire):
        async with asyncio.timeout(20):
            while "proto ra" not in run("ip", "-6", "route", "show", "default"):
                wire.send(frame)
                await asyncio.sleep(0.05)


async def test_a_host_that_forwards_by_itself_keeps_forwarding(service: Service, wan: Outside) -> None:
    (CONF / "all/forwarding").write_text("1")
    before = sysctls6()
    async with service.running(default()) as client:
        await client.lease("a")
        assert "drop" not in run("nft", "list", "chain", "ip6", "solo5", "foreign")
    assert sysctls6() == before


async def test_a_program_for_which_the_host_forwards_ipv6_is_followed(service: Service, wan: Outside) -> None:
    """By its write of 1, where the service has written 1 before it."""

    def drops(family: str) -> bool:
        return "drop" in run("nft", "list", "chain", family, "solo5", "foreign")

    async with service.running(default()) as client:
        lease = await client.lease("a")
        assert (CONF / f"{lease.bridge}/forwarding").read_text() == "1\n", "it advertises itself as a router"
        assert drops("ip6")
        (CONF / "all/forwarding").write_text("1\n")
        await until(lambda: not drops("ip6"))
        assert drops("ip")
        service.kill()
        await service.restart()
        assert not drops("ip6")
    assert (CONF / "all/forwarding").read_text() == "1\n"
    (CONF / "all/forwarding").write_text("0\n")


async def test_forwarding_that_another_program_switches_off_is_restored(service: Service, wan: Outside) -> None:
    """A kernel without forwarding drops the default routes that it has learned, and packets to published ports."""
    async with service.running(default()) as client:
        async with Guest(await client.lease("a", udp(5353))):
            assert await ask_udp(HOST6, 5353, sock=far_socket(wan)) == b"HELLO"
            (CONF / "all/forwarding").write_text("0")
            await until(lambda: (CONF / "all/forwarding").read_text() == "1\n")
            assert await ask_udp(HOST6, 5353, sock=far_socket(wan)) == b"HELLO"
        await client.drop("a")
        assert (CONF / "all/forwarding").read_text() == "0\n"
    assert "net.ipv6.conf.all.forwarding was not 1: it is set again" in service.log.read_text()


@pytest.mark.parametrize("options", ["ipv6 = true", ALONE], ids=["both families", "IPv6 alone"])
async def test_what_is_lost_is_restored(service: Service, options: str) -> None:
    async with service.running(default(options)) as client:
        lease = await client.lease("a", udp(5353))
        async with Guest(lease) as guest:
            await guest.pinged6(guest.gateway6, b"before")
            conf = CONF / lease.bridge / "disable_ipv6"
            conf.write_text("1")
            await until(lambda: str(lease.gateway6) in run("ip", "-6", "address", "show", "dev", lease.bridge))
            await guest.pinged6(guest.gateway6, b"after")
            assert await ask_udp(str(guest.ip6), 7) == b"HELLO"
            service.kill()
            run("ip", "address", "del", f"{lease.gateway6}/64", "dev", lease.bridge)
            run("nft", "delete", "table", "ip6", "solo5")
            record = service.state / "tasks/a.json"
            record.write_text(record.read_text()[:-40])
            await service.restart()
            await guest.pinged6(guest.gateway6, b"again")
            assert await ask_udp(str(guest.gateway6), 5353) == b"HELLO"
            [held] = await client.reservations()
            assert (held.leases, held.ports) == ((lease,), (udp(5353),))
            assert (await client.networks())[0].without_ipv4 == (options == ALONE)


async def test_a_saved_listing_of_the_tables_can_be_read_again(service: Service, tmp_path: Path) -> None:
    """As by `nft list ruleset > /etc/nftables.conf`, where the tables have no owner."""
    saved = tmp_path / "saved"
    async with service.running(default(), "--shared-tables") as client:
        lease = await client.lease("a", udp(5353))
        async with Guest(lease) as guest:
            await guest.pinged6(guest.gateway6, b"before")
            saved.write_text("flush ruleset\n" + run("nft", "--stateless", "list", "ruleset"))
            run("nft", "-f", str(saved))
            guest.send(guest.advertise(guest.gateway6))
            await guest.pinged6(guest.gateway6, b"after")
            run("nft", "delete", "table", "ip6", "solo5")
            await until(lambda: "table ip6 solo5" in run("nft", "list", "tables"))
            await until_answered(lambda: ask_udp(str(lease.gateway6), 5353), b"HELLO")


async def test_the_connection_limit_holds_for_the_leased_address(service: Service, wan: Outside) -> None:
    with far_socket(wan, port=7) as listener:
        async with service.running(default("ipv6 = true\nconnections = 16")) as client:
            lease = await client.lease("a")
            wan.ip("route", "add", str(prefix(lease)), "via", HOST6)
            async with Guest(lease) as guest:
                await guest.pinged6(guest.gateway6, b"up")  # a connection, too
                hop = await guest.resolve(guest.gateway6)
                for number in range(40):
                    guest.send(guest.udp(hop, IPv6Address(CLIENT6), 7, b"%02d" % number, 41000 + number))
                # From its link-local address, which has no limit, a guest opens nothing.
                packet = datagram(guest.link_local, guest.gateway6, 1, 53, b"unlimited")
                guest.send(guest.ipv6(hop, guest.gateway6, UDP, packet, source=guest.link_local))
                listener.setblocking(False)
                await until(lambda: counted("ip6", "refused")[str(guest.ip6)] == 25)
                found: list[bytes] = []
                async with asyncio.timeout(20):  # the host looks for the neighbour first
                    while len(found) < 15:
                        found.append(await asyncio.get_running_loop().sock_recv(listener, 100))
                assert arrived(listener) == []
            assert (await client.networks())[0].dropped.by_guest("connections") == {lease.address6: 25}


async def test_networks_with_and_without_ipv6_come_and_go(service: Service) -> None:
    """A network with IPv6 adds table ip6 without a replacement of the others, and takes it away."""
    async with service.running("[network.back]\nipv6 = true\nconnections = 16\n") as client:
        await client.lease("a")
        handle = run("nft", "-a", "list", "tables")
        third = await client.lease("c", network="back")
        assert run("nft", "-a", "list", "tables").startswith(handle.splitlines()[0])
        assert "ct count over 16" in run("nft", "list", "chain", "ip6", "solo5", "limited")
        async with Guest(third) as guest:
            await guest.pinged6(guest.gateway6, b"up")
        await client.drop("c")
        assert "ip6" not in run("nft", "list", "tables")
        assert (CONF / "all/forwarding").read_text() == "0\n"


async def test_a_network_with_ipv6_alone_has_nothing_of_ipv4(service: Service) -> None:
    """Its paths are those of test_network_table.py."""
    async with service.running(default(ALONE)) as client:
        lease = await client.lease("a", udp(5353))
        assert (lease.ipv4, lease.gateway4) == (None, None)
        assert "inet " not in run("ip", "address", "show", "dev", lease.bridge)
        # The port of IPv4 is not this guest's: a process of the host, or another task, can have it.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
            free.bind(("0.0.0.0", 5353))
        [network] = await client.networks()
        assert (network.ipv4, network.without_ipv4, network.free) == (None, True, 9999)


async def test_a_guest_sends_nothing_by_ipv4(service: Service) -> None:
    async with service.running(default(ALONE)) as client:
        lease, near = await client.lease("a"), await client.lease("b")
        async with Guest(lease) as guest, Guest(near) as neighbour:
            await guest.pinged6(guest.gateway6, b"up")
            [host, other] = [bytes.fromhex(each.replace(":", "")) for each in (bridge_mac(lease.network), near.mac)]
            for source in ("10.153.0.7", "192.0.2.1", "0.0.0.0"):
                for to in (host, other, b"\xff" * 6):
                    address = IPv4Address(source)
                    guest.send(guest.ipv4(to, IPv4Address("192.0.2.9"), 17, b"\0" * 8, source=address))
                    guest.send(guest.arp(1, to, IPv4Address("192.0.2.1"), ip=address))
            await guest.pinged6(guest.gateway6, b"after")
            await neighbour.pinged6(neighbour.gateway6, b"after")
            assert [frame for frame in neighbour.frames if frame[12:14] in (b"\x08\0", b"\x08\x06")] == []
        [network] = await client.networks()
        assert network.dropped.by_rule()["spoofed"] == 18


async def test_networks_of_each_kind_work_together(service: Service, wan: Outside) -> None:
    async with service.running(
        f"[network.default]\n[network.both]\nipv6 = true\nreach = ['alone']\n[network.alone]\n{ALONE}\n"
    ) as client:
        await client.lease("four", udp(5301))
        both = await client.lease("both", network="both")
        alone = await client.lease("alone", udp(5302), network="alone")
        async with Guest(both) as first, Guest(alone) as second:
            await first.pinged6(first.gateway6, b"up")
            await second.pinged6(second.gateway6, b"up")
            assert await ask_udp(HOST6, 5302, sock=far_socket(wan)) == b"HELLO"
            hop = await first.resolve(first.gateway6)
            first.send(first.udp(hop, second.ip6, 7, b"reach"))
            assert await first.heard_udp(b"REACH") == (second.ip6, 7)
        await client.drop("both")
        async with Guest(alone) as second:
            await second.pinged6(second.gateway6, b"still")
        await client.drop("alone")
        assert "table ip6 solo5" not in run("nft", "list", "tables")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await ask_udp(wan.host, 5302)


# -- what one guest can do to neighbour discovery and groups of the host and of its neighbours, with real packets ----


MLD_QUERY, MLD_REPORT = 130, 143
MANY = 300
FEW = 20
"""Neighbours: two addresses of each of two guests, and the groups to which the host itself sends."""


def at(base: str, number: int) -> IPv6Address:
    return IPv6Address(int(IPv6Address(base)) + number)


async def answered(guest: Guest, router: Address | None = None) -> None:
    """Wait until the host has processed all earlier frames: it answers a solicitation after them."""
    guest.frames.clear()
    await guest.resolve(router or guest.gateway6)


FAR_RANGE = {FOUR: "198.18.0.1/20", SIX: "2001:db8:99::1/64"}
"""Of the link to the neighbour of the host."""


def destinations(a: Guest, inside: Sequence[Address], beyond: Sequence[Address], macs: Sequence[bytes]) -> list[bytes]:
    """Return frames for addresses without a lease, with an entry for each of them if a rule did not drop them."""
    if isinstance(inside[0], IPv4Address):
        return [a.udp(macs[0], to, 9, b"") for to in (*inside, *beyond)]
    links, frames = [at("fe80::1:0", number) for number in range(MANY)], list[bytes]()
    frames += [a.udp(mac, to, 9, b"x") for mac, to in product(macs, (*inside, *beyond, *links))]
    for mac, to in product(macs, (*inside, *links)):
        assert isinstance(to, IPv6Address)
        frames.append(a.ipv6(mac, to, UDP, datagram(a.link_local, to, 9, 9, b"x"), source=a.link_local))
        for source in (a.ip6, a.link_local, NOWHERE):  # as messages that pass within a link
            body = bytes(4) + a.ip6.packed
            for kind, rest in ((SOLICIT, body), (ADVERT, body), (ROUTER_SOLICIT, bytes(4)), (MLD_REPORT, bytes(4))):
                frames.append(a.icmp6(mac, to, kind, rest, source=source))
    return frames


async def test_neither_a_guest_nor_a_client_fills_the_table_of_neighbours(
    service: Service, wan: Outside, bridge_nf: None, family: Family
) -> None:
    """The host asks for the MAC of each new destination on a link, and keeps an entry: 1024 for all links."""
    uplink = f"{wan.link}-in"
    run("ip", "address", "add", FAR_RANGE[family], "dev", uplink, "nodad")
    async with service.running(family.settings('ipv4 = "10.77.0.0/20"\nrouted = true')) as client:
        first, second = await client.lease("a"), await client.lease("b")
        for lease, via in ((first.ipv4, wan.host), (first.ipv6, HOST6)):
            if lease is not None:
                wan.ip("route", "replace", str(lease.network), "via", via)
        with wan.entered():
            far = bound(family.far, 7)
        async with Guest(first) as a, Guest(second) as b:
            begun = time.monotonic()
            hop = await a.resolve(family.router(a))
            own = bytes.fromhex(link(first.tap)["address"].replace(":", ""))  # which the bridge takes for its own
            inside = [family.router(a) + 0x700 + number for number in range(MANY)]
            beyond = [ip_interface(FAR_RANGE[family]).ip + 0x100 + number for number in range(MANY)]
            for frame in destinations(a, inside, beyond, (hop, own, multicast(ALL_NODES))):
                a.send(frame)
            for to in inside:
                far.sendto(b"x", (str(to), 9))
            await answered(a, family.router(a))
            assert neighbours(first.bridge) <= (FEW if family is SIX else 3)
            # An entry for each address and, for a while, one for the group that its solicitation is sent to.
            assert neighbours(uplink) <= (2 if family is SIX else 1) * (64 + 16 * (time.monotonic() - begun)) + 9
            await b.send_udp(ip_address(family.far), 7, b"of b")
            assert (await next_at(far))[0] == b"of b"
            await until_answered(lambda: ask_udp(str(family.own(b)), 7, sock=far.dup()), b"HELLO")
        far.close()


async def test_solicitations_and_advertisements_fill_no_table(service: Service, bridge_nf: None) -> None:
    """A receiver keeps an entry for the sender of each solicitation, and takes addresses from advertisements."""
    async with service.running(default()) as client:
        first, second = await client.lease("a"), await client.lease("b")
        async with Guest(first) as a, Guest(second) as b:
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
        Guest(await client.lease("a")) as a,
        Guest(await client.lease("b")) as b,
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
        async with Guest(first) as a, Guest(second) as b:
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
        async with Guest(first) as a, Guest(await client.lease("b")) as b:
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
