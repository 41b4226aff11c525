"""A guest on a tap: opens it as a tender does, and answers ARP, neighbour discovery, ping, UDP and TCP.

UDP and TCP answers are what came, in capitals. Anything else can be sent frame by frame.
"""

import asyncio
import contextlib
import fcntl
import os
import socket
import struct
import time
from collections.abc import Callable
from contextlib import closing
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Self

from solo5_systemd.base.names import NETWORK_NAMESPACES
from solo5_systemd.network.derived_addresses import link_local
from solo5_systemd.network.model import Lease
from solo5_systemd.network.namespaces import NetworkNamespace
from solo5_systemd.network.neighbours import Neighbours

_TUNSETIFF = 0x400454CA
IFF_TAP_NO_PI, IFF_VNET_HDR = 0x1002, 0x4000
IPV4, ARP, IPV6 = 0x0800, 0x0806, 0x86DD
ICMP, TCP, UDP = 1, 6, 17
SYN, FIN, RST, ACK, _PSH = 2, 1, 4, 16, 8
WHOLE, MORE = 0x4000, 0x2000
"""Not to be fragmented; a fragment that another one follows. Its place, in eight bytes, is added."""

BROADCAST = b"\xff" * 6

ICMPV6, FRAGMENT = 58, 44
ECHO_REQUEST, ECHO_REPLY = 128, 129
ROUTER_SOLICIT, ROUTER_ADVERT, SOLICIT, ADVERT, REDIRECT = 133, 134, 135, 136, 137
SOURCE, TARGET = 1, 2
"""Options of neighbour discovery: the link-layer address of the sender or of the target."""

NOWHERE = IPv6Address(0)
ALL_NODES = IPv6Address("ff02::1")

Address = IPv4Address | IPv6Address


def opened_tap(tap: str, flags: int = IFF_TAP_NO_PI) -> tuple[str, int]:
    """Open a tap as the tender of its task does, in the task's network namespace; return the task and a descriptor."""
    task, descriptor = _opened(tap, flags)
    wait_for_port(tap)
    return task, descriptor


def wait_for_port(tap: str) -> None:
    """Wait until the bridge port of an open tap is up, which follows a moment later: before, it has no frame of it."""
    deadline = time.monotonic() + 5
    with closing(Neighbours()) as links:
        while any(tap == name for _, name in socket.if_nameindex()) and not links.passes_frames(tap):
            assert time.monotonic() < deadline, f"{tap} is not up"
            time.sleep(0.005)


def _opened(tap: str, flags: int) -> tuple[str, int]:
    for path in Path(NETWORK_NAMESPACES).glob("solo5-*"):
        with closing(NetworkNamespace(str(path))) as there, there.entered():
            if any(tap == name for _, name in socket.if_nameindex()):
                return path.name.removeprefix("solo5-"), tun(tap, flags)
    raise AssertionError(f"no task's network namespace has {tap}")


