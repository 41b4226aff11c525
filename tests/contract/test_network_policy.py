"""The policy of networks with real packets: attacks fail by default, and each option opens its own path only.

The rules by single packets are in tests/fast/network/test_nft_rules.py.
"""

import json
import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from tests.contract.guest import ICMP, UDP, Guest
from tests.contract.netns import Outside, link, run
from tests.contract.netservice import Client, Service, nic, udp, until
from tests.contract.test_network_paths import BRIDGE_NF, ask_udp, bridge_nf

from solo5_systemd.network.model import Lease
from solo5_systemd.settings.network_policy import HostPort, NetworkPolicy

__all__ = ["bridge_nf"]

METADATA = IPv4Address("169.254.169.254")
ELSEWHERE = (IPv4Address("168.63.129.16"), IPv4Address("100.100.100.200"))
"""The metadata services of Azure and Alibaba Cloud."""

FORWARD = Path("/proc/sys/net/ipv4/ip_forward")
ECHO = b"\x08\0\xf7\xff\0\0\0\0"


@pytest.fixture
def elsewhere(namespace: None) -> Iterator[Outside]:
    """A client on another link of the host."""
    other = Outside("far", "198.51.100.1", "198.51.100.2")
    yield other
    other.close()


def bound(address: str, port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
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
    return [frame[42:] for frame in guest.frames if frame[12:14] == b"\x08\0" and frame[23] == UDP]


def datagram(data: bytes) -> bytes:
    return struct.pack("!HHHH", 4000, 7777, 8 + len(data), 0) + data


async def until_pinged(guest: Guest) -> None:
    """Wait for a reply of the gateway: it has processed all earlier packets."""
    before = len(guest.frames)
    guest.send(guest.ipv4(await guest.resolve(guest.gateway), guest.gateway, ICMP, ECHO))
    await until(lambda: any(f[23] == ICMP and f[34] == 0 for f in guest.frames[before:] if f[12:14] == b"\x08\0"), 60)


class Scene:
    """Guests of two networks, a client on each of two links of the host, and listeners at all destinations.

    Every attempt is made, and a packet that is let through in any case follows it on the same way: what has not
    arrived by then was dropped.
    """

    def __init__(
        self, guests: tuple[Guest, Guest, Guest], outside: Outside, elsewhere: Outside, *, neighbours: bool
    ) -> None:
        self.a, self.b, self.c = guests
        self.outside, self.elsewhere, self.neighbours = outside, elsewhere, neighbours

    async def attempts(self) -> set[str]:
        """Return the open paths."""
        for neighbour in (self.outside, self.elsewhere):
            neighbour.ip("route", "replace", "default", "via", neighbour.host)
        for address in (METADATA, *ELSEWHERE):
            self.outside.ip("address", "replace", f"{address}/32", "dev", "lo")
            run("ip", "route", "replace", str(address), "via", self.outside.address)
        with self.outside.entered():
            lan, metadata = bound("0.0.0.0", 7), bound("0.0.0.0", 80)
        with self.elsewhere.entered():
            far = bound("0.0.0.0", 7)
        service, api = bound("0.0.0.0", 53), bound("0.0.0.0", 4646)
        with closing(lan), closing(metadata), closing(far), closing(service), closing(api):
            return await self._attempts(lan, metadata, far, service, api)

    async def _attempts(
        self,
        lan: socket.socket,
        metadata: socket.socket,
        far: socket.socket,
        service: socket.socket,
        api: socket.socket,
    ) -> set[str]:
        a, b, c = self.a, self.b, self.c
        lan.sendto(b"lan to a", (str(a.ip), 7777))
        lan.sendto(b"lan to c", (str(c.ip), 7777))
        lan.sendto(b"lan to far", (self.elsewhere.address, 7))
        await a.send_udp(c.ip, 7777, b"a to c")
        await c.send_udp(a.ip, 7777, b"c to a")
        await a.send_udp(b.ip, 7777, b"a to b by the gateway")
        a.send(a.ipv4(b.mac, b.ip, UDP, struct.pack("!HHHH", 1, 7777, 8 + 13, 0) + b"a to b itself"))
        for address in (a.gateway, IPv4Address(self.outside.host), c.gateway):
            await a.send_udp(address, 53, b"a to service")
            await a.send_udp(address, 4646, b"a to api")
        await a.send_udp(METADATA, 80, b"a to metadata")
        for address in ELSEWHERE:
            await a.send_udp(address, 80, f"a to metadata at {address}".encode())
        await a.send_udp(IPv4Address(self.outside.address), 7, b"a to lan")
        await until_pinged(a)
        await until_pinged(c)
        # Published ports are for all.
        with self.outside.entered():
            client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        assert await ask_udp(self.outside.host, 5301, sock=client) == b"HELLO"
        await a.send_udp(a.gateway, 5303, b"published")
        assert await a.heard_udp(b"PUBLISHED") == (a.gateway, 5303)
        if self.neighbours:
            await a.send_udp(a.gateway, 5302, b"neighbour")
            assert await a.heard_udp(b"NEIGHBOUR") == (a.gateway, 5302)
        everything = [*heard(a), *heard(b), *heard(c)]
        for listener in (lan, metadata, far, service, api):
            everything += arrived(listener)
        words = {each.decode(errors="replace").rstrip("\0") for each in everything}
        return {each for each in words if " to " in each}


async def scene(client: Client, outside: Outside, elsewhere: Outside, *, neighbours: bool = True) -> set[str]:
    first = await client.lease("a", udp(5301))
    second = await client.lease("b", udp(5302))
    third = (await client.have("c", udp(5303), nics=(nic("service", "back"),))).leases[0]
    async with Guest(first) as a, Guest(second) as b, Guest(third) as c:
        ways = await Scene((a, b, c), outside, elsewhere, neighbours=neighbours).attempts()
    for task in "abc":
        await client.drop(task)
    return ways


WITHIN = {"a to b by the gateway", "a to b itself"}


@pytest.mark.parametrize(
    ("options", "opened"),
    [
        ("", set()),
        ("routed = true", {"lan to a"}),
        ('reach = ["back"]', {"a to c"}),
        ('host = ["53/udp"]', {"a to service"}),
        ("metadata = true", {"a to metadata", *(f"a to metadata at {address}" for address in ELSEWHERE)}),
        ("isolated = true", set()),
    ],
    ids=["nothing", "routed", "reach", "host", "metadata", "isolated"],
)
async def test_only_what_is_opened_is_open(
    service: Service, outside: Outside, elsewhere: Outside, bridge_nf: None, options: str, opened: set[str]
) -> None:
    (service.settings / "solo5.toml").write_text(f"[network.default]\n{options}\n[network.back]\n")
    await service.restart()
    isolated = options == "isolated = true"
    # br_netfilter keeps a translated packet on the bridge, whose isolated ports then do not meet.
    bridged = BRIDGE_NF.exists() and BRIDGE_NF.read_text() == "1\n"
    async with service.client() as client:
        ways = await scene(client, outside, elsewhere, neighbours=not (isolated and bridged))
    assert ways == {"a to lan"} | (set() if isolated else WITHIN) | opened


async def test_a_host_that_forwards_by_itself_goes_on_doing_so(
    service: Service, outside: Outside, elsewhere: Outside
) -> None:
    FORWARD.write_text("1")
    (service.settings / "solo5.toml").write_text("[network.back]\n")
    await service.restart()
    async with service.client() as client:
        assert await scene(client, outside, elsewhere) == {"a to lan", "lan to far"} | WITHIN
    FORWARD.write_text("0")


async def test_a_neighbour_does_not_reach_a_port_that_is_published_on_the_loopback_alone(
    service: Service, outside: Outside
) -> None:
    """The kernel drops packets for 127.0.0.1 from a link, unless a rule has translated the address before."""
    await service.restart()
    async with service.client() as client:
        lease = await client.lease("a", udp(5301, host_ip="127.0.0.1"), udp(5302))
        async with Guest(lease) as guest:
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
        await client.drop("a")


async def test_a_change_of_settings_holds_after_a_restart_for_networks_in_use(service: Service) -> None:
    await service.restart()
    async with service.client() as client:
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
        await client.drop("a")


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
    await service.restart()
    async with service.client() as client:
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
        for task in "abc":
            await client.drop(task)


def _is_forwarding(lease: Lease) -> bool:
    return bool(link(lease.tap)["linkinfo"]["info_slave_data"]["state"] == "forwarding")
