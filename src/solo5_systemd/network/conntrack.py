"""Flows in the kernel's connection tracking table: counted and deleted, through nfnetlink.

Functions raise OSError if that refuses a request.
"""

import errno
import struct
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from ipaddress import ip_address
from itertools import islice
from socket import IPPROTO_TCP, IPPROTO_UDP

from solo5_systemd.network import netlink as nl
from solo5_systemd.network.model import IpAddress
from solo5_systemd.network.sysctls import read_sysctl
from solo5_systemd.settings.addresses import IpNetwork

# linux/netfilter/nfnetlink_conntrack.h: subsystem 1.
_GET, _DELETE = 1 << 8 | 1, 1 << 8 | 2
_TUPLE_ORIG, _TUPLE_REPLY, _STATUS, _TIMEOUT, _ID, _FILTER = 1, 2, 3, 7, 12, 25
_TUPLE_IP, _TUPLE_PROTO, _PROTO_NUM, _PROTO_DST_PORT = 1, 2, 1, 3
_IP_SRC, _IP_DST = {4: 1, 6: 3}, {4: 2, 6: 4}  # CTA_IP_V4_SRC, CTA_IP_V6_SRC
_FILTER_ORIG_FLAGS, _FILTER_REPLY_FLAGS = 1, 2
_PROTOINFO, _PROTOINFO_TCP, _PROTOINFO_TCP_STATE = 4, 1, 1
_SYN_SENT, _OPEN = 1, {2, 3, 4, 5}
"""enum tcp_conntrack: a SYN without an answer; SYN_RECV, ESTABLISHED, FIN_WAIT, CLOSE_WAIT."""
_SYN_TIMEOUT = "netfilter/nf_conntrack_tcp_timeout_syn_sent"
SYN_REPEATED_S = 3
"""Within this time a client that still waits has sent its SYN again (after 1 s, in Linux five times)."""
_ASSURED = 1 << 2
"""IPS_ASSURED (linux/netfilter/nf_conntrack_common.h); of UDP: packets both ways, and for more than two seconds."""
_BY_SOURCE, _BY_DESTINATION, _BY_PROTOCOL, _BY_PORT = 1 << 0, 1 << 1, 1 << 3, 1 << 5
_NFGENMSG = {version: nl.NFGENMSG.pack(family, 0, 0) for version, family in nl.FAMILIES.items()}
_FILTERED_MAX = 12
"""Passes over the table, each with the kernel's filter, instead of one without.

On a full table, of 250,000 flows, a pass with a filter takes 0.13 s and one without 1.9 s, most of it in this process.
"""


UdpPorts = Mapping[int, Collection[IpAddress]]
"""Published UDP ports, each with the addresses of the host at which it is published.

Others may have flows to a port of the same number: guests and the host itself, to other machines (DNS, QUIC), and
clients of another task, to another address.
"""


def delete_udp_flows(ports: UdpPorts) -> None:
    """Delete every UDP flow to these ports of the host, whose guests do not run yet.

    The kernel keeps a UDP flow while its client sends, with the address translation of its first packet: the client
    would keep sending to a removed guest, or bypass a new one.

    The kernel deletes the flows to a port at one address in 0.3 ms. Before Linux 6.8, and of more than `_FILTERED_MAX`
    of these, they are read, by one pass of 5 ms over a table of 262,144 buckets.
    """
    with closing(nl.NetlinkSocket(nl.NETLINK_NETFILTER)) as netfilter:
        for version in (4, 6):
            ends = ((port, each) for port, addresses in ports.items() for each in addresses if each.version == version)
            filters = [_filter([port], each) for port, each in islice(ends, _FILTERED_MAX + 1)]
            few = len(filters) <= _FILTERED_MAX
            if not few or not all(_delete_matching(netfilter, each, version) for each in filters):
                _delete(netfilter, list(_flows_to(netfilter, version, ports)), version)


