"""ICMP errors of guests: about packets of their own connections, and of no others.

The kernel takes an error for a packet of the connection whose packet it quotes, and changes its source accordingly.
What is proper follows each attack on the same way: what has not arrived by then was dropped.
"""

import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from ipaddress import IPv4Address, IPv6Address

import pytest
from tests.contract.guest import ICMP, UDP, Guest, _sum, _udp
from tests.contract.guest6 import ICMPV6, Guest6, datagram
from tests.contract.netns import CLIENT6, HOST6, Outside, run
from tests.contract.netservice import Service, udp, until
from tests.contract.test_network_drops import counts
from tests.contract.test_network_egress import have, only
from tests.contract.test_network_ipv6 import default, far_socket
from tests.contract.test_network_paths import ask_udp

SECRET, PLAIN = b"SECRET" * 9, b"plain" * 9
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
    guest: Guest6, mac: bytes, of: tuple[IPv6Address, int], to: tuple[IPv6Address, int], text: bytes,
    kind: int = UNREACHABLE6,
) -> bytes:  # fmt: skip
    body = datagram(of[0], to[0], of[1], to[1], text)
    head = struct.pack("!IHBB", 6 << 28, len(body), UDP, 64)
    number = 1280 if kind == TOO_LARGE6 else 0
    return guest.icmp6(mac, of[0], kind, number.to_bytes(4) + head + of[0].packed + to[0].packed + body)


class Heard:
    """The ICMP messages that a namespace has received."""

    def __init__(self, raw: socket.socket) -> None:
        self._raw, self._seen = raw, b""
        raw.setblocking(False)

    def __contains__(self, text: bytes) -> bool:
        while True:
            try:
                self._seen += self._raw.recv(65536)
            except BlockingIOError:
                return text in self._seen


@pytest.fixture
def heard(outside: Outside) -> Iterator[tuple[Heard, Heard]]:
    """What the neighbour of the host receives, and the host."""
    with outside.entered():
        far = socket.socket(socket.AF_INET, socket.SOCK_RAW, ICMP)
    with closing(far), socket.socket(socket.AF_INET, socket.SOCK_RAW, ICMP) as here:
        yield Heard(far), Heard(here)


@pytest.mark.parametrize("limits", [only(), None], ids=["no egress", "open"])
async def test_a_guest_reports_errors_of_its_own_connections_alone(
    service: Service, outside: Outside, heard: tuple[Heard, Heard], bridge_nf: None, limits: object
) -> None:
    await service.restart()
    beyond, here, own = IPv4Address(outside.address), IPv4Address(outside.host), heard[1]
    async with service.client() as client:
        lease = await (have(client, "a", only(), udp(5353)) if limits else client.lease("a", udp(5353)))
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
                    quoting(guest, gateway, (beyond, CLIENT_PORT), (neighbour.ip, 53), SECRET),
                    *(quoting(guest, gateway, *ends, SECRET, kind) for kind in (UNREACHABLE, TOO_LARGE, REDIRECT)),
                ]
                for attack in attacks:
                    guest.send(attack)
                guest.send(quoting(guest, gateway, (beyond, CLIENT_PORT), (guest.ip, 53), PLAIN))
                await until(lambda: PLAIN in heard[0])
                assert SECRET not in heard[0], "as the host's, by a connection of its neighbour"
                assert SECRET not in own, "about the host's own connection"
                assert "mtu" not in run("ip", "route", "get", outside.address)
                assert (await counts(client))["invalid"] >= len(attacks)
                hosts.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)  # nobody listens at the other address
                hosts.connect((f"{guest.ip}", 9))
                hosts.send(b"to the guest")
                await guest.heard_udp(b"to the guest")
                guest.send(quoting(guest, gateway, ends[0], (guest.ip, 9), PLAIN))
                await until(lambda: PLAIN in own)
        await client.drop("a")
        await client.drop("b")


async def test_a_guest_reports_errors_of_its_own_ipv6_connections_alone(
    service: Service, wan: Outside, bridge_nf: None
) -> None:
    async with service.running(default()) as client:
        lease = await have(client, "a", only(), udp(5353))
        other = await client.lease("b", udp(5354))
        with wan.entered():
            raw = socket.socket(socket.AF_INET6, socket.SOCK_RAW, ICMPV6)
        there = Heard(raw)
        async with Guest6(lease) as guest, Guest6(other) as neighbour:
            gateway = await guest.resolve(guest.gateway6)
            with closing(raw), closing(far_socket(wan, port=CLIENT_PORT)) as caller:
                for port, whose in ((5353, guest), (5354, neighbour)):
                    caller.sendto(b"hello", (HOST6, port))
                    await whose.heard_udp(b"hello")
                beyond = IPv6Address(CLIENT6), CLIENT_PORT
                for kind in (UNREACHABLE6, TOO_LARGE6):
                    guest.send(quoting6(guest, gateway, beyond, (neighbour.ip6, 53), SECRET, kind))
                guest.send(quoting6(guest, gateway, beyond, (guest.ip6, 53), PLAIN))
                await until(lambda: PLAIN in there)
                assert SECRET not in there
