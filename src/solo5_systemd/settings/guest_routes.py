"""Routes of a guest: the ranges of addresses behind it, such as those of the peers of a VPN.

A guest may send packets with these source addresses, and the host routes packets for them to the guest. The operator
names in a network's settings what may be routed, and by default nothing.
"""

from collections.abc import Collection, Iterable, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.settings.records import texts

ROUTES_MAX = 16
"""Routes of one NIC."""

IpNetwork = IPv4Network | IPv6Network
Routes = tuple[IpNetwork, ...]

_NEVER: Collection[IpNetwork] = (
    IPv4Network("0.0.0.0/8"),
    IPv4Network("127.0.0.0/8"),
    IPv4Network("169.254.0.0/16"),
    IPv4Network("224.0.0.0/3"),
    IPv6Network("::/127"),
    IPv6Network("::ffff:0:0/96"),
    IPv6Network("fe80::/10"),
    IPv6Network("ff00::/8"),
)
"""Addresses of no host, the loopback, links and groups. A default route overlaps with them."""


def routes(texts: Sequence[str]) -> Routes:
    """Parse a list of routes, without repetitions.

    Raises:
        InvalidRequestError: one is malformed, or can be behind no guest; there are too many; or two overlap.
    """
    distinct = dict.fromkeys(texts)
    if len(distinct) > ROUTES_MAX:  # before any is parsed
        raise InvalidRequestError(f"routes has {len(distinct)} ranges: expected {ROUTES_MAX} or fewer.")
    found = tuple(dict.fromkeys(map(_route, distinct)))
    for index, each in enumerate(found):
        if other := overlapping(each, found[:index]):
            raise InvalidRequestError(f"routes has {other} and {each}, which overlap: expected each address once.")
    return found


ROUTES = texts(routes)


def overlapping(route: IpNetwork, ranges: Iterable[IpNetwork]) -> IpNetwork | None:
    """Return the first of these ranges that has an address in common with a route."""
    return next((each for each in ranges if each.version == route.version and each.overlaps(route)), None)


def is_within(route: IpNetwork, permitted: Iterable[IpNetwork]) -> bool:
    """Return whether a range is part of one of these."""
    return any(each.version == route.version and route.subnet_of(each) for each in permitted)  # type: ignore[arg-type]


def _route(text: str) -> IpNetwork:
    try:
        found = ip_network(text)
    except ValueError as error:
        raise InvalidRequestError(
            f"route {text!r} is not a range of addresses: expected one such as 192.168.2.0/24 or 2001:db8:2::/64, with "
            "zeros behind its prefix."
        ) from error
    if other := overlapping(found, _NEVER):
        raise InvalidRequestError(
            f"route {text!r} has addresses of {other}, which are behind no guest: expected a range of unicast "
            "addresses that are not the loopback's or of one link, and no default route."
        )
    return found
