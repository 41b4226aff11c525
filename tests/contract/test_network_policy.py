"""The paths of packets and the policy of networks: attacks fail by default, each option opens its own path only."""

import json
import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

import pytest
from tests.contract.family import FOUR, SIX, Family, until_pinged
from tests.contract.guest import BROADCAST, SYN, TCP, UDP, Guest, multicast, wait_for_port
from tests.contract.netns import BRIDGE_NF, HOST6, Outside, link, run
from tests.contract.netservice import Client, Service, nic, udp, until
from tests.contract.sockets import Inbox, arrived, ask_udp, bound, next_at, wire

from solo5_systemd.settings.network_policy import NetworkPolicy

FORWARD = Path("/proc/sys/net/ipv4/ip_forward")


@pytest.fixture
def elsewhere(namespace: None) -> Iterator[Outside]:
    """A client on another link of the host."""
    other = Outside("far", f"{FOUR.second}1", f"{FOUR.second}2")
    run("ip", "address", "add", f"{SIX.second}1/64", "dev", "far-in", "nodad")
    other.ip("address", "add", f"{SIX.second}2/64", "dev", "far-out", "nodad")
    other.ip("route", "replace", "default", "via", other.host)
    yield other
    other.close()


def heard(guest: Guest) -> list[bytes]:
    """Return the payloads of all datagrams that a guest has received."""
    four = [frame[42:] for frame in guest.frames if frame[12:14] == b"\x08\0" and frame[23] == UDP]
    # Not the kernel's redirects, which quote the packet.
    return four + [frame[62:] for frame in guest.frames if frame[12:14] == b"\x86\xdd" and frame[20] == UDP]


def datagram(data: bytes) -> bytes:
    return struct.pack("!HHHH", 4000, 7777, 8 + len(data), 0) + data


Guests = tuple[Guest, Guest, Guest]


async def open_paths(of: Family, guests: Guests, wan: Outside, elsewhere: Outside, *, neighbours: bool) -> set[str]:
    """Return what arrives of all attempts of guests on two networks, and of clients on two links of the host.

    A packet that is let through in any case follows each on the same way: what has not arrived by then was dropped.
    """
    a, b, c = guests
    every = of.every.partition("/")[0]
    for address in of.metadata:
        wan.ip("address", "replace", address, "dev", "lo")
        run("ip", "route", "replace", address, "via", of.far)
    with wan.entered():
        lan, metadata = bound(every, 7), bound(every, 80)
        client = socket.socket(lan.family, socket.SOCK_DGRAM)
    with elsewhere.entered():
        far = bound(every, 7)
    listeners = [lan, metadata, far, bound(every, 53), bound(every, 4646)]
    for each in guests:
        await of.pinged(each)
    for to, port, word in (
        (of.own(a), 7777, b"lan to a"), (of.own(c), 7777, b"lan to c"), (f"{of.second}2", 7, b"lan to far"),
    ):  # fmt: skip
        lan.sendto(word, (str(to), port))
    await a.send_udp(of.own(c), 7777, b"a to c")
    await c.send_udp(of.own(a), 7777, b"c to a")
    await a.send_udp(of.own(b), 7777, b"a to b by the gateway")
    a.send(a.udp(b.mac, of.own(b), 7777, b"a to b itself"))
    for host in (of.router(a), ip_address(of.here), of.router(c)):
        for port, name in SERVICES.items():
            await a.send_udp(host, port, f"a to {name}".encode())
            a.send(a.tcp(await a.resolve(of.router(a)), host, (4000, port), (1, 0), SYN))
    for address in of.metadata:
        await a.send_udp(ip_address(address), 80, f"a to metadata at {address}".encode())
    await a.send_udp(ip_address(of.far), 7, b"a to lan")
    await of.pinged(a)
    await of.pinged(c)
    # Published ports are for all.
    assert await ask_udp(of.here, 5301, sock=client) == b"HELLO"
    await a.send_udp(of.router(a), 5303, b"published")
    assert await a.heard_udp(b"PUBLISHED") == (of.router(a), 5303)
    if neighbours:
        await a.send_udp(of.router(a), 5302, b"neighbour")
        assert await a.heard_udp(b"NEIGHBOUR") == (of.router(a), 5302)
    everything = [*heard(a), *heard(b), *heard(c)]
    for listener in listeners:
        everything += arrived(listener)
        listener.close()
    words = {each.decode(errors="replace").rstrip("\0") for each in everything}
    refused = {of.transport(frame)[:2] for frame in a.frames if of.protocol(frame) == TCP}  # nobody listens
    words |= {f"a to {name} by TCP" for port, name in SERVICES.items() if port.to_bytes(2) in refused}
    return {each for each in words if " to " in each}


