"""Routes to guests: what the kernel would choose, and a watch of the routes that other programs change."""

import socket
import struct
import sys
from collections.abc import Collection, Iterable
from ipaddress import IPv4Network, IPv6Network, ip_network

from solo5_systemd.network.model import IpAddress
from solo5_systemd.network.overtaken import MAIN_TABLE, ForeignRoute
from solo5_systemd.network.raw_netlink import (
    NETLINK_ROUTE,
    NLM_ACK,
    Condition,
    NetlinkSocket,
    attribute,
    attributes,
    begins_with,
    is_type,
)

# linux/rtnetlink.h
_RTM_NEWROUTE, _RTM_DELROUTE, _RTM_GETROUTE, _RTM_NEWRULE, _RTM_DELRULE = 24, 25, 26, 32, 33
_GROUP_IPV4_ROUTE, _GROUP_IPV4_RULE, _GROUP_IPV6_ROUTE, _GROUP_IPV6_RULE = 7, 8, 11, 19
_RTMSG = struct.Struct("=BBBBBBBBI")  # family, bits of the destination, …, flags
_RTA_DST, _RTA_OIF, _RTA_TABLE = 1, 4, 15
_LOOKUP_TABLE, _FIB_MATCH = 0x1000, 0x2000
_FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}
_FAMILY, _DESTINATION = 16, 40
"""Of a message, from its header on: the kernel writes the table first, then the destination."""

Ranges = Collection[IPv4Network | IPv6Network]


class RouteWatch(NetlinkSocket):
    """A netlink socket, readable when a route within some ranges, or a rule for the choice of a table, is changed.

    The kernel drops all other messages: a router of the Internet may have a million routes.
    """

    def __init__(self) -> None:
        groups = (_GROUP_IPV4_ROUTE, _GROUP_IPV4_RULE, _GROUP_IPV6_ROUTE, _GROUP_IPV6_RULE)
        super().__init__(NETLINK_ROUTE, *groups)
        self._ranges = frozenset[IPv4Network | IPv6Network]()
        self.receive_only()

    def watch(self, ranges: Ranges) -> None:
        """Watch the routes within these ranges instead of those before; without any, nothing is received."""
        if self._ranges == frozenset(ranges):
            return
        self._ranges = frozenset(ranges)
        kinds: list[Iterable[Condition]] = [
            (is_type(kind), *_within(each)) for each in self._ranges for kind in (_RTM_NEWROUTE, _RTM_DELROUTE)
        ]
        kinds += [(is_type(kind),) for kind in (_RTM_NEWRULE, _RTM_DELRULE)] if kinds else []
        try:
            self.receive_only(*map(tuple, kinds))
        except OSError:  # more networks than a filter has room for, of net.core.optmem_max: all routes are received
            changes = (_RTM_NEWROUTE, _RTM_DELROUTE, _RTM_NEWRULE, _RTM_DELRULE)
            self.receive_only(*([is_type(kind)] for kind in changes))

    def drain(self) -> None:
        """Receive and forget all messages. To be called when readable."""
        try:
            while True:
                for _ in self.receive():
                    pass
        except OSError:  # BlockingIOError: none is left; ENOBUFS: messages were lost
            return


def _within(inside: IPv4Network | IPv6Network) -> Iterable[Condition]:
    family = _FAMILIES[inside.version].to_bytes(1)
    yield from begins_with(_FAMILY, family + bytes(3), 8)
    yield from begins_with(_DESTINATION, inside.network_address.packed, inside.prefixlen)


class Routes:
    """The kernel's choice of routes."""

    def __init__(self) -> None:
        self._netlink = NetlinkSocket(NETLINK_ROUTE)

    def close(self) -> None:
        """Close the socket."""
        self._netlink.close()

    def foreign(self, address: IpAddress, link: int) -> ForeignRoute | None:
        """Return the route of packets to an address, unless they leave by a link with this index."""
        family, bits = _FAMILIES[address.version], address.max_prefixlen
        head = _RTMSG.pack(family, bits, 0, 0, 0, 0, 0, 0, _LOOKUP_TABLE | _FIB_MATCH)
        request = head + attribute(_RTA_DST, address.packed)
        try:
            [(_, body)] = self._netlink.request(_RTM_GETROUTE, NLM_ACK, request)
        except (OSError, ValueError):  # unreachable, prohibited, a blackhole
            return ForeignRoute()
        return _foreign(body, link, address)


def _foreign(body: bytes, link: int, address: IpAddress) -> ForeignRoute | None:
    found = attributes(body[_RTMSG.size :])
    index = int.from_bytes(found.get(_RTA_OIF, b""), sys.byteorder)
    if index == link:
        return None
    table = int.from_bytes(found.get(_RTA_TABLE, b""), sys.byteorder) or MAIN_TABLE
    destination = found.get(_RTA_DST, bytes(len(address.packed)))
    prefix = ip_network((destination, body[1]), strict=False)
    return ForeignRoute(prefix=prefix, link=_name(index), table=table)


def _name(index: int) -> str:
    try:
        return socket.if_indextoname(index) if index else ""
    except OSError:  # deleted meanwhile
        return ""