def delete_udp_flows_to_others(ports: UdpPorts, guests: Collection[IpAddress]) -> None:
    """Delete every UDP flow to these ports of the host that leads to none of these guests, by a pass over the table.

    Those to guests, which run, stay: the answers to packets on their way would be lost. So do those to a guest whose
    ports have been moved to another one.
    """
    known = {each.packed for each in guests}
    with closing(nl.NetlinkSocket(nl.NETLINK_NETFILTER)) as netfilter:
        for version in (4, 6):
            flows = _flows_to(netfilter, version, ports)
            _delete(netfilter, [each for each in flows if _source(each, _TUPLE_REPLY, version) not in known], version)


def _flows_to(netfilter: nl.NetlinkSocket, version: int, ports: UdpPorts) -> Iterator[bytes]:
    """Yield the UDP flows to ports of the host; with several ports, the kernel's filter passes those to all ports."""
    if any(each.version == version for addresses in ports.values() for each in addresses):
        for flow in _flows(netfilter, version, _filter(ports.keys())):
            at = ports.get(int.from_bytes(nl.attribute_of(flow, _TUPLE_ORIG, _TUPLE_PROTO, _PROTO_DST_PORT)), ())
            if at and ip_address(nl.attribute_of(flow, _TUPLE_ORIG, _TUPLE_IP, _IP_DST[version])) in at:
                yield flow


def delete_flows_of(
    clients: Collection[IpAddress], servers: Collection[IpAddress] = (), behind: Collection[IpNetwork] = ()
) -> None:
    """Delete every flow that one of these guests has opened, or a machine behind one, and every flow to a server.

    The kernel deletes those of one address, 260,000 in 0.2 s; before Linux 6.8, they are read and deleted in 3 s.
    For ranges, and for more than `_FILTERED_MAX` addresses, all flows are read once.

    Flows that stay would count against the next guest with that address, TCP's for days: a guest in a restart loop
    would fill the table in spite of its connection limit, and an update would wait for clients of a guest that is gone.
    """
    with closing(nl.NetlinkSocket(nl.NETLINK_NETFILTER)) as netfilter:
        for version in (4, 6):
            opened = {each.packed: _by_source(_TUPLE_ORIG, each) for each in clients if each.version == version}
            served = {each.packed: _by_source(_TUPLE_REPLY, each) for each in servers if each.version == version}
            ranges = [each for each in behind if each.version == version]
            filters = [*opened.values(), *served.values()]
            if ranges or len(filters) > _FILTERED_MAX:  # the kernel compares one address, no range
                filters = [b""]
            for matching in filters:
                if matching and _delete_matching(netfilter, matching, version):  # an empty one would delete every flow
                    continue
                flows = _flows(netfilter, version, matching)
                _delete(netfilter, [flow for flow in flows if _leads(flow, opened, served, ranges, version)], version)


def _flows(netfilter: nl.NetlinkSocket, version: int, matching: bytes) -> Iterator[bytes]:
    """Yield the flows that the kernel's filter passes (Linux 5.8); all with an empty one."""
    for _, body in netfilter.request(_GET, nl.NLM_DUMP, _NFGENMSG[version] + matching):
        yield body[nl.NFGENMSG.size :]


def _delete_matching(netfilter: nl.NetlinkSocket, matching: bytes, version: int) -> bool:
    """Have the kernel delete the flows of a filter, which is not empty; return whether this kernel does."""
    try:
        list(netfilter.request(_DELETE, nl.NLM_ACK, _NFGENMSG[version] + matching))
    except OSError as error:
        if error.errno != errno.EINVAL:  # before Linux 6.8, of a part of a flow, also with a filter
            raise
        return False
    return True


def _leads(
    flow: bytes, opened: Container[bytes], served: Container[bytes], ranges: Sequence[IpNetwork], version: int
) -> bool:
    source, server = _source(flow, _TUPLE_ORIG, version), _source(flow, _TUPLE_REPLY, version)
    return source in opened or server in served or any(ip_address(source) in each for each in ranges)


