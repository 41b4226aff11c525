"""The description of a packet that nftables announces, for the journal."""

import struct
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address

HEADER, PAYLOAD = 1, 9
"""Attributes of linux/netfilter/nfnetlink_log.h: NFULA_PACKET_HDR, and NFULA_PAYLOAD from the IP or ARP header on."""

_ARP, _IPV4, _IPV6 = 0x0806, 0x0800, 0x86DD
_PROTOCOLS = {6: "TCP", 17: "UDP"}

_QUESTION, _REQUEST, _REPLY = "ARP of ", b"\0\1", b"\0\2"
_NUMBER6, _SOLICIT, _ADVERT = 58, 135, 136
_ICMPV6 = f"protocol {_NUMBER6} "


def is_question(what: str) -> bool:
    """Return whether a description is that of a question for an address, after which another packet comes for it."""
    return what.startswith((_QUESTION, _ICMPV6))


def asked(values: Mapping[int, bytes]) -> IPv4Address | IPv6Address | None:
    """Return the address for which a packet asks, by ARP or neighbour discovery; None: it is no question."""
    return _target(values, _REQUEST, 24, _SOLICIT)


def answered(values: Mapping[int, bytes]) -> IPv4Address | IPv6Address | None:
    """Return the address of a guest that answers a question for it; None: it is no answer."""
    return _target(values, _REPLY, 14, _ADVERT)


def _target(
    values: Mapping[int, bytes], operation: bytes, offset: int, message: int
) -> IPv4Address | IPv6Address | None:
    """Return the address that an ARP packet of an operation has at an offset, or an ICMPv6 message as its target."""
    kind, packet = int.from_bytes(values.get(HEADER, b"")[:2]), values.get(PAYLOAD, b"")
    if kind == _ARP and packet[6:8] == operation and len(packet) >= 28:
        return IPv4Address(packet[offset : offset + 4])
    if kind == _IPV6 and packet[6:7] == bytes([_NUMBER6]) and packet[40:41] == bytes([message]) and len(packet) >= 64:
        return IPv6Address(packet[48:64])
    return None


def description(values: Mapping[int, bytes]) -> str:
    """Return the description of a packet by the attributes of its message: `TCP 192.0.2.9:41234 to 10.89.0.2:80`."""
    kind, packet = int.from_bytes(values.get(HEADER, b"")[:2]), values.get(PAYLOAD, b"")
    try:
        if kind == _ARP:
            return f"{_QUESTION}{ip_address(packet[14:18])} for {ip_address(packet[24:28])}"
        if kind == _IPV4:
            start, number = (packet[0] & 15) * 4, packet[9]
            source, destination = packet[12:16], packet[16:20]
        elif kind == _IPV6:
            start, number = 40, packet[6]
            source, destination = packet[8:24], packet[24:40]
        else:
            return "a frame"
        ends = [str(ip_address(source)), str(ip_address(destination))]
    except (ValueError, IndexError):
        return "a frame"
    if number in _PROTOCOLS and len(packet) >= start + 4:
        ports = struct.unpack_from("!HH", packet, start)
        ends = [f"[{end}]:{port}" if ":" in end else f"{end}:{port}" for end, port in zip(ends, ports, strict=True)]
    return f"{_PROTOCOLS.get(number, f'protocol {number}')} {' to '.join(ends)}"
