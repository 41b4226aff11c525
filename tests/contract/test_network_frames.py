"""What passes where all else is forbidden carries nothing: ARP, neighbour discovery, ICMP errors of other connections.

And no packet names its own route. What is proper follows each attack on the same way: what has not arrived by then was
dropped.
"""

import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from ipaddress import IPv4Address, IPv6Address

import pytest
from tests.contract.guest import (
    ADVERT,
    ARP,
    BROADCAST,
    ICMP,
    ICMPV6,
    IPV4,
    NOWHERE,
    ROUTER_SOLICIT,
    SOLICIT,
    UDP,
    Guest,
    _sum,
    _udp,
    datagram,
    multicast,
)
from tests.contract.netns import CLIENT6, HOST6, Outside, run
from tests.contract.netservice import Service, udp, until
from tests.contract.sockets import Inbox, ask_udp
from tests.contract.test_network_drops import counts
from tests.contract.test_network_egress import only
from tests.contract.test_network_ipv6 import default, far_socket
from tests.contract.test_network_joined import LAN, PEER, Lan, lan, leased

from solo5_systemd.network.model import NO_LIMITS, Limits

__all__ = ["lan"]

SECRET, PLAIN = b"SECRET", b"plain".ljust(24, b".")
OPTIONS: Mapping[str, bytes] = {
    "loose source route": b"\x83\x07\x04\xc0\0\x02\x02\0",
    "strict source route": b"\x89\x07\x04\xc0\0\x02\x02\0",
    "record route": b"\x07\x07\x04SECR"[:7] + b"\0",
    "timestamp": b"\x44\x08\x05\0SECR",
    "router alert": b"\x94\x04\0\0",
    "unknown": b"\xde\x06SECR\0\0",
    "padding": b"\0\0\0\0",
}


def optioned(guest: Guest, mac: bytes, to: IPv4Address, options: bytes, body: bytes) -> bytes:
    ends = guest.ip.packed + to.packed
    words = 5 + len(options) // 4
    head = struct.pack("!BBHHHBB", 0x40 | words, 0, 4 * words + len(body), 0, 0x4000, 64, UDP)
    return guest.frame(mac, IPV4, head + _sum(head + b"\0\0" + ends + options) + ends + options + body)


def routed6(guest: Guest, mac: bytes, to: IPv6Address, kind: int = 0, *, hidden: bool = False) -> bytes:
    """A datagram with a routing header, or with one behind a header of destination options."""
    body = bytes([UDP, 2, kind, 1]) + bytes(4) + guest.ip6.packed + datagram(guest.ip6, to, 7, 7, SECRET)
    return guest.ipv6(mac, to, 60, bytes([43, 0, 1, 4, 0, 0, 0, 0]) + body) if hidden else guest.ipv6(mac, to, 43, body)


def raw_arp(
    guest: Guest, to: bytes, target: IPv4Address, *, kind: int = 1, head: bytes = b"", tha: bytes = b""
) -> bytes:
    first = head or struct.pack("!HHBB", 1, IPV4, 6, 4)
    body = first + struct.pack("!H", kind) + guest.mac + guest.ip.packed + (tha or bytes(6)) + target.packed
    return to + guest.mac + ARP.to_bytes(2) + body


@pytest.mark.parametrize("limits", [only(), NO_LIMITS], ids=["no egress", "open"])
async def test_arp_between_guests_carries_nothing(service: Service, limits: Limits) -> None:
    async with service.running("[network.default]\n") as client:
        lease = await client.lease("a", limits=limits)
        other = await client.lease("b")
        async with Guest(lease) as guest, Guest(other) as neighbour:
            beside = await guest.resolve(neighbour.ip)
            before = (await counts(client)).get("unsafe", 0)
            attacks = [
                plain + tail
                for plain in (raw_arp(guest, beside, neighbour.ip), raw_arp(guest, BROADCAST, neighbour.ip))
                for tail in (
                    SECRET * 200,
                    SECRET,
                    SECRET * 3,
                    bytes(18) + SECRET,
                    bytes(12) + SECRET,
                    SECRET + bytes(12),
                )  # fmt: skip
            ]
            attacks += [
                raw_arp(guest, beside, neighbour.ip, kind=kind) for kind in (0, 3, 8, int.from_bytes(SECRET[:2]))
            ]
            for head in ("000608000604", "000186dd0604", "000108000806", "000108000610"):
                attacks.append(raw_arp(guest, beside, neighbour.ip, head=bytes.fromhex(head)))
            neighbour.frames.clear()
            for attack in attacks:
                guest.send(attack)
            guest.send(raw_arp(guest, beside, neighbour.ip, kind=2, tha=SECRET))
            guest.send(raw_arp(guest, beside, neighbour.ip, tha=SECRET))
            last = raw_arp(guest, BROADCAST, IPv4Address(int(neighbour.ip) + 9), tha=SECRET)
            guest.send(last + bytes(18))
            await until(lambda: any(frame[38:42] == last[38:42] for frame in neighbour.frames))
            assert not [frame for frame in neighbour.frames if SECRET[:4] in frame]
            own = [frame for frame in neighbour.frames if frame[6:12] == guest.mac]
            assert [frame[32:38] for frame in own] == [beside, beside, BROADCAST], "the frame's destination"
            assert (await counts(client))["unsafe"] == before + len(attacks)


