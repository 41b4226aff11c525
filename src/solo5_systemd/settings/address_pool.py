"""Addresses as text: one, and a network's range."""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import TypeVar

from solo5_systemd.base.errors import InvalidRequestError, SettingsError

_Network = TypeVar("_Network", IPv4Network, IPv6Network)


def ipv4_address(text: str) -> IPv4Address:
    """Parse an IPv4 address.

    Raises:
        InvalidRequestError: malformed.
    """
    try:
        return IPv4Address(text)
    except ValueError as error:
        raise InvalidRequestError(
            f"address {text!r} is not an IPv4 address: expected four numbers such as 10.89.0.7."
        ) from error


def ipv6_address(text: str) -> IPv6Address:
    """Parse an IPv6 address without a zone.

    Raises:
        InvalidRequestError: malformed.
    """
    try:
        address = IPv6Address(text)
    except ValueError:
        address = None
    if address is None or address.scope_id is not None:
        raise InvalidRequestError(f"address {text!r} is not an IPv6 address: expected one such as 2001:db8:1::7.")
    return address


def host_address(text: str) -> IPv4Address | IPv6Address:
    """Parse an IPv4 or IPv6 address.

    Raises:
        InvalidRequestError: malformed.
    """
    if ":" in text:
        return ipv6_address(text)
    return ipv4_address(text)


def range4(text: str) -> IPv4Network:
    """Return an IPv4 range.

    Raises:
        SettingsError: malformed.
    """
    return _range(text, IPv4Network, "10.89.0.0/24")


def range6(text: str) -> IPv6Network:
    """Return an IPv6 range."""
    return _range(text, IPv6Network, "fd00:89::/64")


def _range(text: str, kind: type[_Network], example: str) -> _Network:
    try:
        found = kind(text, strict=False)
    except ValueError as error:
        raise SettingsError(f"{text!r} is not a range: expected one such as {example}.") from error
    try:
        return kind(text)
    except ValueError as error:
        raise SettingsError(f"{text!r} is an address with its prefix: expected the range, {found}.") from error
