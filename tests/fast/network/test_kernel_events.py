"""What the journal has of the packet that wakes a task, and whatever else is announced."""

import random
import struct
from collections.abc import Mapping
from ipaddress import ip_address

import pytest

from solo5_systemd.network.kernel_events import HEADER, PAYLOAD, AnnouncedPackets, description, target

PORTS = struct.pack("!HH", 41234, 80)


def ipv4(number: int, rest: bytes = b"", words: int = 5) -> bytes:
    head = bytes([0x40 | words]) + bytes(8) + bytes([number]) + bytes(2)
    return head + ip_address("192.0.2.9").packed + ip_address("10.89.0.2").packed + bytes(4 * (words - 5)) + rest


def ipv6(number: int, rest: bytes = b"") -> bytes:
    ends = ip_address("2001:db8::9").packed + ip_address("fd00::2").packed
    return bytes([0x60]) + bytes(5) + bytes([number, 64]) + ends + rest


def announced(kind: int, packet: bytes) -> Mapping[int, bytes]:
    return {HEADER: struct.pack("!HBx", kind, 4), PAYLOAD: packet}


@pytest.mark.parametrize(
    ("kind", "packet", "text"),
    [
        (0x0800, ipv4(6, PORTS), "TCP 192.0.2.9:41234 to 10.89.0.2:80"),
        (0x0800, ipv4(17, PORTS, words=7), "UDP 192.0.2.9:41234 to 10.89.0.2:80"),
        (0x0800, ipv4(1), "protocol 1 192.0.2.9 to 10.89.0.2"),
        (0x0800, ipv4(6, PORTS[:3]), "TCP 192.0.2.9 to 10.89.0.2"),
        (0x86DD, ipv6(6, PORTS), "TCP [2001:db8::9]:41234 to [fd00::2]:80"),
        (0x86DD, ipv6(58, b"\x80"), "protocol 58 2001:db8::9 to fd00::2"),
        (0x0806, bytes(14) + ipv4(0)[12:16] + bytes(6) + ipv4(0)[16:20], "ARP of 192.0.2.9 for 10.89.0.2"),
        (0x0800, b"", "a frame"),
        (0x0800, ipv4(6)[:18], "a frame"),
        (0x86DD, ipv6(6)[:39], "a frame"),
        (0x0806, bytes(20), "a frame"),
        (0x8100, bytes(60), "a frame"),
    ],
)
def test_a_packet_is_described_by_its_addresses_and_ports(kind: int, packet: bytes, text: str) -> None:
    assert description(announced(kind, packet)) == text


def test_whatever_bytes_a_guest_sends_are_one_short_line() -> None:
    generator = random.Random(0)
    for _ in range(5000):
        kind = generator.choice((0x0800, 0x86DD, 0x0806, generator.randrange(1 << 16)))
        packet = announced(kind, generator.randbytes(generator.randrange(70)))
        (_, found), text = target(packet), description(packet)
        assert found is None or len(packet[PAYLOAD]) >= {4: 28, 6: 64}[found.version]
        assert text.isascii()
        assert text.isprintable()
        assert len(text) < 120
    assert description({}) == description({HEADER: b"", PAYLOAD: b"\xff"}) == "a frame"
    assert target({}) == target({HEADER: b"\x08", PAYLOAD: b"\xff"}) == (False, None)


def arp(operation: int) -> bytes:
    return struct.pack("!HHBBH", 1, 0x0800, 6, 4, operation) + bytes(6) + ipv4(0)[12:16] + bytes(6) + ipv4(0)[16:20]


SOLICITATION = ipv6(58, bytes([135]) + bytes(7) + ip_address("fd00::2").packed)


ADVERTISEMENT = SOLICITATION.replace(bytes([135]), bytes([136]))


@pytest.mark.parametrize(
    ("kind", "packet", "question", "answer"),
    [
        (0x0806, arp(1), "10.89.0.2", None),
        (0x0806, arp(1) + bytes(18), "10.89.0.2", None),
        (0x86DD, SOLICITATION, "fd00::2", None),
        (0x86DD, SOLICITATION + bytes(8), "fd00::2", None),
        (0x0806, arp(2), None, "192.0.2.9"),
        (0x86DD, ADVERTISEMENT + bytes(8), None, "fd00::2"),
        # of another protocol, message, or length
        (0x0806, arp(1)[:27], None, None),
        (0x0806, b"", None, None),
        (0x86DD, SOLICITATION[:63], None, None),
        (0x86DD, ADVERTISEMENT[:63], None, None),
        (0x86DD, ipv6(17, bytes([135]) + bytes(23)), None, None),
        (0x86DD, SOLICITATION[:6], None, None),
        (0x0800, ipv4(58) + bytes(20) + SOLICITATION[40:], None, None),
        (0x8100, arp(1), None, None),
    ],
)
def test_a_question_and_its_answer_are_for_one_address(
    kind: int, packet: bytes, question: str | None, answer: str | None
) -> None:
    found = question or answer
    assert target(announced(kind, packet)) == (question is not None, found and ip_address(found))


def test_a_flood_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packets are announced until their task is woken, which is done between two parts."""
    packets = AnnouncedPackets.__new__(AnnouncedPackets)
    monkeypatch.setattr(packets, "recv", lambda _: struct.pack("=IHHII", 20, 4 << 8, 0, 0, 0) + bytes(4))
    queued = packets.queued()
    assert queued is not None
    assert len(queued) < 1000
    assert packets.packets() == ({}, frozenset(), frozenset())