def tun(tap: str, flags: int = IFF_TAP_NO_PI) -> int:
    """Open a tap of this network namespace, which is made if it does not exist."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", tap.encode(), flags))
    return descriptor


class Guest:
    def __init__(self, lease: Lease, greeting: bytes = b"") -> None:
        self.mac = bytes.fromhex(lease.mac.replace(":", ""))
        self.ip = lease.address or IPv4Address(0)  # without a leased one, set by the test
        self.gateway = lease.gateway4 or IPv4Address(0)
        self.ip6, self.gateway6 = lease.address6 or NOWHERE, lease.gateway6 or NOWHERE
        self.link_local = link_local(lease.mac)
        self.tap = lease.tap
        self.greeting = greeting
        self.frames: list[bytes] = []
        self._arrived = asyncio.Event()
        self.task, self._fd = opened_tap(lease.tap)
        asyncio.get_running_loop().add_reader(self._fd, self._on_readable)

    @property
    def descriptor(self) -> int:
        return self._fd

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)

    def send(self, frame: bytes) -> None:
        os.write(self._fd, frame)

    async def heard(self, wanted: Callable[[bytes], bool], seconds: float = 5) -> bytes:
        async with asyncio.timeout(seconds):
            while True:
                for frame in self.frames:
                    if wanted(frame):
                        return frame
                self._arrived.clear()
                await self._arrived.wait()

    def own(self, peer: Address) -> Address:
        """Return the guest's address of a peer's family."""
        return self.ip6 if isinstance(peer, IPv6Address) else self.ip

    def router(self, peer: Address) -> Address:
        """Return the guest's gateway of a peer's family."""
        return self.gateway6 if isinstance(peer, IPv6Address) else self.gateway

    async def resolve(self, address: Address) -> bytes:
        """Return the MAC of an address by ARP or neighbour discovery, with retries until the bridge port is up."""

        def answers(frame: bytes) -> bool:
            if isinstance(address, IPv6Address):
                return kind_of(frame) == ADVERT and frame[62:78] == address.packed
            return frame[12:14] == ARP.to_bytes(2) and frame[20:22] == b"\0\2" and frame[28:32] == address.packed

        by_ipv6 = isinstance(address, IPv6Address)
        question = self.solicit(address) if isinstance(address, IPv6Address) else self.arp(1, BROADCAST, address)
        for _ in range(20):
            self.send(question)
            with contextlib.suppress(TimeoutError):
                answer = await self.heard(answers, 0.3)
                return answer[80:86] if by_ipv6 else answer[22:28]
        raise TimeoutError(f"nobody answers for {address}")

    async def send_udp(self, to: Address, port: int, data: bytes, source_port: int = 40000) -> None:
        """Send a datagram by the gateway."""
        self.send(self.udp(await self.resolve(self.router(to)), to, port, data, source_port))

    async def heard_udp(self, data: bytes, seconds: float = 5) -> tuple[Address, int]:
        """Wait for a datagram and return its source address and port."""

        def is_it(frame: bytes) -> bool:
            by_ipv6 = frame[12:14] == IPV6.to_bytes(2)
            return frame[20 if by_ipv6 else 23] == UDP and frame[62 if by_ipv6 else 42 :] == data

        frame = await self.heard(is_it, seconds)
        if frame[12:14] == IPV6.to_bytes(2):
            return IPv6Address(frame[22:38]), int.from_bytes(frame[54:56])
        return IPv4Address(frame[26:30]), int.from_bytes(frame[34:36])

    def arp(
        self, kind: int, to: bytes, target: IPv4Address, *, mac: bytes = b"", ip: IPv4Address | None = None
    ) -> bytes:
        sender = (mac or self.mac) + (ip or self.ip).packed
        body = struct.pack("!HHBBH", 1, IPV4, 6, 4, kind) + sender + bytes(6) + target.packed
        return self.frame(to, ARP, body)

    def ipv4(
        self,
        mac: bytes,
        to: IPv4Address,
        protocol: int,
        body: bytes,
        *,
        source: IPv4Address | None = None,
        number: int = 0,
        fragment: int = WHOLE,
    ) -> bytes:
        ends = (source or self.ip).packed + to.packed
        head = struct.pack("!BBHHHBB", 0x45, 0, 20 + len(body), number, fragment, 64, protocol)
        return self.frame(mac, IPV4, head + _sum(head + b"\0\0" + ends) + ends + body)

    def udp(self, mac: bytes, to: Address, port: int, data: bytes, source_port: int = 40000) -> bytes:
        """Return a frame with a datagram."""
        if isinstance(to, IPv6Address):
            return self.ipv6(mac, to, UDP, datagram(self.ip6, to, source_port, port, data))
        return self.ipv4(mac, to, UDP, _udp(source_port, port, data))

    def tcp(self, mac: bytes, to: Address, ports: tuple[int, int], numbers: tuple[int, int], flags: int) -> bytes:
        """Return a frame with a TCP segment without data, with sequence and acknowledgement numbers."""
        return self.packet(mac, to, TCP, _tcp(self.own(to).packed + to.packed, *ports, *numbers, flags))

    def echo(self, mac: bytes, to: Address, number: int) -> bytes:
        """Return a frame with an echo request of an identifier."""
        body = struct.pack("!HH", number, 0)
        if isinstance(to, IPv6Address):
            return self.icmp6(mac, to, ECHO_REQUEST, body)
        return self.packet(mac, to, ICMP, b"\x08\0" + _sum(b"\x08\0\0\0" + body) + body)

    def packet(self, mac: bytes, to: Address, protocol: int, body: bytes) -> bytes:
        """Return a frame with a packet of the destination's family."""
        if isinstance(to, IPv6Address):
            return self.ipv6(mac, to, protocol, body)
        return self.ipv4(mac, to, protocol, body)

    def solicit(
        self, target: IPv6Address, *, source: IPv6Address | None = None, mac: bytes = b"", to: bytes = b""
    ) -> bytes:
        """Return a neighbour solicitation; from `::` without an option."""
        sender = self.ip6 if source is None else source
        option = b"" if sender == NOWHERE else bytes([SOURCE, 1]) + (mac or self.mac)
        group = IPv6Address(int(IPv6Address("ff02::1:ff00:0")) | int(target) & 0xFFFFFF)
        return self.icmp6(to or multicast(group), group, SOLICIT, bytes(4) + target.packed + option, source=sender)

    def advertise(
        self,
        target: IPv6Address,
        *,
        mac: bytes = b"",
        source: IPv6Address | None = None,
        to: IPv6Address = ALL_NODES,
        to_mac: bytes = b"",
    ) -> bytes:
        """Return a neighbour advertisement that overrides entries."""
        body = b"\x60\0\0\0" + target.packed + bytes([TARGET, 1]) + (mac or self.mac)
        return self.icmp6(to_mac or multicast(to), to, ADVERT, body, source=source)

    def icmp6(self, mac: bytes, to: IPv6Address, kind: int, body: bytes, *, source: IPv6Address | None = None) -> bytes:
        """Return a frame with an ICMPv6 message; `body`: from the bytes after the checksum on."""
        sender = self.ip6 if source is None else source
        head = bytes([kind, 0])
        sum_ = checksum(sender, to, ICMPV6, head + b"\0\0" + body)
        return self.ipv6(mac, to, ICMPV6, head + sum_ + body, source=sender)

    def ipv6(
        self, mac: bytes, to: IPv6Address, protocol: int, body: bytes, *, source: IPv6Address | None = None
    ) -> bytes:
        """Return a frame with a packet."""
        ends = (self.ip6 if source is None else source).packed + to.packed
        return mac + self.mac + IPV6.to_bytes(2) + struct.pack("!IHBB", 6 << 28, len(body), protocol, 255) + ends + body

    async def pinged6(self, address: IPv6Address, word: bytes) -> None:
        """Wait for a reply of an address to a ping with this word: it has processed all earlier packets."""
        hop = await self.resolve(self.gateway6)
        async with asyncio.timeout(60):
            while True:
                self.send(self.icmp6(hop, address, ECHO_REQUEST, b"\0\1\0\1" + word))
                with contextlib.suppress(TimeoutError):
                    await self.heard(lambda f: kind_of(f) == ECHO_REPLY and f[62:] == word, 0.5)
                    return

    def frame(self, to: bytes, kind: int, body: bytes, *, source: bytes = b"") -> bytes:
        return to + (source or self.mac) + kind.to_bytes(2) + body.ljust(46, b"\0")

    def _on_readable(self) -> None:
        frame = os.read(self._fd, 65536)
        self.frames.append(frame)
        self._arrived.set()
        kind = int.from_bytes(frame[12:14])
        if kind == ARP and frame[20:22] == b"\0\1" and frame[38:42] == self.ip.packed:
            self.send(self.arp(2, frame[22:28], IPv4Address(frame[28:32])))
        elif kind == IPV4 and frame[30:34] == self.ip.packed:
            self._on_ipv4(frame)
        elif kind == IPV6:
            self._on_ipv6(frame)

    def _on_ipv4(self, frame: bytes) -> None:
        body = frame[34 : 14 + int.from_bytes(frame[16:18])]
        protocol = frame[23]
        answer = {ICMP: self._on_icmp, UDP: self._on_udp, TCP: self._on_tcp}[protocol](frame, body)
        if answer:
            self.send(self.ipv4(frame[6:12], IPv4Address(frame[26:30]), protocol, answer))

    def _on_ipv6(self, frame: bytes) -> None:
        source, to, body = IPv6Address(frame[22:38]), IPv6Address(frame[38:54]), frame[54:]
        if kind_of(frame) == SOLICIT and frame[62:78] in (self.ip6.packed, self.link_local.packed):
            target = IPv6Address(frame[62:78])
            if source != NOWHERE:
                self.send(self.advertise(target, source=target, to=source, to_mac=frame[6:12]))
        elif to == self.ip6 and kind_of(frame) == ECHO_REQUEST:
            self.send(self.icmp6(frame[6:12], source, ECHO_REPLY, body[4:]))
        elif to == self.ip6 and frame[20] == UDP and body[8:] != body[8:].upper():
            port, own = struct.unpack_from("!HH", body)
            self.send(self.udp(frame[6:12], source, port, self.greeting + body[8:].upper(), own))
        elif to == self.ip6 and frame[20] == TCP and (answer := self._on_tcp(frame, body)):
            self.send(self.ipv6(frame[6:12], source, TCP, answer))

    def _on_icmp(self, _frame: bytes, body: bytes) -> bytes:
        if body[0] != 8:
            return b""
        return b"\0\0" + _sum(b"\0\0\0\0" + body[4:]) + body[4:]

    def _on_udp(self, _frame: bytes, body: bytes) -> bytes:
        source, port = struct.unpack_from("!HH", body)
        if body[8:] == body[8:].upper():  # an answer is not answered
            return b""
        return _udp(port, source, self.greeting + body[8:].upper())

    def _on_tcp(self, frame: bytes, body: bytes) -> bytes:
        source, port, sequence, acknowledged, offset, flags = struct.unpack_from("!HHIIBB", body)
        data = body[offset >> 4 << 2 :]
        ends = frame[30:34] + frame[26:30] if frame[12:14] == IPV4.to_bytes(2) else frame[38:54] + frame[22:38]
        if flags & SYN:
            return _tcp(ends, port, source, 1000, sequence + 1, SYN | ACK)
        if data:
            return _tcp(ends, port, source, acknowledged, sequence + len(data), _PSH | FIN | ACK, data.upper())
        if flags & FIN:
            return _tcp(ends, port, source, acknowledged, sequence + 1, ACK)
        return b""


