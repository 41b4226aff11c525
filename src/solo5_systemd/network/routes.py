"""The kernel's choice of routes for guests."""

import socket
import struct
import sys
from collections.abc import Iterable, Sequence
from contextlib import closing
from ipaddress import IPv4Network, IPv6Network, ip_network

from solo5_systemd.network.model import IpAddress, Lease, Network
from solo5_systemd.network.overtaken import Overtaken
from solo5_systemd.network.raw_netlink import NETLINK_ROUTE, NLM_ACK, NetlinkSocket, attribute, attributes

# linux/rtnetlink.h
_RTM_GETROUTE = 26
_RTMSG = struct.Struct("=BBBBBBBBI")  # family, bits of the destination, …, flags
_RTA_DST, _RTA_OIF, _RTA_TABLE = 1, 4, 15
_LOOKUP_TABLE, _FIB_MATCH = 0x1000, 0x2000
_MAIN_TABLE = 254


def overtaken(networks: Iterable[Network], leases: Iterable[Lease]) -> Sequence[Overtaken]:
    """Return the guests of networks whose packets another route takes, by the kernel's choice for each address.

    The bridge of a joined network is routed by others: its guests are left out.
    """
    own = {network.name: network for network in networks if network.join is None}
    with closing(NetlinkSocket(NETLINK_ROUTE)) as netlink:
        return [
            Overtaken(network=network.name, bridge=network.bridge, inside=inside, guest=address, route=route)
            for lease in leases
            if (network := own.get(lease.network))
            for address in lease.addresses
            if (inside := network.ipv4 if address.version == 4 else network.ipv6)
            if (route := _other_route(netlink, address, inside, network.bridge))
        ]


def _other_route(
    netlink: NetlinkSocket, address: IpAddress, inside: IPv4Network | IPv6Network, bridge: str
) -> str | None:
    """Return a phrase about the route of packets to an address; None if they leave by the bridge."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    head = _RTMSG.pack(family, address.max_prefixlen, 0, 0, 0, 0, 0, 0, _LOOKUP_TABLE | _FIB_MATCH)
    try:
        [(_, body)] = netlink.request(_RTM_GETROUTE, NLM_ACK, head + attribute(_RTA_DST, address.packed))
    except (OSError, ValueError):  # unreachable, prohibited, a blackhole
        return "a route that drops packets"
    found = attributes(body[_RTMSG.size :])
    link = int.from_bytes(found.get(_RTA_OIF, b""), sys.byteorder)
    if _of_link(link) == f" of link {bridge}":
        return None
    table = int.from_bytes(found.get(_RTA_TABLE, b""), sys.byteorder) or _MAIN_TABLE
    prefix = ip_network((found.get(_RTA_DST, bytes(len(address.packed))), body[1]), strict=False)
    if table == _MAIN_TABLE and prefix.prefixlen < inside.prefixlen:
        return None  # the bridge has lost its own route, which is repaired
    return f"route {prefix}{_of_link(link)}{f' in table {table}' if table != _MAIN_TABLE else ''}"


def _of_link(index: int) -> str:
    try:
        return f" of link {socket.if_indextoname(index)}" if index else ""
    except OSError:  # deleted meanwhile
        return ""
