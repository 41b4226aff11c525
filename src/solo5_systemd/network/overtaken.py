"""Routes of other programs, such as a VPN's, that take the packets for guests away from the bridge of their network.

A route that is wider than a network is harmless: the kernel prefers the bridge's. One that is more specific, or of a
routing table with precedence, takes what the host sends to the guests: also the replies of others that it forwards.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network

from solo5_systemd.names import NetworkName
from solo5_systemd.network.model import UNREPAIRED, IpAddress

MAIN_TABLE = 254
"""The routing table of routes without another one (RT_TABLE_MAIN)."""

_SHOWN_MAX = 3
"""Addresses of guests in one sentence."""

_FIELDS = 11
"""Fields of a line of /proc/net/route."""


@dataclass(frozen=True, kw_only=True)
class ForeignRoute:
    """The route by which packets for a guest leave, other than that of its bridge.

    Attributes:
        prefix: its destinations; None: unknown, as for a blackhole.
        link: its link; empty: none.
        table: the number of its routing table.
    """

    prefix: IPv4Network | IPv6Network | None = None
    link: str = ""
    table: int = MAIN_TABLE

    def __str__(self) -> str:
        route = f"route {self.prefix}" if self.prefix else "a route that drops packets"
        return f"{route}{f' of link {self.link}' if self.link else ''}{self._of_table}"

    @property
    def _of_table(self) -> str:
        return f" in table {self.table}" if self.table != MAIN_TABLE else ""


@dataclass(frozen=True, kw_only=True)
class Overtaken:
    """A bridge with the range from which a route takes packets."""

    bridge: str
    inside: IPv4Network | IPv6Network
    route: ForeignRoute


def overtakes(route: ForeignRoute, inside: IPv4Network | IPv6Network) -> bool:
    """Return whether a route takes packets from a network.

    A wider route of the main table that the kernel chooses does not: the bridge has lost its own, which is repaired.
    """
    if route.table != MAIN_TABLE or route.prefix is None:
        return True
    return route.prefix.version == inside.version and subnet_of(route.prefix, inside)


def subnet_of(one: IPv4Network | IPv6Network, other: IPv4Network | IPv6Network) -> bool:
    """Return whether a range is within another one of the same family."""
    return one.prefixlen >= other.prefixlen and one.network_address in other


def remedy(route: ForeignRoute, bridge: str, inside: IPv4Network | IPv6Network) -> str:
    """Return the command that gives the packets for all guests back to their bridge.

    Of a route of the main table, both halves go to the bridge: the kernel prefers them. One of a single address is
    deleted. Another table is passed over by a rule.
    """
    ip = f"ip -{inside.version}"
    if route.table != MAIN_TABLE:
        return f"{ip} rule add priority 1 to {inside} lookup main"
    if route.prefix is None:
        return f"{ip} route show"
    if route.prefix.prefixlen == route.prefix.max_prefixlen:
        return f"{ip} route delete {route.prefix}{f' dev {route.link}' if route.link else ''}"
    return " && ".join(f"{ip} route add {half} dev {bridge}" for half in route.prefix.subnets())


def sentence(
    network: NetworkName,
    bridge: str,
    inside: IPv4Network | IPv6Network,
    route: ForeignRoute,
    guests: Sequence[IpAddress],
) -> str:
    """Return the event of a route that takes the packets for these guests of a network, with the remedy."""
    shown = ", ".join(map(str, guests[:_SHOWN_MAX]))
    more = f" and {len(guests) - _SHOWN_MAX} others" if len(guests) > _SHOWN_MAX else ""
    return (
        f"{UNREPAIRED}{route} takes the packets for {shown}{more} of network {network}. Until the next boot, this "
        f"gives them back: {remedy(route, bridge, inside)}; for good, keep the other program out of {inside}, or set "
        f"another range as network.{network}.ipv{inside.version}"
    )


def in_main_table(route: str, route6: str, bridges: Iterable[str]) -> Sequence[Overtaken]:
    """Return the routes that overtake the ranges of these bridges.

    Args:
        route: the content of /proc/net/route.
        route6: that of /proc/net/ipv6_route.
        bridges: of networks; those that do not exist have no routes.
    """
    found = [each for each in dict.fromkeys((*_routes4(route), *_routes6(route6))) if _is_unicast(each[1])]
    return tuple(
        Overtaken(bridge=bridge, inside=inside, route=ForeignRoute(prefix=prefix, link=link))
        for bridge in bridges
        for inside in [prefix for link, prefix in found if link == bridge]
        for link, prefix in found
        if link != bridge and prefix.version == inside.version and subnet_of(prefix, inside)
        # Given back by a remedy.
        if not all((bridge, half) in found for half in prefix.subnets())
    )


def _is_unicast(prefix: IPv4Network | IPv6Network) -> bool:
    """Return whether a route is of unicast addresses of more than one link."""
    return not (prefix.network_address.is_link_local or prefix.network_address.is_multicast)


def _routes4(text: str) -> Iterable[tuple[str, IPv4Network | IPv6Network]]:
    """Yield link and destination of each line; numbers are of the host's byte order, which is little-endian."""
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) < _FIELDS:
            continue
        link, address, mask = fields[0], fields[1], fields[7]
        octets, bits = bytes.fromhex(address)[::-1], int(mask, 16).bit_count()
        yield link, ip_network((octets, bits), strict=False)


def _routes6(text: str) -> Iterable[tuple[str, IPv4Network | IPv6Network]]:
    """Yield link and destination of each line, without those of the host's own addresses, which are of `lo`."""
    for line in text.splitlines():
        address, bits, *_, link = line.split()
        if link != "lo":
            yield link, ip_network((bytes.fromhex(address), int(bits, 16)), strict=False)