def _source(flow: bytes, direction: int, version: int) -> bytes:
    return nl.attribute_of(flow, direction, _TUPLE_IP, _IP_SRC[version])


def open_connections(addresses: Collection[IpAddress]) -> int:
    """Return the number of TCP connections to these guests that neither side has closed for good, and of UDP flows.

    One that the guest has not answered yet counts while its client tries: a busy guest answers late, and would be
    stopped between that and the request. The kernel keeps it for two minutes, also for a client that has gone.
    UDP has no end: a flow is one that was in use for more than two seconds, until the kernel forgets it.
    The kernel filters the dump by the address that answers, which is a guest's also where a port was published.
    """
    fresh_from = int(read_sysctl(_SYN_TIMEOUT) or 0) - SYN_REPEATED_S
    with closing(nl.NetlinkSocket(nl.NETLINK_NETFILTER)) as netfilter:
        return sum(
            _is_open(flow, fresh_from)
            for address in addresses
            for flow in _flows(netfilter, address.version, _by_source(_TUPLE_REPLY, address))
        )


def _is_open(flow: bytes, fresh_from: int) -> bool:
    protocol = nl.attribute_of(flow, _TUPLE_ORIG, _TUPLE_PROTO, _PROTO_NUM)
    if protocol == bytes([IPPROTO_UDP]):
        return bool(int.from_bytes(nl.attribute_of(flow, _STATUS)) & _ASSURED)
    if protocol != bytes([IPPROTO_TCP]):  # such as a ping: it has no TCP state to read
        return False
    state = nl.attribute_of(flow, _PROTOINFO, _PROTOINFO_TCP, _PROTOINFO_TCP_STATE)[0]
    is_fresh = int.from_bytes(nl.attribute_of(flow, _TIMEOUT)) >= fresh_from
    return state in _OPEN or (state == _SYN_SENT and is_fresh)


def _by_source(direction: int, address: IpAddress) -> bytes:
    """Return the kernel filter of the flows that an address has opened, or with _TUPLE_REPLY answers."""
    source = nl.nested(direction, nl.nested(_TUPLE_IP, nl.attribute(_IP_SRC[address.version], address.packed)))
    return source + (_chosen(_BY_SOURCE) if direction == _TUPLE_ORIG else _chosen(0, _BY_SOURCE))


def _chosen(original: int, reply: int = 0) -> bytes:
    """Return the part of a kernel filter that selects the values of a flow's two directions to compare."""
    flags = ((_FILTER_ORIG_FLAGS, original), (_FILTER_REPLY_FLAGS, reply))
    return nl.nested(_FILTER, *(nl.attribute(kind, struct.pack("=I", value)) for kind, value in flags))


def _filter(ports: Collection[int], address: IpAddress | None = None) -> bytes:
    """Return the kernel filter of the UDP flows to ports, or to one port at an address."""
    flags, protocol, ends = _BY_PROTOCOL, [nl.attribute(_PROTO_NUM, bytes([IPPROTO_UDP]))], b""
    if len(ports) == 1:  # a kernel filter has one port at most; several are compared in this process
        flags |= _BY_PORT
        protocol += [nl.attribute(_PROTO_DST_PORT, port.to_bytes(2)) for port in ports]
    if address is not None:
        flags |= _BY_DESTINATION
        ends = nl.nested(_TUPLE_IP, nl.attribute(_IP_DST[address.version], address.packed))
    return nl.nested(_TUPLE_ORIG, ends, nl.nested(_TUPLE_PROTO, *protocol)) + _chosen(flags)


def _delete(netfilter: nl.NetlinkSocket, flows: Iterable[bytes], version: int) -> None:
    requests = []
    for flow in map(nl.attributes, flows):
        identity = nl.nested(_TUPLE_ORIG, flow[_TUPLE_ORIG]) + nl.attribute(_ID, flow[_ID])
        requests.append((_DELETE, 0, _NFGENMSG[version] + identity))
    netfilter.execute(requests, but=errno.ENOENT)  # the flow has timed out since the dump
