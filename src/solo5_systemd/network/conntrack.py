"""Deletion of flows in the kernel's connection tracking table, through nfnetlink."""

import errno
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from socket import AF_INET, IPPROTO_UDP

from solo5_systemd.network.raw_netlink import (
    NETLINK_NETFILTER,
    NLM_ACK,
    NLM_DUMP,
    NetlinkSocket,
    attribute,
    attribute_of,
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
class RedirectedPort:
    """A published UDP port whose destination has changed, to this guest or, with None, to no guest."""

    port: int
    guest: IPv4Address | None


def udp_ports() -> frozenset[int]:
    """Return the destination ports of all UDP flows, as the first packet had them.

    Raises:
        OSError: nfnetlink refused a request.
    """
    netfilter = NetlinkSocket(NETLINK_NETFILTER)
    try:
        bodies = netfilter.request(_GET, NLM_DUMP, _NFGENMSG + _filter(()))
        return frozenset(_udp_port(body[len(_NFGENMSG) :]) for _, body in bodies)
    finally:
        netfilter.close()


def delete_udp_flows(redirected: Collection[RedirectedPort]) -> None:
    """Delete every UDP flow to these ports of the host that leads to an earlier destination.

    The kernel keeps a UDP flow while its client sends, with the address translation of its first packet: the client
    would keep sending to a removed guest, or bypass a new one. The kernel filters the dump (Linux 5.8 and later), by
    port where it is a single one. The cost is one pass over the table, some milliseconds for any number of ports.

    Raises:
        OSError: nfnetlink refused a request.
    """
    guests: dict[int, set[IPv4Address | None]] = {}
    for each in redirected:
        guests.setdefault(each.port, set()).add(each.guest)
    netfilter = NetlinkSocket(NETLINK_NETFILTER)
    try:
        bodies = netfilter.request(_GET, NLM_DUMP, _NFGENMSG + _filter(guests.keys()))
        flows = (body[len(_NFGENMSG) :] for _, body in bodies)
        for flow in [flow for flow in flows if _is_stale(flow, guests)]:
            _delete(netfilter, attributes(flow))
    finally:
        netfilter.close()


def delete_flows_from(addresses: Collection[IPv4Address]) -> None:
    """Delete every flow that one of these guests has opened. The kernel filters the dump by source.

    Flows that stay would count against the next guest with that address, TCP's for days: a guest in a restart loop
    would fill the table in spite of its connection limit.

    Raises:
        OSError: nfnetlink refused a request.
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
    if len(ports) == 1:  # a kernel filter has one port at most; several are compared in this process
        flags |= _BY_PORT
        protocol += [attribute(_PROTO_DST_PORT, port.to_bytes(2)) for port in ports]
    chosen = nested(
        _FILTER,
        attribute(_FILTER_ORIG_FLAGS, struct.pack("=I", flags)),
        attribute(_FILTER_REPLY_FLAGS, struct.pack("=I", 0)),
    )
    return nested(_TUPLE_ORIG, nested(_TUPLE_PROTO, *protocol)) + chosen


def _is_stale(flow: bytes, guests: Mapping[int, set[IPv4Address | None]]) -> bool:
    """Return whether a flow to one of these ports is answered from another address than its guest's."""
    port = _udp_port(flow)
    if port not in guests:
        return False
    answerer = attribute_of(attribute_of(attribute_of(flow, _TUPLE_REPLY), _TUPLE_IP), _IP_V4_SRC)
    return guests[port] != {IPv4Address(answerer)}


def _udp_port(flow: bytes) -> int:
    return int.from_bytes(attribute_of(attribute_of(attribute_of(flow, _TUPLE_ORIG), _TUPLE_PROTO), _PROTO_DST_PORT))


def _delete(netfilter: NetlinkSocket, flow: dict[int, bytes]) -> None:
    identity = nested(_TUPLE_ORIG, flow[_TUPLE_ORIG]) + attribute(_ID, flow[_ID])
    try:
        list(netfilter.request(_DELETE, NLM_ACK, _NFGENMSG + identity))
    except OSError as error:
        if error.errno != errno.ENOENT:  # the flow has timed out since the dump
            raise