async def scene(client: Client, of: Family, wan: Outside, elsewhere: Outside, *, neighbours: bool = True) -> set[str]:
    wan.ip("route", "replace", "default", "via", wan.host)
    leases = await client.lease("a", udp(5301)), await client.lease("b", udp(5302))
    third = await client.lease("c", udp(5303), network="back")
    for lease in (*leases, third):
        if lease.ipv6 is not None:
            wan.ip("route", "replace", str(lease.ipv6.network), "via", HOST6)
    async with Guest(leases[0]) as a, Guest(leases[1]) as b, Guest(third) as c:
        return await open_paths(of, (a, b, c), wan, elsewhere, neighbours=neighbours)


WITHIN = {"a to b by the gateway", "a to b itself"}
SERVICES = {53: "service", 4646: "api"}
"""Of the host, by their ports."""


OPENED: dict[str, set[str]] = {
    "": set(),
    "routed = true": {"lan to a"},
    'reach = ["back"]': {"a to c"},
    'host = ["53/udp", "4646/tcp"]': {"a to service", "a to api by TCP"},
    "metadata = true": {f"a to metadata at {address}" for each in (FOUR, SIX) for address in each.metadata},
    "isolated = true": set(),
}
"""What an option opens."""

CLOSED = ("", "isolated = true")
CASES = [
    (options, opened, of, bridged)
    for options, opened in OPENED.items()
    for of, bridged in ((FOUR, "0"), (FOUR, "1"), (SIX, "0"), (SIX, "1"))
    if options in CLOSED or (of, bridged) in ((FOUR, "1"), (SIX, "0"))
]


@pytest.mark.parametrize(
    ("options", "opened", "family", "bridge_nf"),
    CASES,
    indirect=["family", "bridge_nf"],
    ids=[f"{case[0] or 'nothing'}-{'IPv4' if case[2] is FOUR else 'IPv6'}-{case[3]}" for case in CASES],
)
async def test_only_what_is_opened_is_open(
    service: Service, wan: Outside, elsewhere: Outside, bridge_nf: None, family: Family, options: str, opened: set[str]
) -> None:
    isolated = options == "isolated = true"
    # br_netfilter keeps a translated packet on the bridge, whose isolated ports then do not meet.
    bridged = BRIDGE_NF.exists() and BRIDGE_NF.read_text() == "1\n"
    async with service.running(f"{family.settings(options)}[network.back]\n{family.options}") as client:
        ways = await scene(client, family, wan, elsewhere, neighbours=not (isolated and bridged))
    opened = {each for each in opened if " at " not in each or each.partition(" at ")[2] in family.metadata}
    assert ways == {"a to lan"} | (set() if isolated else WITHIN) | opened


@pytest.mark.parametrize("translated", [True, False])
async def test_what_leaves_a_network_has_the_hosts_address_or_the_guests(
    service: Service, wan: Outside, family: Family, translated: bool
) -> None:
    options = {FOUR: "masquerade = ", SIX: 'ipv6 = "2001:db8:1::/64"\ngateway6 = "2001:db8:1::5"\nnat66 = '}
    settings = f"[network.default]\n{options[family]}{str(translated).lower()}\n"
    with wan.entered():
        listener = bound(family.far, 7)
    with listener:
        async with service.running(settings) as client, Guest(await client.lease("a")) as guest:
            assert family is FOUR or str(family.router(guest)) == "2001:db8:1::5"
            await family.pinged(guest)
            await guest.send_udp(ip_address(family.far), 7, b"out")
            _, sender = await next_at(listener)
            assert sender[0] == (family.here if translated else str(family.own(guest)))
            if translated or family is SIX:
                listener.sendto(b"BACK", sender)
                assert await guest.heard_udp(b"BACK") == (ip_address(family.far), 7)