async def test_neighbour_discovery_between_guests_carries_nothing(service: Service, bridge_nf: None) -> None:
    async with service.running(default()) as client:
        first, second = await client.lease("a", limits=only()), await client.lease("b")
        async with Guest(first) as guest, Guest(second) as neighbour:
            beside = await guest.resolve(neighbour.ip6)
            plain = guest.solicit(neighbour.ip6, to=beside)
            told = guest.advertise(guest.ip6, to=neighbour.ip6, to_mac=beside)
            body, option = bytes(4) + neighbour.ip6.packed, b"\x01\x01" + guest.mac
            icmp = partial(guest.icmp6, beside, neighbour.ip6)
            attacks = {
                "behind a solicitation": plain + SECRET * 100,
                "behind an advertisement": told + SECRET * 100,
                "two options": icmp(SOLICIT, body + option + b"\x0e\x01" + SECRET),
                "a longer option": icmp(SOLICIT, body + b"\x01\x02" + SECRET + bytes(8)),
                "a nonce": icmp(SOLICIT, body + b"\x0e\x01" + SECRET),
                "a nonce without an address": icmp(
                    SOLICIT, bytes(4) + guest.ip6.packed + b"\x0e\x01" + SECRET, source=NOWHERE
                ),
                "reserved bits": icmp(SOLICIT, SECRET[:4] + neighbour.ip6.packed + option),
                "reserved bits told": icmp(ADVERT, b"\x60ECR" + guest.ip6.packed + b"\x02\x01" + guest.mac),
                "a flow label": plain[:14] + b"\x60\x0e\x43\x52" + plain[18:],
                "a traffic class": plain[:14] + b"\x6f\xf0\0\0" + plain[18:],
                "destination options": guest.ipv6(
                    beside, neighbour.ip6, 60, bytes([ICMPV6, 0, 1, 4]) + b"SECR" + plain[54:]
                ),
                "a solicitation of routers": guest.icmp6(
                    multicast(neighbour.ip6), neighbour.ip6, ROUTER_SOLICIT, bytes(4) + SECRET * 20
                ),
                "a routing header": routed6(guest, beside, neighbour.ip6),
            }
            neighbour.frames.clear()
            for attack in attacks.values():
                guest.send(attack)
            guest.send(told)
            await until(lambda: told[14:] in [frame[14 : len(told)] for frame in neighbour.frames])
            got = [frame for frame in neighbour.frames if frame[6:12] == guest.mac and frame[12:14] == b"\x86\xdd"]
            assert got == [told]
            assert (await counts(client))["unsafe"] >= len(attacks) - 3


async def test_ipv4_options_pass_nowhere(service: Service, outside: Outside, bridge_nf: None) -> None:
    """Guest to guest, guest to outside, guest to host, and outside to a published port."""
    there = IPv4Address(outside.address)
    async with service.running('[network.default]\nhost = ["9/udp"]\n') as client:
        lease, other = await client.lease("a", udp(5353)), await client.lease("b")
        with outside.entered():
            far = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        far.bind((outside.address, 9))
        far.setblocking(False)
        host = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        host.bind((f"{lease.gateway4}", 9))
        host.setblocking(False)
        async with Guest(lease) as guest, Guest(other) as neighbour:
            gateway, beside = await guest.resolve(guest.gateway), await guest.resolve(neighbour.ip)
            with closing(far), closing(host):
                for options in OPTIONS.values():
                    body = _udp(9, 9, SECRET)
                    for mac, to in ((beside, neighbour.ip), (gateway, neighbour.ip), (gateway, there)):
                        guest.send(optioned(guest, mac, to, options, body))
                    guest.send(optioned(guest, gateway, guest.gateway, options, body))
                for mac, to in ((beside, neighbour.ip), (gateway, there), (gateway, guest.gateway)):
                    guest.send(guest.ipv4(mac, to, UDP, _udp(9, 9, PLAIN)))
                await neighbour.heard_udp(PLAIN)
                for inbox in (Inbox(far), Inbox(host)):
                    await until(lambda inbox=inbox: PLAIN in inbox())  # type: ignore[misc]
                    assert SECRET not in inbox()
                assert not [frame for frame in neighbour.frames if b"SECR" in frame]
                assert (await counts(client))["unsafe"] == 4 * len(OPTIONS)
                before = len(guest.frames)
                for options in OPTIONS.values():
                    far.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, options if options.strip(b"\0") else b"\1" * 4)
                    far.sendto(SECRET, (outside.host, 5353))
                far.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, b"")
                far.sendto(PLAIN, (outside.host, 5353))
                await guest.heard_udp(PLAIN)
                assert not [frame for frame in guest.frames[before:] if SECRET in frame]
                assert (await counts(client))["options"] >= len(OPTIONS) - 2, "the kernel drops source routes by itself"


