"""Connection tracking: flows that remember where a published port led."""

import errno
import struct
from socket import AF_INET, IPPROTO_UDP

from solo5_systemd.network.nlsocket import (
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
_TUPLE_ORIG, _ID, _FILTER = 1, 12, 25
_TUPLE_PROTO, _PROTO_NUM, _PROTO_DST_PORT = 2, 1, 3
_FILTER_ORIG_FLAGS, _FILTER_REPLY_FLAGS = 1, 2
_BY_PROTOCOL_AND_PORT = 1 << 3 | 1 << 5
_NFGENMSG = struct.pack("=BBH", AF_INET, 0, 0)


def forget_udp(port: int) -> None:
    """Drop every UDP flow to this port of the host.

    A UDP flow is kept for as long as its client goes on sending, and translates as it did at its first packet: a
    client would go on talking to a guest that is gone, or past one that has come. The kernel picks the flows (5.8
    and later): the cost is its walk through the table, some milliseconds whatever else is tracked.

    Raises:
        OSError: connection tracking cannot be reached.
    """
    protocol = nested(
        _TUPLE_PROTO,
        attribute(_PROTO_NUM, bytes([IPPROTO_UDP])),
        attribute(_PROTO_DST_PORT, port.to_bytes(2)),
    )
    chosen = nested(
        _FILTER,
        attribute(_FILTER_ORIG_FLAGS, struct.pack("=I", _BY_PROTOCOL_AND_PORT)),
        attribute(_FILTER_REPLY_FLAGS, struct.pack("=I", 0)),
    )
    netfilter = NetlinkSocket(NETLINK_NETFILTER)
    try:
        flows = list(netfilter.request(_GET, NLM_DUMP, _NFGENMSG + nested(_TUPLE_ORIG, protocol) + chosen))
        for _, body in flows:
            _delete(netfilter, attributes(body[len(_NFGENMSG) :]))
    finally:
        netfilter.close()


def _delete(netfilter: NetlinkSocket, flow: dict[int, bytes]) -> None:
    identity = nested(_TUPLE_ORIG, flow[_TUPLE_ORIG]) + attribute(_ID, flow[_ID])
    try:
        list(netfilter.request(_DELETE, NLM_ACK, _NFGENMSG + identity))
    except OSError as error:
        if error.errno != errno.ENOENT:  # it ended by itself meanwhile
            raise
