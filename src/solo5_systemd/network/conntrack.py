"""Connection tracking: flows that remember where a published port led."""

import errno
import struct
from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import IPv4Address
from socket import AF_INET, IPPROTO_UDP

from solo5_systemd.network.raw_netlink import (
    NETLINK_NETFILTER,
    NLM_ACK,
    NLM_DUMP,
    NetlinkSocket,
    attribute,
    attributes,
    nested,
)

# linux/netfilter/nfnetlink_conntrack.h: subsystem 1.
_GET, _DELETE = 1 << 8 | 1, 1 << 8 | 2
_TUPLE_ORIG, _TUPLE_REPLY, _ID, _FILTER = 1, 2, 12, 25
_TUPLE_IP, _TUPLE_PROTO, _IP_V4_SRC, _PROTO_NUM, _PROTO_DST_PORT = 1, 2, 1, 1, 3
_FILTER_ORIG_FLAGS, _FILTER_REPLY_FLAGS = 1, 2
_BY_SOURCE, _BY_PROTOCOL, _BY_PORT = 1 << 0, 1 << 3, 1 << 5
_NFGENMSG = struct.pack("=BBH", AF_INET, 0, 0)


@dataclass(frozen=True, kw_only=True)
class Moved:
    """A UDP port of the host that leads elsewhere than before: to this guest, or to none."""

    port: int
    guest: IPv4Address | None


def forget_udp(moved: Collection[Moved]) -> None:
    """Drop every UDP flow to these ports of the host that leads where they do not lead any more.

    A UDP flow is kept for as long as its client goes on sending, and translates as it did at its first packet: a
    client would go on talking to a guest that is gone, or past one that has come. The kernel picks the flows (5.8
    and later), by their port where it is a single one: the cost is its walk through the table, some milliseconds
    whatever else is tracked, and however many ports are asked for.

    Raises:
        OSError: connection tracking cannot be reached.
    """
    netfilter = NetlinkSocket(NETLINK_NETFILTER)
    try:
        for _, body in list(netfilter.request(_GET, NLM_DUMP, _NFGENMSG + _filter({each.port for each in moved}))):
            flow = attributes(body[len(_NFGENMSG) :])
            if any(_is_stale(flow, each) for each in moved):
                _delete(netfilter, flow)
    finally:
        netfilter.close()


def forget_sources(addresses: Collection[IPv4Address]) -> None:
    """Drop every flow that one of these guests has begun.

    They would count for the next guest with that address, and stay for days where they are TCP's: a guest that is
    started again and again would fill the table in spite of its limit. The kernel picks the flows by their source.

    Raises:
        OSError: connection tracking cannot be reached.
    """
    netfilter = NetlinkSocket(NETLINK_NETFILTER)
    try:
        for address in addresses:
            for _, body in list(netfilter.request(_GET, NLM_DUMP, _NFGENMSG + _from(address))):
                _delete(netfilter, attributes(body[len(_NFGENMSG) :]))
    finally:
        netfilter.close()


def _from(address: IPv4Address) -> bytes:
    chosen = nested(
        _FILTER,
        attribute(_FILTER_ORIG_FLAGS, struct.pack("=I", _BY_SOURCE)),
        attribute(_FILTER_REPLY_FLAGS, struct.pack("=I", 0)),
    )
    return nested(_TUPLE_ORIG, nested(_TUPLE_IP, attribute(_IP_V4_SRC, address.packed))) + chosen


def _filter(ports: Collection[int]) -> bytes:
    flags, protocol = _BY_PROTOCOL, [attribute(_PROTO_NUM, bytes([IPPROTO_UDP]))]
    if len(ports) == 1:
        flags |= _BY_PORT
        protocol += [attribute(_PROTO_DST_PORT, port.to_bytes(2)) for port in ports]
    chosen = nested(
        _FILTER,
        attribute(_FILTER_ORIG_FLAGS, struct.pack("=I", flags)),
        attribute(_FILTER_REPLY_FLAGS, struct.pack("=I", 0)),
    )
    return nested(_TUPLE_ORIG, nested(_TUPLE_PROTO, *protocol)) + chosen


def _is_stale(flow: dict[int, bytes], moved: Moved) -> bool:
    """Whose answers would come from somebody else than the guest."""
    port = attributes(attributes(flow[_TUPLE_ORIG])[_TUPLE_PROTO])[_PROTO_DST_PORT]
    answerer = attributes(attributes(flow[_TUPLE_REPLY])[_TUPLE_IP])[_IP_V4_SRC]
    return int.from_bytes(port) == moved.port and IPv4Address(answerer) != moved.guest


def _delete(netfilter: NetlinkSocket, flow: dict[int, bytes]) -> None:
    identity = nested(_TUPLE_ORIG, flow[_TUPLE_ORIG]) + attribute(_ID, flow[_ID])
    try:
        list(netfilter.request(_DELETE, NLM_ACK, _NFGENMSG + identity))
    except OSError as error:
        if error.errno != errno.ENOENT:  # it ended by itself meanwhile
            raise