LATER = {FOUR: "192.0.2.9", SIX: "2001:db8:f::9"}


async def test_translations_follow_the_address_and_the_name_of_the_uplink(
    service: Service, wan: Outside, family: Family
) -> None:
    """Of what a guest sends, and of what comes for its published ports; nothing is repaired."""
    uplink, prefix = f"{wan.link}-in", family.link.partition("/")[2]
    with wan.entered():
        listener, asking = bound(family.far, 7), bound(family.far, 0)
    with listener, asking:
        async with service.running(family.settings("nat66 = true" if family is SIX else "")) as client:
            async with Guest(await client.lease("a", udp(5353))) as guest:
                await family.pinged(guest)
                run("ip", "address", "delete", f"{family.here}/{prefix}", "dev", uplink)
                run("ip", "address", "add", f"{LATER[family]}/{prefix}", "dev", uplink, "nodad")
                run("ip", "link", "set", uplink, "name", "uplink")
                try:
                    await guest.send_udp(ip_address(family.far), 7, b"out")
                    assert (await next_at(listener))[1][0] == LATER[family]
                    assert await ask_udp(LATER[family], 5353, sock=asking) == b"HELLO"
                finally:
                    run("ip", "link", "set", "uplink", "name", uplink)
            assert await client.recent_repairs() == ()


async def test_a_host_that_forwards_by_itself_keeps_forwarding(
    service: Service, wan: Outside, elsewhere: Outside
) -> None:
    FORWARD.write_text("1")
    async with service.running("[network.back]\n") as client:
        assert await scene(client, FOUR, wan, elsewhere) == {"a to lan", "lan to far"} | WITHIN
    FORWARD.write_text("0")


async def test_a_neighbour_does_not_reach_a_port_that_is_published_on_the_loopback_alone(
    outside: Outside, client: Client
) -> None:
    """The kernel drops packets for 127.0.0.1 from a link, unless a rule has translated the address before."""
    async with (
        Guest(await client.lease("a", udp(5301, host_ip="127.0.0.1"), udp(5302))) as guest,
    ):
        with outside.entered():
            wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
            neighbour = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with closing(wire):
            wire.bind((f"{outside.link}-out", 0))
            mac = bytes.fromhex(link(f"{outside.link}-in")["address"].replace(":", ""))
            source = IPv4Address(outside.address)
            body = struct.pack("!HHHH", 4000, 5301, 8 + 6, 0) + b"forged"
            wire.send(guest.ipv4(mac, IPv4Address("127.0.0.1"), UDP, body, source=source))
        assert await ask_udp(outside.host, 5302, sock=neighbour) == b"HELLO"
        assert await ask_udp("127.0.0.1", 5301) == b"HELLO"
        assert b"forged" not in heard(guest)


async def test_a_change_of_settings_holds_after_a_restart_for_networks_in_use(service: Service, client: Client) -> None:
    await client.lease("a")
    service.configure('[network.default]\nhost = ["9/udp"]\nisolated = true\n')
    service.end()
    await service.restart()
    with closing(bound("0.0.0.0", 9)) as listener:
        async with Guest((await client.reservations())[0].leases[0]) as guest:
            await guest.send_udp(guest.gateway, 9, b"let in")
            await until_pinged(guest)
            assert arrived(listener) == [b"let in"]
            [port] = json.loads(run("bridge", "-j", "-d", "link", "show", "dev", guest.tap))
            assert port["isolated"]
    (network,) = await client.networks()
    assert network.policy == NetworkPolicy(host=("9/udp",), isolated=True)