async def test_ipv6_routing_headers_pass_nowhere(service: Service, bridge_nf: None) -> None:
    async with service.running(default()) as client:
        first, second = await client.lease("a"), await client.lease("b")
        async with Guest(first) as guest, Guest(second) as neighbour:
            gateway, beside = await guest.resolve(guest.gateway6), await guest.resolve(neighbour.ip6)
            attacks = [
                routed6(guest, mac, neighbour.ip6, kind, hidden=hidden)
                for mac in (gateway, beside)
                for kind, hidden in ((0, False), (2, False), (3, False), (4, False), (0, True))
            ]
            neighbour.frames.clear()
            for attack in attacks:
                guest.send(attack)
            guest.send(guest.udp(beside, neighbour.ip6, 9, PLAIN))
            await neighbour.heard_udp(PLAIN)
            assert not [frame for frame in neighbour.frames if SECRET in frame]
            assert (await counts(client))["unsafe"] == len(attacks)


async def test_no_options_between_a_lan_and_a_guest(service: Service, lan: Lan) -> None:
    async with service.running(f"{LAN}ipv6 = true\n") as client, Guest(await leased(client)) as guest:
        guest.ip = IPv4Address("192.168.1.77")
        there = await guest.resolve(PEER)
        with lan.wire() as wire:
            ends = bytes.fromhex("fe80" + "00" * 13 + "07" + "ff02" + "00" * 13 + "01")
            routing = bytes([59, 2, 0, 1]) + bytes(20)
            packet6 = struct.pack("!IHBB", 6 << 28, len(routing + SECRET), 43, 255) + ends + routing + SECRET
            attacks = [optioned(guest, there, PEER, each, _udp(7, 7, SECRET)) for each in OPTIONS.values()]
            attacks += [guest.frame(b"\x33\x33\0\0\0\1", 0x86DD, packet6), raw_arp(guest, there, PEER) + SECRET * 9]
            for attack in attacks:
                guest.send(attack)
            own = guest.ipv4(there, PEER, UDP, _udp(7, 7, b"proper"))
            guest.send(own)
            inbox = Inbox(wire)
            await until(lambda: own[42:48] in [frame[42:48] for frame in inbox()])
            assert not [frame for frame in inbox() if b"SECR" in frame]
            back = [guest.mac + there + attack[12:] for attack in attacks[:-2]]
            back.append(b"\x33\x33\0\0\0\1" + there + attacks[-2][12:])
            for frame in (*back, guest.mac + there + own[12:]):
                wire.send(frame)
            await until(lambda: any(b"proper" in frame for frame in guest.frames))
            assert not [frame for frame in guest.frames if b"SECR" in frame]


def test_the_attacks_have_options() -> None:
    assert all(len(each) % 4 == 0 for each in OPTIONS.values())


# -- ICMP errors of guests: about packets of their own connections, and of no others ---------------------------------


LONG_SECRET, LONG_PLAIN = b"LONG_SECRET" * 9, b"plain" * 9
UNREACHABLE, TOO_LARGE, REDIRECT = (3, 3), (3, 4), (5, 1)
UNREACHABLE6, TOO_LARGE6 = 1, 2
CLIENT_PORT, HOST_PORT = 40007, 40100


def quoting(
    guest: Guest, mac: bytes, of: tuple[IPv4Address, int], to: tuple[IPv4Address, int], text: bytes,
    kind: tuple[int, int] = UNREACHABLE,
) -> bytes:  # fmt: skip
    """Return an error for the sender of a datagram from one end to another, which it quotes."""
    body = _udp(of[1], to[1], text)
    head = struct.pack("!BBHHHBB", 0x45, 0, 20 + len(body), 1, 0x4000, 64, UDP)
    ends = of[0].packed + to[0].packed
    quoted = head + _sum(head + b"\0\0" + ends) + ends + body
    error = bytes(kind) + _sum(bytes(kind) + bytes(6) + quoted) + bytes(4) + quoted
    return guest.ipv4(mac, of[0], ICMP, error)


