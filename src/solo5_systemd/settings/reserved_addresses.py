"""Ranges of addresses: the pool for guests on an existing bridge, and `reserved_addresses`, which no guest gets."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from solo5_systemd.base.errors import SettingsError
from solo5_systemd.settings.records import TYPES, text

_EXPECTED = 'expected an address, or a range such as "10.89.0.2-10.89.0.20"'


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
    """Parse an address or a range of addresses.

    Raises:
        SettingsError: malformed, reversed, or of two families.
    """
    first, _, last = given.partition("-")
    try:
        found = AddressRange(ip_address(first.strip()), ip_address((last or first).strip()))
    except ValueError:
        found = None
    if found is None or found.first.version != found.last.version or int(found.last) < int(found.first):
        raise SettingsError(f"{given!r} is not a range of addresses: {_EXPECTED}.")
    return found


TYPES[AddressRange] = text(address_range)


def check_within(reserved: Reserved, networks: Sequence[IPv4Network | IPv6Network], where: str) -> None:
    """Check that all ranges are of a network whose range is set: of a chosen one they would be of no known address.

    Args:
        networks: the network's range and prefix, as far as they are set.

    Raises:
        SettingsError: a range is not.
    """
    for each in reserved:
        if not any(each.first in network and each.last in network for network in networks):
            shown = " or ".join(map(str, networks)) or "a range that is set as ipv4, or a prefix that is set as ipv6"
            raise SettingsError(f"{where} has {each}: expected addresses inside {shown}.")


def is_reserved(address: IPv4Address | IPv6Address, reserved: Reserved) -> bool:
    """Return whether an address is one of these."""
    return any(address in each for each in reserved)


def number_within(guests: AddressRange, reserved: Iterable[AddressRange]) -> int:
    """Return how many of a range of IPv4 addresses are reserved, each counted once."""
    count, reached = 0, int(guests.first) - 1
    for each in sorted((each for each in reserved if each.first.version == 4), key=lambda each: int(each.first)):
        low, high = max(int(each.first), reached + 1), min(int(each.last), int(guests.last))
        if high >= low:
            count, reached = count + high - low + 1, high
    return count
