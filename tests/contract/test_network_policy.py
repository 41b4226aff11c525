"""The policy of networks with real packets: attacks fail by default, and each option opens its own path only.

The rules by single packets are in tests/fast/network/test_nft_rules.py.
"""

import asyncio
import json
import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

import pytest
from tests.contract.family import FOUR, SIX, Family, until_pinged
from tests.contract.guest import UDP, Guest
from tests.contract.guest6 import Guest6, multicast
from tests.contract.netns import BRIDGE_NF, HOST6, Outside, link, run
from tests.contract.netservice import Client, Service, nic, udp, until
from tests.contract.test_network_paths import ask_udp

from solo5_systemd.network.model import Lease
from solo5_systemd.settings.network_keys import HostPort, NetworkPolicy

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


def bound(address: str, port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
    made.bind((address, port))
    made.setblocking(False)
    return made


SOL_PACKET, PACKET_AUXDATA = 263, 8  # linux/socket.h, if_packet.h
_AUXDATA = struct.Struct("=IIIHHHH")  # status, lengths, offsets, tag, its Ethernet type
_VLAN_VALID = 1 << 4


def arrived(listener: socket.socket) -> list[bytes]:
    """Return all received datagrams or frames; frames with their VLAN tag, if the socket has PACKET_AUXDATA."""
    found: list[bytes] = []
    while True:
        try:
            data, more, _, _ = listener.recvmsg(2000, socket.CMSG_SPACE(_AUXDATA.size))
        except BlockingIOError:
            return found
        for _, _, auxiliary in more:
            *_, tag, kind = values = _AUXDATA.unpack(auxiliary)
            if values[0] & _VLAN_VALID:  # the kernel has taken it off the frame
                data = data[:12] + struct.pack("!HH", kind, tag) + data[12:]
        found.append(data)


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
        await a.send_udp(host, 53, b"a to service")
        await a.send_udp(host, 4646, b"a to api")
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
    return {each for each in words if " to " in each}


async def scene(client: Client, of: Family, wan: Outside, elsewhere: Outside, *, neighbours: bool = True) -> set[str]:
    wan.ip("route", "replace", "default", "via", wan.host)
    leases = await client.lease("a", udp(5301)), await client.lease("b", udp(5302))
    third = (await client.have("c", udp(5303), nics=(nic("service", "back"),))).leases[0]
    for lease in (*leases, third):
        if lease.ipv6 is not None:
            wan.ip("route", "replace", str(lease.ipv6.network), "via", HOST6)
    async with of.guest(leases[0]) as a, of.guest(leases[1]) as b, of.guest(third) as c:
        return await open_paths(of, (a, b, c), wan, elsewhere, neighbours=neighbours)


WITHIN = {"a to b by the gateway", "a to b itself"}


OPENED: dict[str, set[str]] = {
    "": set(),
    "routed = true": {"lan to a"},
    'reach = ["back"]': {"a to c"},
    'host = ["53/udp"]': {"a to service"},
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
        async with service.running(settings) as client, family.guest(await client.lease("a")) as guest:
            assert family is FOUR or str(family.router(guest)) == "2001:db8:1::5"
            await family.pinged(guest)
            await guest.send_udp(ip_address(family.far), 7, b"out")
            async with asyncio.timeout(30):
                _, sender = await asyncio.get_running_loop().sock_recvfrom(listener, 100)
            assert sender[0] == (family.here if translated else str(family.own(guest)))
            if translated or family is SIX:
                listener.sendto(b"BACK", sender[:2])
                assert await guest.heard_udp(b"BACK") == (ip_address(family.far), 7)


async def test_a_host_that_forwards_by_itself_goes_on_doing_so(
    service: Service, wan: Outside, elsewhere: Outside
) -> None:
    FORWARD.write_text("1")
    async with service.running("[network.back]\n") as client:
        assert await scene(client, FOUR, wan, elsewhere) == {"a to lan", "lan to far"} | WITHIN
    FORWARD.write_text("0")


async def test_a_neighbour_does_not_reach_a_port_that_is_published_on_the_loopback_alone(
    service: Service, outside: Outside
) -> None:
    """The kernel drops packets for 127.0.0.1 from a link, unless a rule has translated the address before."""
    async with (
        service.running() as client,
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


async def test_a_change_of_settings_holds_after_a_restart_for_networks_in_use(service: Service) -> None:
    async with service.running() as client:
        await client.lease("a")
        (service.settings / "solo5.toml").write_text('[network.default]\nhost = ["9/udp"]\nisolated = true\n')
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
        assert network.policy == NetworkPolicy(host=(HostPort(port=9, protocol="udp"),), isolated=True)


async def test_a_frame_for_the_bridge_itself_meets_the_rules(service: Service) -> None:
    """A bridge accepts 01:80:C2:00:00:0X itself: without a mask it learns the source and bypasses the rules."""
    await service.restart()
    listener = bound("0.0.0.0", 5399)
    async with service.client() as client:
        async with Guest(await client.lease("a")) as a, Guest(await client.lease("b")) as b:
            assert await ask_udp(str(b.ip), 7) == b"HELLO"
            body = struct.pack("!HHHH", 4000, 5399, 8 + 6, 0) + b"forged"
            for last in (0x00, 0x02, 0x03, 0x0E, 0x0F):
                group = bytes.fromhex("0180c20000") + bytes([last])
                a.send(a.frame(group, 0x88CC, b"", source=b.mac))
                a.send(a.ipv4(group, a.gateway, UDP, body))
            await a.resolve(a.gateway)
            assert await ask_udp(str(b.ip), 7) == b"HELLO", "b still has its MAC address"
            assert arrived(listener) == []
        await client.drop("a")
        await client.drop("b")
    listener.close()


async def test_a_guest_receives_no_unicast_but_its_own(service: Service, bridge_nf: None) -> None:
    """The same for a guest that has not sent a frame yet, whose MAC a learning bridge would not have."""
    async with service.running() as client:
        leases = [await client.lease(task) for task in "abc"]
        async with Guest(leases[0]) as a, Guest(leases[1]) as b, Guest(leases[2]) as c:
            await until(lambda: all(map(_is_forwarding, leases)))  # some time after the guest has opened its tap
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


def _is_forwarding(lease: Lease) -> bool:
    return bool(link(lease.tap)["linkinfo"]["info_slave_data"]["state"] == "forwarding")


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
        async with Guest6(leases[0]) as a, Guest6(leases[1]) as b, Guest6(leases[2]) as c:
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
