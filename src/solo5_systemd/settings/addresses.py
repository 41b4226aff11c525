"""Addresses as text: one, a network's range, a range inside of it, and the ranges that are routed to a guest.

A guest with routes may send packets with these source addresses, such as those of the peers of a VPN, and the host
routes packets for them to the guest. The operator names in a network's settings what may be routed: by default nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_interface, ip_network

from solo5_systemd.base.errors import InvalidRequestError, SettingsError

IpNetwork = IPv4Network | IPv6Network
Routes = tuple[IpNetwork, ...]

ROUTES_MAX = 16
"""Routes of one NIC."""

NEVER_BEHIND: Sequence[IpNetwork] = (
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


def ipv4_address(text: str) -> IPv4Address:
    """Parse an IPv4 address; raises InvalidRequestError for a malformed one."""
    try:
        return IPv4Address(text)
    except ValueError as error:
        raise InvalidRequestError(
            f"address {text!r} is not an IPv4 address: expected four numbers such as 10.89.0.7."
        ) from error


def ipv6_address(text: str) -> IPv6Address:
    """Parse an IPv6 address without a zone; raises as `ipv4_address`."""
    try:
        address = IPv6Address(text)
    except ValueError:
        address = None
    if address is None or address.scope_id is not None:  # a zone is a link of this host, which no guest knows
        raise InvalidRequestError(f"address {text!r} is not an IPv6 address: expected one such as 2001:db8:1::7.")
    return address


def host_address(text: str) -> IPv4Address | IPv6Address:
    """Parse an IPv4 or IPv6 address; raises as `ipv4_address`."""
    return ipv6_address(text) if ":" in text else ipv4_address(text)


def network_range(text: str, kind: type[IpNetwork], example: str) -> IpNetwork:
    """Return a range of one family; raises SettingsError for a malformed one."""
    try:
        found = kind(text, strict=False)
    except ValueError as error:
        raise SettingsError(f"{text!r} is not a range: expected one such as {example}.") from error
    if ip_interface(text).ip != found.network_address:
        raise SettingsError(f"{text!r} is an address with its prefix: expected the range, {found}.")
    return found


@dataclass(frozen=True)
class AddressRange:
    """Addresses of one family, from the first to the last."""

    first: IPv4Address | IPv6Address
    last: IPv4Address | IPv6Address

    def __contains__(self, address: IPv4Address | IPv6Address) -> bool:
        return address.version == self.first.version and int(self.first) <= int(address) <= int(self.last)

    @property
    def size(self) -> int:
        """The number of addresses."""
        return int(self.last) - int(self.first) + 1

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


Reserved = tuple[AddressRange, ...]


def address_range(given: str) -> AddressRange:
    """Parse an address or a range of them; raises SettingsError: malformed, reversed, or of two families."""
    first, _, last = given.partition("-")
    try:
        found = AddressRange(ip_address(first.strip()), ip_address((last or first).strip()))
    except ValueError:
        found = None
    if found is None or found.first.version != found.last.version or int(found.last) < int(found.first):
        raise SettingsError(
            f'{given!r} is not a range of addresses: expected an address, or a range such as "10.89.0.2-10.89.0.20".'
        )
    return found


def is_reserved(address: IPv4Address | IPv6Address, reserved: Reserved) -> bool:
    """Return whether an address is one of these."""
    return any(address in each for each in reserved)


def number_within(guests: AddressRange, reserved: Iterable[AddressRange]) -> int:
    """Return how many of a range of IPv4 addresses are reserved, each counted once."""
    count, reached = 0, int(guests.first) - 1
    for each in sorted((each for each in reserved if each.first.version == 4), key=lambda each: int(each.first)):
        low, high = max(int(each.first), reached + 1), min(int(each.last), int(guests.last))
        if high >= low:  # otherwise an earlier range has all of it, or the guests' range none
            count, reached = count + high - low + 1, high
    return count


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
    if other := overlapping(found, NEVER_BEHIND):
        raise InvalidRequestError(
            f"route {text!r} has addresses of {other}, which are behind no guest: expected a range of unicast "
            "addresses that are not the loopback's or of one link, and no default route."
        )
    return found
