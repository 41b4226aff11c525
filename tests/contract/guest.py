"""A guest on a tap: opens it as a tender does, and answers ARP, ping, UDP and TCP.

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
                descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
                fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", tap.encode(), flags))
                return path.name.removeprefix("solo5-"), descriptor
    raise AssertionError(f"no task's network namespace has {tap}")


class Guest:
    def __init__(self, lease: Lease, greeting: bytes = b"") -> None:
        self.mac = bytes.fromhex(lease.mac.replace(":", ""))
        self.ip = lease.address or IPv4Address(0)  # without a leased one, set by the test
        self.gateway = lease.gateway4 or IPv4Address(0)
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
        assert isinstance(peer, IPv4Address)
        return self.ip

    def router(self, peer: Address) -> Address:
        """Return the guest's gateway of a peer's family."""
        assert isinstance(peer, IPv4Address)
        return self.gateway

    async def resolve(self, address: Address) -> bytes:
        """Return the MAC of an address by ARP, with retries until the bridge port is up."""

        assert isinstance(address, IPv4Address)

        def answers(frame: bytes) -> bool:
            return frame[12:14] == ARP.to_bytes(2) and frame[20:22] == b"\0\2" and frame[28:32] == address.packed

        for _ in range(20):
            self.send(self.arp(1, BROADCAST, address))
            with contextlib.suppress(TimeoutError):
                return (await self.heard(answers, 0.3))[22:28]
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
        assert isinstance(to, IPv4Address)
        return self.ipv4(mac, to, UDP, _udp(source_port, port, data))

    def tcp(self, mac: bytes, to: Address, ports: tuple[int, int], numbers: tuple[int, int], flags: int) -> bytes:
        """Return a frame with a TCP segment without data, with sequence and acknowledgement numbers."""
        return self.packet(mac, to, TCP, _tcp(self.own(to).packed + to.packed, *ports, *numbers, flags))

    def echo(self, mac: bytes, to: Address, number: int) -> bytes:
        """Return a frame with an echo request of an identifier."""
        body = struct.pack("!HH", number, 0)
        return self.packet(mac, to, ICMP, b"\x08\0" + _sum(b"\x08\0\0\0" + body) + body)

    def packet(self, mac: bytes, to: Address, protocol: int, body: bytes) -> bytes:
        """Return a frame with a packet of the destination's family."""
        assert isinstance(to, IPv4Address)
        return self.ipv4(mac, to, protocol, body)

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

    def _on_ipv4(self, frame: bytes) -> None:
        body = frame[34 : 14 + int.from_bytes(frame[16:18])]
        protocol = frame[23]
        answer = {ICMP: self._on_icmp, UDP: self._on_udp, TCP: self._on_tcp}[protocol](frame, body)
        if answer:
            self.send(self.ipv4(frame[6:12], IPv4Address(frame[26:30]), protocol, answer))

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