async def test_a_frame_for_the_bridge_itself_meets_the_rules(service: Service) -> None:
    """A bridge accepts 01:80:C2:00:00:0X itself: without a mask it learns the source and bypasses the rules."""
    listener = bound("0.0.0.0", 5399)
    async with service.running() as client, Guest(await client.lease("a")) as a, Guest(await client.lease("b")) as b:
        assert await ask_udp(str(b.ip), 7) == b"HELLO"
        body = struct.pack("!HHHH", 4000, 5399, 8 + 6, 0) + b"forged"
        for last in (0x00, 0x02, 0x03, 0x0E, 0x0F):
            group = bytes.fromhex("0180c20000") + bytes([last])
            a.send(a.frame(group, 0x88CC, b"", source=b.mac))
            a.send(a.ipv4(group, a.gateway, UDP, body))
        await a.resolve(a.gateway)
        assert await ask_udp(str(b.ip), 7) == b"HELLO", "b still has its MAC address"
        assert arrived(listener) == []
    listener.close()


async def test_a_guest_receives_no_unicast_but_its_own(bridge_nf: None, client: Client) -> None:
    """The same for a guest that has not sent a frame yet, whose MAC a learning bridge would not have."""
    leases = [await client.lease(task) for task in "abc"]
    async with Guest(leases[0]) as a, Guest(leases[1]) as b, Guest(leases[2]) as c:
        for lease in leases:
            wait_for_port(lease.tap)
        nowhere = bytes.fromhex("020000000099")
        for _ in range(100):
            a.send(a.ipv4(nowhere, c.ip, UDP, datagram(b"for a guest that is not")))
            a.send(a.ipv4(b.mac, b.ip, UDP, datagram(b"for the second guest")))
        a.send(a.ipv4(await a.resolve(c.ip), c.ip, UDP, datagram(b"for the third guest")))
        assert await a.heard_udp(b"FOR THE SECOND GUEST") == (b.ip, 7777)
        assert await a.heard_udp(b"FOR THE THIRD GUEST") == (c.ip, 7777)
        assert set(heard(a)) == {b"FOR THE SECOND GUEST", b"FOR THE THIRD GUEST"}
        assert set(heard(b)) == {b"for the second guest"}
        assert set(heard(c)) == {b"for the third guest"}


GROUP, GROUP6, PORT = IPv4Address("224.0.0.251"), IPv6Address("ff02::fb"), 7777
"""Those of mDNS, with a port of the test's."""

FIRST, SECOND = b"of IPv4", b"of IPv6"
TEXTS = {FIRST, SECOND}


def member(link: str, address: str) -> socket.socket:
    """Return a socket that receives what is sent to the group on a link."""
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, GROUP.packed + socket.inet_aton(address))
    made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, link.encode())
    made.bind(("", PORT))
    made.setblocking(False)
    return made


@pytest.mark.parametrize("isolated", [False, True])
async def test_neighbours_receive_it_unless_they_are_isolated(
    service: Service, outside: Outside, bridge_nf: None, isolated: bool
) -> None:
    policy = f"ipv6 = true\nisolated = {str(isolated).lower()}\n"
    async with service.running(f"[network.default]\n{policy}[network.other]\nipv6 = true\n") as client:
        leases = [await client.lease(name) for name in ("a", "b")]
        leases += (await client.have("c", nics=(nic("service", "other"),))).leases
        async with Guest(leases[0]) as a, Guest(leases[1]) as b, Guest(leases[2]) as c:
            with outside.entered():
                beyond = member("veth-out", outside.address)
            here = member("solo5-default", str(a.gateway))
            for guest in (a, b, c):
                await guest.resolve(guest.gateway)  # its port is up: a bridge floods to no other
            mac = b"\x01\0\x5e" + struct.pack("!I", int(GROUP) & 0x7FFFFF)[1:]
            a.send(a.ipv4(mac, GROUP, UDP, datagram(FIRST)))
            a.send(a.udp(multicast(GROUP6), GROUP6, PORT, SECOND))
            # Each path is the only one of its packets, which keep their order: after a reply, all of them have passed.
            for guest in (b, c):
                await guest.pinged6(guest.gateway6, b"after")
            await a.pinged6(a.gateway6, b"after")
            received = [{text for text in TEXTS if any(text in frame for frame in guest.frames)} for guest in (b, c)]
            assert received == [set() if isolated else TEXTS, set()]
            assert arrived(here) == arrived(beyond) == []
            for listener in (here, beyond):
                listener.close()


