"""Elements of nftables as one nfnetlink batch, for a single send(2)."""

import socket
import struct
from collections.abc import Iterable
from ipaddress import IPv4Address

from solo5_systemd.network.netlink import NLM_ACK, NLM_REQUEST, attribute, nested
from solo5_systemd.network.nft_objects import Element

# linux/netfilter/nfnetlink.h, nf_tables.h: subsystem 10, its messages and attributes; linux/netlink.h: NLM_F_CREATE.
_BEGIN, _END = 0x10, 0x11
_SUBSYSTEM = 10
_NEW, _DELETE = _SUBSYSTEM << 8 | 12, _SUBSYSTEM << 8 | 14
_CREATE = 0x400
_LIST_TABLE, _LIST_SET, _LIST_ELEMENTS, _ELEMENT, _KEY, _DATA, _VALUE = 1, 2, 3, 1, 1, 2, 1
_FAMILIES = {"ip": 2, "bridge": 7}
_PROTOCOLS = {"tcp": socket.IPPROTO_TCP, "udp": socket.IPPROTO_UDP}
_HEADER = struct.Struct("=IHHII")
_LINK_LENGTH = 16


def add(table: str, elements: Iterable[Element]) -> bytes:
    """Return the transaction that adds elements to the table of each family."""
    return _batch(_NEW, _CREATE, [_body(table, element, element.value) for element in elements])


def delete(table: str, elements: Iterable[Element]) -> bytes:
    """Return the transaction that deletes them."""
    return _batch(_DELETE, 0, [_body(table, element, ()) for element in elements])


def _batch(kind: int, flags: int, bodies: list[bytes]) -> bytes:
    """Return a batch whose last change is acknowledged, once the transaction is committed."""
    limit = struct.pack("=BB", 0, 0) + _SUBSYSTEM.to_bytes(2)
    acks = [0] * (len(bodies) - 1) + [NLM_ACK]
    changes = [_message(kind, flags | ack, body) for ack, body in zip(acks, bodies, strict=True)]
    return b"".join([_message(_BEGIN, 0, limit), *changes, _message(_END, 0, limit)])


def _message(kind: int, flags: int, body: bytes) -> bytes:
    return _HEADER.pack(_HEADER.size + len(body), kind, NLM_REQUEST | flags, 0, 0) + body


def _body(table: str, element: Element, value: tuple[str, ...]) -> bytes:
    parts = [nested(_KEY, attribute(_VALUE, _packed(element.key)))]
    if value:
        parts.append(nested(_DATA, attribute(_VALUE, _packed(value))))
    return b"".join(
        [
            struct.pack("=BBH", _FAMILIES[element.family], 0, 0),
            attribute(_LIST_TABLE, table.encode() + b"\0"),
            attribute(_LIST_SET, element.name.encode() + b"\0"),
            nested(_LIST_ELEMENTS, nested(_ELEMENT, *parts)),
        ]
    )


def _packed(words: tuple[str, ...]) -> bytes:
    """Return a key or value; each part of a concatenation is padded to four bytes."""
    parts = [_part(word) for word in words]
    return b"".join(part + bytes(-len(part) % 4) for part in parts)


def _part(word: str) -> bytes:
    if word.startswith('"'):
        return word.strip('"').encode().ljust(_LINK_LENGTH, b"\0")
    if word in _PROTOCOLS:
        return bytes([_PROTOCOLS[word]])
    if word.isdigit():
        return int(word).to_bytes(2)
    return bytes.fromhex(word.replace(":", "")) if ":" in word else IPv4Address(word).packed