def kind_of(frame: bytes) -> int:
    """Return the type of an ICMPv6 message; 0 for any other frame."""
    return frame[54] if frame[12:14] == IPV6.to_bytes(2) and frame[20] == ICMPV6 else 0


def multicast(group: IPv6Address) -> bytes:
    """Return the MAC address of a group (RFC 2464)."""
    return b"\x33\x33" + group.packed[12:]


def datagram(source: IPv6Address, to: IPv6Address, source_port: int, port: int, data: bytes) -> bytes:
    head = struct.pack("!HHH", source_port, port, 8 + len(data))
    return head + checksum(source, to, UDP, head + b"\0\0" + data) + data


def checksum(source: IPv6Address, to: IPv6Address, protocol: int, body: bytes) -> bytes:
    """Return the checksum of a transport header with its pseudo header (RFC 8200, section 8.1)."""
    total = _sum(source.packed + to.packed + struct.pack("!II", len(body), protocol) + body)
    return total if any(total) else b"\xff\xff"


def _udp(source: int, port: int, data: bytes) -> bytes:
    return struct.pack("!HHHH", source, port, 8 + len(data), 0) + data  # 0: no checksum (RFC 768)


def _tcp(ends: bytes, source: int, port: int, sequence: int, acknowledge: int, flags: int, data: bytes = b"") -> bytes:
    head = struct.pack("!HHIIBBH", source, port, sequence, acknowledge & 0xFFFFFFFF, 5 << 4, flags, 8192)
    pseudo = ends + struct.pack("!HH", TCP, 20 + len(data))
    return head + _sum(pseudo + head + b"\0\0\0\0" + data) + b"\0\0" + data


def _sum(data: bytes) -> bytes:
    """The internet checksum (RFC 1071)."""
    words = struct.unpack(f"!{(len(data) + 1) // 2}H", data + bytes(len(data) % 2))
    total: int = sum(words)
    total = (total & 0xFFFF) + (total >> 16)
    return (~((total & 0xFFFF) + (total >> 16)) & 0xFFFF).to_bytes(2)