# -- paths of packets: published ports, hairpin, localhost, masquerading, and forged frames --------------------------


async def test_a_guest_reaches_published_ports_of_itself_and_of_neighbours(bridge_nf: None, client: Client) -> None:
    first = await client.lease("a", udp(5353))
    second = await client.lease("b")
    async with Guest(first) as a, Guest(second) as b:
        for guest in (a, b):
            await guest.send_udp(guest.gateway, 5353, b"hello")
            assert await guest.heard_udp(b"HELLO") == (guest.gateway, 5353)
        assert not [f for f in a.frames if f[:6] == BROADCAST and f[6:12] == a.mac], "its own broadcast"


async def test_a_guest_does_not_reach_the_hosts_loopback(service: Service, bridge_nf: None) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.bind(("0.0.0.0", 9))
        listener.setblocking(False)
        async with (
            service.running('[network.default]\nhost = ["9/udp"]\n') as client,
            Guest(await client.lease("a")) as guest,
        ):
            await guest.send_udp(IPv4Address("127.0.0.1"), 9, b"loopback")
            await guest.send_udp(guest.gateway, 9, b"gateway")
            assert (await next_at(listener))[0] == b"gateway"


async def test_forged_frames_are_dropped(bridge_nf: None, client: Client) -> None:
    first, second = await client.lease("a"), await client.lease("b")
    async with Guest(first) as a, Guest(second) as b:
        stranger, other = bytes.fromhex("020000000099"), IPv4Address(int(a.ip) ^ 1)
        right = a.ipv4(b.mac, b.ip, UDP, b"\0\1\0\1\0\x0e\0\0proper")
        forged = {
            "MAC": right[:6] + stranger + right[12:],
            "address": a.ipv4(b.mac, b.ip, UDP, b"\0\1\0\1\0\x0e\0\0FORGED", source=other),
            "ARP sender's address": a.arp(2, b.mac, b.ip, ip=other),
            "ARP sender's MAC": a.arp(2, b.mac, b.ip, mac=stranger),
            "the gateway in ARP": a.arp(2, BROADCAST, b.ip, ip=a.gateway),
            "IPv6": a.frame(b.mac, 0x86DD, b"\x60" + bytes(39)),
            "another protocol": a.frame(b.mac, 0x88B5, b"x"),
            "a VLAN": right[:12] + b"\x81\0\0\5" + right[12:],
            "a BPDU": a.frame(bytes.fromhex("0180c2000000"), 0x27, b"\x42\x42\3" + bytes(35)),
            "LLDP": a.frame(bytes.fromhex("0180c200000e"), 0x88CC, b"x"),
        }
        for guest in (a, b):
            await guest.resolve(guest.gateway)
        with wire(first.bridge) as host:
            for frame in forged.values():
                a.send(frame)
            a.send(right)
            await b.heard(lambda f: f[34:].startswith(right[34:48]))
            a.send(a.ipv4(await a.resolve(a.gateway), a.gateway, UDP, b"\0\1\0\1\0\x0e\0\0proper"))
            inbox = Inbox(host)
            await until(lambda: any(f.rstrip(b"\0").endswith(b"proper") and f[:6] != b.mac for f in inbox()))
            seen = inbox()
    for what, frame in forged.items():
        # From the sender's MAC on, and without the padding, which br_netfilter takes off.
        for heard in (*b.frames, *seen):
            assert heard[6:].rstrip(b"\0") != frame[6:].rstrip(b"\0"), what


async def test_two_networks_two_bridges(service: Service) -> None:
    async with service.running('[network.back]\nipv4 = "10.77.0.0/28"\nmtu = 1280\n') as client:
        reservation = await client.have("a", udp(5353, nic_name="back"), nics=(nic("front"), nic("back", "back")))
        front, back = reservation.leases
        assert (back.bridge, str(back.gateway4), back.mtu) == ("solo5-back", "10.77.0.1", 1280)
        assert front.bridge == "solo5-default"
        async with Guest(back):
            assert await ask_udp("127.0.0.1", 5353) == b"HELLO"