def quoting6(
    guest: Guest, mac: bytes, of: tuple[IPv6Address, int], to: tuple[IPv6Address, int], text: bytes,
    kind: int = UNREACHABLE6,
) -> bytes:  # fmt: skip
    body = datagram(of[0], to[0], of[1], to[1], text)
    head = struct.pack("!IHBB", 6 << 28, len(body), UDP, 64)
    number = 1280 if kind == TOO_LARGE6 else 0
    return guest.icmp6(mac, of[0], kind, number.to_bytes(4) + head + of[0].packed + to[0].packed + body)


@pytest.fixture
def heard(outside: Outside) -> Iterator[tuple[Inbox, Inbox]]:
    """What the neighbour of the host receives, and the host."""
    with outside.entered():
        far = socket.socket(socket.AF_INET, socket.SOCK_RAW, ICMP)
    with closing(far), socket.socket(socket.AF_INET, socket.SOCK_RAW, ICMP) as here:
        yield Inbox(far), Inbox(here)


@pytest.mark.parametrize("limits", [only(), NO_LIMITS], ids=["no egress", "open"])
async def test_a_guest_reports_errors_of_its_own_connections_alone(
    service: Service, outside: Outside, heard: tuple[Inbox, Inbox], bridge_nf: None, limits: Limits
) -> None:
    beyond, here, own = IPv4Address(outside.address), IPv4Address(outside.host), heard[1]
    async with service.running() as client:
        lease = await client.lease("a", udp(5353), limits=limits)
        other = await client.lease("b", udp(5354))
        with outside.entered():
            caller = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        caller.bind((outside.address, CLIENT_PORT))
        async with Guest(lease) as guest, Guest(other) as neighbour:
            gateway = await guest.resolve(guest.gateway)
            with closing(caller), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as hosts:
                hosts.bind((outside.host, HOST_PORT))
                hosts.connect((outside.address, 9))
                hosts.send(b"the host's own")
                for port in (5353, 5354):
                    assert await ask_udp(outside.host, port, sock=caller.dup()) == b"HELLO"
                ends = (here, HOST_PORT), (beyond, 9)
                attacks = [
                    quoting(guest, gateway, (beyond, CLIENT_PORT), (neighbour.ip, 53), LONG_SECRET),
                    *(quoting(guest, gateway, *ends, LONG_SECRET, kind) for kind in (UNREACHABLE, TOO_LARGE, REDIRECT)),
                ]
                for attack in attacks:
                    guest.send(attack)
                guest.send(quoting(guest, gateway, (beyond, CLIENT_PORT), (guest.ip, 53), LONG_PLAIN))
                await until(lambda: LONG_PLAIN in b"".join(heard[0]()))
                assert LONG_SECRET not in b"".join(heard[0]()), "as the host's, by a connection of its neighbour"
                assert LONG_SECRET not in b"".join(own()), "about the host's own connection"
                assert "mtu" not in run("ip", "route", "get", outside.address)
                assert (await counts(client))["invalid"] >= len(attacks)
                hosts.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)  # nobody listens at the other address
                hosts.connect((f"{guest.ip}", 9))
                hosts.send(b"to the guest")
                await guest.heard_udp(b"to the guest")
                guest.send(quoting(guest, gateway, ends[0], (guest.ip, 9), LONG_PLAIN))
                await until(lambda: LONG_PLAIN in b"".join(own()))


async def test_a_guest_reports_errors_of_its_own_ipv6_connections_alone(
    service: Service, wan: Outside, bridge_nf: None
) -> None:
    async with service.running(default()) as client:
        lease = await client.lease("a", udp(5353), limits=only())
        other = await client.lease("b", udp(5354))
        with wan.entered():
            raw = socket.socket(socket.AF_INET6, socket.SOCK_RAW, ICMPV6)
        there = Inbox(raw)
        async with Guest(lease) as guest, Guest(other) as neighbour:
            gateway = await guest.resolve(guest.gateway6)
            with closing(raw), closing(far_socket(wan, port=CLIENT_PORT)) as caller:
                for port, whose in ((5353, guest), (5354, neighbour)):
                    caller.sendto(b"hello", (HOST6, port))
                    await whose.heard_udp(b"hello")
                beyond = IPv6Address(CLIENT6), CLIENT_PORT
                for kind in (UNREACHABLE6, TOO_LARGE6):
                    guest.send(quoting6(guest, gateway, beyond, (neighbour.ip6, 53), LONG_SECRET, kind))
                guest.send(quoting6(guest, gateway, beyond, (guest.ip6, 53), LONG_PLAIN))
                await until(lambda: LONG_PLAIN in b"".join(there()))
                assert LONG_SECRET not in b"".join(there())
