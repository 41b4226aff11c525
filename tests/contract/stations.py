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
from ipaddress import IPv4Address
from typing import Protocol

from tests.contract.guest import ICMP, IPV4, SYN, TCP, UDP, Guest
from tests.contract.guest import _sum as checksum
from tests.contract.guest import _udp as datagram

SERVICE = 4646
"""The port of a TCP and a UDP service at every address of a namespace."""

_ECHO_REQUEST, _ECHO_REPLY = 8, 0


class Via(StrEnum):
    """A protocol, by its name in the table."""

    TCP = "TCP"
    UDP = "UDP"
    PING = "ping"


_NUMBERS = {Via.TCP: TCP, Via.UDP: UDP, Via.PING: ICMP}


@dataclass(frozen=True)
class Seen:
    """A received packet, of one protocol: its source, and the attempt of which it is the request or the reply."""

    via: Via
    source: IPv4Address
    number: int
    is_reply: bool


class Station(Protocol):
    """A place that packets are sent from and received at."""

    def send(self, via: Via, to: IPv4Address, port: int, number: int) -> None:
        """Send an attempt, unless the kernel refuses it at once."""

    def seen(self) -> frozenset[Seen]:
        """Return all that has arrived here."""


class GuestStation:
    """A guest. It sends to its neighbours' MAC addresses, and all else to its gateway's."""

    def __init__(self, guest: Guest, macs: dict[IPv4Address, bytes]) -> None:
        self._guest, self._macs = guest, macs

    def send(self, via: Via, to: IPv4Address, port: int, number: int) -> None:
        guest = self._guest
        mac = self._macs.get(to) or self._macs[guest.gateway]
        match via:
            case Via.TCP:
                guest.send(guest.tcp(mac, to, (number, port), (number, 0), SYN))
            case Via.UDP:
                guest.send(guest.ipv4(mac, to, UDP, datagram(number, port, b"call")))
            case Via.PING:
                guest.send(guest.ipv4(mac, to, ICMP, _echo(number)))

    def seen(self) -> frozenset[Seen]:
        packets = (frame[14:] for frame in self._guest.frames if frame[12:14] == IPV4.to_bytes(2))
        return frozenset(filter(None, map(_read, packets)))


class NamespaceStation:
    """A network namespace with services at all of its addresses.

    Args:
        entered: enters the namespace.
        source: the source address of what it sends; by default, the kernel's choice.
    """

    def __init__(
        self, sockets: ExitStack, entered: Callable[[], AbstractContextManager[object]], source: str = "0.0.0.0"
    ) -> None:
        self._sockets, self._entered, self._source = sockets, entered, source
        self._seen: set[Seen] = set()
        for number in _NUMBERS.values():
            self._on_readable(self._open(socket.SOCK_RAW, number), self._record)
        self._ping = self._open(socket.SOCK_RAW, ICMP)
        self._ping.bind((source, 0))

    def serve(self) -> None:
        """Accept connections, and answer datagrams."""
        listener, replier = self._open(socket.SOCK_STREAM), self._open(socket.SOCK_DGRAM)
        listener.bind(("0.0.0.0", SERVICE))
        listener.listen(1000)
        replier.bind(("0.0.0.0", SERVICE))
        self._on_readable(replier, _reply)

    def send(self, via: Via, to: IPv4Address, port: int, number: int) -> None:
        if via is Via.PING:
            with contextlib.suppress(OSError):
                self._ping.sendto(_echo(number), (str(to), 0))
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
            made = self._sockets.enter_context(socket.socket(socket.AF_INET, kind, number))
        made.setblocking(False)
        return made

    def _on_readable(self, of: socket.socket, call: Callable[[socket.socket], None]) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(of, call, of)
        self._sockets.callback(loop.remove_reader, of)

    def _record(self, raw: socket.socket) -> None:
        if found := _read(raw.recv(2000)):
            self._seen.add(found)


def _reply(service: socket.socket) -> None:
    data, client = service.recvfrom(2000)
    service.sendto(data.upper(), client)


def _echo(number: int) -> bytes:
    head, rest = struct.pack("!BB", _ECHO_REQUEST, 0), struct.pack("!HH", number, 0)
    return head + checksum(head + b"\0\0" + rest) + rest


def _read(packet: bytes) -> Seen | None:
    """Return what an IPv4 packet is; None for one that is neither a request nor a reply, such as an ICMP error."""
    body, source = packet[(packet[0] & 15) * 4 :], IPv4Address(packet[12:16])
    if packet[9] == ICMP:
        kind, number = body[0], int.from_bytes(body[4:6])
        return Seen(Via.PING, source, number, kind == _ECHO_REPLY) if kind in (_ECHO_REPLY, _ECHO_REQUEST) else None
    ports = struct.unpack_from("!HH", body)
    via = Via.TCP if packet[9] == TCP else Via.UDP
    if via is Via.TCP and not body[13] & SYN:
        return None
    return Seen(via, source, max(ports), ports[1] > ports[0])
