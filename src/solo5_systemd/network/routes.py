"""The routes and addresses of a network namespace, and the kernel's choice of routes for guests.

Other programs can make very many, each of which has to cost little.
"""

import socket
import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

from solo5_systemd.base.errors import host_errors
from solo5_systemd.network import netlink as nl
from solo5_systemd.network.model import IpAddress, Lease
from solo5_systemd.network.network_ranges import Overtaken
from solo5_systemd.settings.addresses import IpNetwork
from solo5_systemd.settings.network_policy import Network

# linux/rtnetlink.h, if_addr.h
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
# Family, bits of the destination, of the source, TOS, table, protocol, scope, type, flags.
_RTMSG = struct.Struct("=BBBBBBBBI")
_RTA_DST, _RTA_OIF, _RTA_TABLE = 1, 4, 15
_LOOKUP_TABLE, _FIB_MATCH = 0x1000, 0x2000
MAIN_TABLE, LOCAL_TABLE, _UNIVERSE = 254, 255, 0
LOOPBACK6 = IPv6Network("::1/128")


class Routes(nl.NetlinkSocket):
    """An rtnetlink socket for the routes and addresses of the namespace in which it is made. Not thread-safe."""

    def ranges(self, ours: Collection[str], versions: Iterable[int] = (4, 6)) -> Iterator[IpNetwork]:
        """Yield the ranges of all routes and addresses, without default routes and those of the links `ours`."""
        skip = {nl.link_index(name) for name in ours} - {0}
        for version in versions:
            addresses = self._addresses(socket.AF_INET) if version == 4 else ()  # of IPv6, routes have them
            for destination, length, _, link in (*self._routes(nl.FAMILIES[version]), *addresses):
                if destination and link not in skip:
                    yield (IPv4Network if version == 4 else IPv6Network)((destination, length), strict=False)

    def addresses(self, versions: Iterable[int] = (4,), link: str = "") -> frozenset[IpAddress]:
        """Return all addresses of IPv4, IPv6 or both, or those of one link."""
        number = nl.link_index(link) if link else None
        return frozenset(
            IPv4Address(ip) if version == 4 else IPv6Address(ip)
            for version in versions
            for ip, _, _, own in self._addresses(nl.FAMILIES[version])
            if number in (None, own)
        )

    def has_loopback6(self, link: str) -> bool:
        """Return whether packets to ::1 that come from a link are delivered, by a route in table local."""
        wanted = (LOOPBACK6.network_address.packed, LOOPBACK6.prefixlen, LOCAL_TABLE, nl.link_index(link))
        return wanted in self._routes(socket.AF_INET6)

    def uplink_mtu(self) -> int | None:
        """Return the MTU of the link of the default route, of IPv4 or else of IPv6; None without one."""
        number = self._uplink()
        if not number:
            return None
        try:
            [(_, body)] = self.request(nl.GETLINK, nl.NLM_ACK, nl.ifinfo(number))
        except OSError:  # deleted meanwhile
            return None
        return nl.integer(nl.link_attributes(body), nl.IFLA_MTU)

    def uplink_has_ipv6(self) -> bool:
        """Return whether that link has an IPv6 address besides link-local ones."""
        number = self._uplink()
        addresses = self._addresses(socket.AF_INET6) if number else ()
        return any(own[2:] == (_UNIVERSE, number) for own in addresses)

    def _uplink(self) -> int:
        """Return the index of the link of the default route; 0 without one."""
        every = (*self._routes(socket.AF_INET), *self._routes(socket.AF_INET6))
        return next((link for at, _, table, link in every if not at and link and table == MAIN_TABLE), 0)

    def _routes(self, family: int) -> Iterator[tuple[bytes, int, int, int]]:
        """Yield destination, its length, table and link of each route, with link 0 if it has several, or none."""
        for body in self._list("routes", nl.GETROUTE, _RTMSG.pack(family, 0, 0, 0, 0, 0, 0, 0, 0)):
            parts = nl.attributes(body[_RTMSG.size :])
            yield parts.get(_RTA_DST, b""), body[1], body[4], nl.integer(parts, _RTA_OIF)

    def _addresses(self, family: int) -> Iterator[tuple[bytes, int, int, int]]:
        """Yield each address with its length, scope and link."""
        for body in self._list("addresses", nl.GETADDR, nl.IFADDRMSG.pack(family, 0, 0, 0, 0)):
            _, length, _, scope, link = nl.IFADDRMSG.unpack_from(body)
            parts = nl.attributes(body[nl.IFADDRMSG.size :])
            # That of IPv4 is the other end's on a link with two ends.
            yield parts.get(_IFA_LOCAL) or parts[_IFA_ADDRESS], length, scope, link

    def _list(self, what: str, request: int, header: bytes) -> Sequence[bytes]:
        with host_errors(f"the kernel refused to list {what}"):
            return [body for _, body in self.request(request, nl.NLM_DUMP, header)]


def overtaken(networks: Iterable[Network], leases: Iterable[Lease]) -> Sequence[Overtaken]:
    """Return the guests of networks whose packets another route takes, by the kernel's choice for each address.

    The bridge of a joined network is routed by others: its guests are left out.
    """
    own = {network.name: network for network in networks if network.join is None}
    with closing(nl.NetlinkSocket()) as netlink:
        return [
            Overtaken(network=network.name, bridge=network.bridge, inside=inside, guest=address, route=route)
            for lease in leases
            if (network := own.get(lease.network))
            for address in lease.addresses
            if (inside := network.inside(address.version))
            if (route := _other_route(netlink, address, inside, network.bridge))
        ]


def _other_route(
    netlink: nl.NetlinkSocket, address: IpAddress, inside: IPv4Network | IPv6Network, bridge: str
) -> str | None:
    """Return a phrase about the route of packets to an address; None if they leave by the bridge."""
    family, flags = nl.FAMILIES[address.version], _LOOKUP_TABLE | _FIB_MATCH
    head = _RTMSG.pack(family, address.max_prefixlen, 0, 0, 0, 0, 0, 0, flags)
    try:
        [(_, body)] = netlink.request(nl.GETROUTE, nl.NLM_ACK, head + nl.attribute(_RTA_DST, address.packed))
    except (OSError, ValueError):  # unreachable, prohibited, a blackhole
        return "a route that drops packets"
    found = nl.attributes(body[_RTMSG.size :])
    link = nl.integer(found, _RTA_OIF)
    if _of_link(link) == f" of link {bridge}":
        return None
    table = nl.integer(found, _RTA_TABLE) or MAIN_TABLE
    prefix = ip_network((found.get(_RTA_DST, bytes(len(address.packed))), body[1]), strict=False)
    if table == MAIN_TABLE and prefix.prefixlen < inside.prefixlen:
        return None  # the bridge has lost its own route, which is repaired
    return f"route {prefix}{_of_link(link)}{f' in table {table}' if table != MAIN_TABLE else ''}"


def _of_link(index: int) -> str:
    try:
        return f" of link {socket.if_indextoname(index)}" if index else ""
    except OSError:  # deleted meanwhile
        return ""
