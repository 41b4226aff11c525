"""Senders and receivers of numbered packets: a network namespace, or a guest on a tap.

The number of an attempt is its source port, or the identifier of its echo request. Address translation keeps both as
long as no two attempts have the same, so that the receiver's packet names the attempt.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Protocol

from tests.contract.guest import ICMP, ICMPV6, IPV4, IPV6, SYN, TCP, UDP, Address, Guest
from tests.contract.guest import _sum as checksum

SERVICE = 4646
"""The port of a TCP and a UDP service at every address of a namespace."""

_ECHO_REQUEST, _ECHO_REPLY = 8, 0
_ECHO_REQUEST6, _ECHO_REPLY6 = 128, 129
_ECHOES6 = {_ECHO_REQUEST6: False, _ECHO_REPLY6: True}


class Via(StrEnum):
    """A protocol, by its name in the table."""

    TCP = "TCP"
    UDP = "UDP"
    PING = "ping"


_NUMBERS = {
    socket.AF_INET: {Via.TCP: TCP, Via.UDP: UDP, Via.PING: ICMP},
    socket.AF_INET6: {Via.TCP: TCP, Via.UDP: UDP, Via.PING: ICMPV6},
}
_EVERY = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}


@dataclass(frozen=True)
class Seen:
    """A received packet, of one protocol: its source, and the attempt of which it is the request or the reply."""

    via: Via
    source: Address
    number: int
    is_reply: bool


class Station(Protocol):
    """A place that packets are sent from and received at."""

    def send(self, via: Via, to: Address, port: int, number: int) -> None:
        """Send an attempt, unless the kernel refuses it at once."""

    def seen(self) -> frozenset[Seen]:
        """Return all that has arrived here."""


class GuestStation:
    """A guest. It sends to its neighbours' MAC addresses, and all else to its gateway's."""

    def __init__(self, guest: Guest, macs: dict[Address, bytes]) -> None:
        self._guest, self._macs = guest, macs

    def send(self, via: Via, to: Address, port: int, number: int) -> None:
        guest = self._guest
        mac = self._macs.get(to) or self._macs[guest.router(to)]
        match via:
            case Via.TCP:
                guest.send(guest.tcp(mac, to, (number, port), (number, 0), SYN))
            case Via.UDP:
                guest.send(guest.udp(mac, to, port, b"call", number))
            case Via.PING:
                guest.send(guest.echo(mac, to, number))

    def seen(self) -> frozenset[Seen]:
        return frozenset(filter(None, map(_of_frame, self._guest.frames)))


def _of_frame(frame: bytes) -> Seen | None:
    if frame[12:14] == IPV6.to_bytes(2):
        return _packet(frame[20], IPv6Address(frame[22:38]), frame[54:])
    return _read(frame[14:]) if frame[12:14] == IPV4.to_bytes(2) else None


class NamespaceStation:
    """A network namespace with services at all of its addresses.

    Args:
        source: the source address of what it sends; None: the kernel's choice.
    """

    def __init__(
        self,
        sockets: ExitStack,
        entered: Callable[[], AbstractContextManager[object]],
        source: Address | None = None,
        family: socket.AddressFamily = socket.AF_INET,
    ) -> None:
        self._sockets, self._entered, self._family = sockets, entered, family
        self._source = str(source or _EVERY[family])
        self._seen: set[Seen] = set()
        for via, number in _NUMBERS[family].items():
            raw = self._open(socket.SOCK_RAW, number)
            self._on_readable(raw, partial(self._record, number))
            if via is Via.PING:
                self._ping = self._open(socket.SOCK_RAW, number)
        self._ping.bind((self._source, 0))

    def serve(self) -> None:
        """Accept connections, and answer datagrams."""
        listener, replier = self._open(socket.SOCK_STREAM), self._open(socket.SOCK_DGRAM)
        for each in (listener, replier):
            each.bind((_EVERY[self._family], SERVICE))
        listener.listen(1000)
        self._on_readable(replier, _reply)

    def send(self, via: Via, to: Address, port: int, number: int) -> None:
        if via is Via.PING:
            with contextlib.suppress(OSError):  # the kernel adds the checksum of ICMPv6
                kind = _ECHO_REQUEST if self._family == socket.AF_INET else _ECHO_REQUEST6
                self._ping.sendto(_echo(number, kind), (str(to), 0))
            return
        sender = self._open(socket.SOCK_STREAM if via is Via.TCP else socket.SOCK_DGRAM)
        sender.bind((self._source, number))
        with contextlib.suppress(OSError):  # BlockingIOError: the connection is being made
            sender.connect((str(to), port))
            sender.send(b"call")

    def seen(self) -> frozenset[Seen]:
        return frozenset(self._seen)

    def _open(self, kind: int, number: int = 0) -> socket.socket:
        with self._entered():
            made = self._sockets.enter_context(socket.socket(self._family, kind, number))
        made.setblocking(False)
        return made

    def _on_readable(self, of: socket.socket, call: Callable[[socket.socket], None]) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(of, call, of)
        self._sockets.callback(loop.remove_reader, of)

    def _record(self, number: int, raw: socket.socket) -> None:
        packet, (source, *_) = raw.recvfrom(2000)
        sender = ip_address(source.partition("%")[0])  # without its link
        found = _read(packet) if self._family == socket.AF_INET else _packet(number, sender, packet)
        if found:
            self._seen.add(found)


def _reply(service: socket.socket) -> None:
    data, client = service.recvfrom(2000)
    service.sendto(data.upper(), client)


def _echo(number: int, kind: int = _ECHO_REQUEST) -> bytes:
    head, rest = struct.pack("!BB", kind, 0), struct.pack("!HH", number, 0)
    return head + checksum(head + b"\0\0" + rest) + rest


def _read(packet: bytes) -> Seen | None:
    """Return what an IPv4 packet is; None as `_packet`."""
    return _packet(packet[9], IPv4Address(packet[12:16]), packet[(packet[0] & 15) * 4 :])


def _packet(protocol: int, source: Address, body: bytes) -> Seen | None:
    """Return what a packet is; None for one that is neither a request nor a reply, such as an ICMP error."""
    if protocol in (ICMP, ICMPV6):
        replies = {_ECHO_REQUEST: False, _ECHO_REPLY: True} if protocol == ICMP else _ECHOES6
        return Seen(Via.PING, source, int.from_bytes(body[4:6]), replies[body[0]]) if body[0] in replies else None
    ports = struct.unpack_from("!HH", body)
    via = Via.TCP if protocol == TCP else Via.UDP
    if via is Via.TCP and not body[13] & SYN:
        return None
    return Seen(via, source, max(ports), ports[1] > ports[0])
