"""The keys of `[network.NAME]`, each defined once for every language.

From this table follow the reader of /etc/solo5/*.toml, the `network` block of the plugin's configuration, and what
`make tables` writes to the manuals.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Annotated

from solo5_systemd.base.decode import Fields
from solo5_systemd.settings.addresses import AddressRange, IpNetwork, network_range
from solo5_systemd.settings.network_policy import HOST, LAN, NAMESPACE, NetworkPolicy, NetworkTraits
from solo5_systemd.settings.records import Entry, Type, entries, integer, setting
from solo5_systemd.settings.resolver import SEARCH, SERVERS

_LINK_NAME = r"[A-Za-z0-9_.-]{1,15}"


def _link_name(fields: Fields, key: str) -> str:
    name = fields.text(key)
    if not re.fullmatch(_LINK_NAME, name, re.ASCII) or name in (".", ".."):
        raise fields.wrong(key, name, "a link name of at most 15 letters, digits, '_', '.' or '-'")
    return name


def _or_boolean(kind: type[IpNetwork], example: str) -> Type:
    def read(fields: Fields, key: str) -> object:
        if isinstance(value := fields.having(key)[key], bool):
            return value
        words = {"true": True, "false": False}  # as HCL has them, where an option is a text
        return fields.parsed(key, lambda given: words[given] if given in words else network_range(given, kind, example))

    return Type(read, lambda value: value if isinstance(value, bool) else str(value))


LINK = Type(_link_name, str)
EVERYWHERE = (HOST, LAN, NAMESPACE)


@dataclass(frozen=True, kw_only=True)
class NetworkKeys(NetworkTraits, NetworkPolicy):
    """The keys of a network as they are set: these, from which others follow, and those that are taken as they are."""

    # fmt: off
    join: Annotated[str | None, LINK] = setting(
        "The bridge of the host that the network joins: its guests are machines of that LAN.",
        default=None, shown="none, a bridge of its own", on=(LAN,), example="br0",
    )
    vlan: Annotated[int | None, integer(1, 4094)] = setting(
        "The VLAN of guests, 1 to 4094.", default=None, shown="that of a new port of the bridge", on=(LAN,), example=20
    )
    pool: AddressRange | None = setting(
        "The addresses for guests, inside ipv4.", default=None, shown="none, each NIC requests its address", on=(LAN,),
        example="192.168.1.200-192.168.1.230",
    )
    pool6: AddressRange | None = setting(
        "The IPv6 addresses for guests, inside ipv6.", default=None, shown="all of the prefix", on=(LAN,),
        example="2001:db8:2::200-2001:db8:2::2ff",
    )
    ipv4: Annotated[IPv4Network | bool | None, _or_boolean(IPv4Network, "10.89.0.0/24")] = setting(
        "The IPv4 range, with a prefix of at most 30 bits; false, which requires ipv6: guests have IPv6 only.",
        default=None, shown="a range that is free on this host", on=EVERYWHERE, example="10.89.0.0/24",
    )
    gateway4: IPv4Address | None = setting(
        "The address of the bridge, inside ipv4.", default=None, shown="the first address of the range", on=EVERYWHERE,
        example="10.89.0.1",
    )
    ipv6: Annotated[IPv6Network | bool | None, _or_boolean(IPv6Network, "fd00:89::/64")] = setting(
        'true: guests have IPv6, in a /64 of this host\'s own; or the prefix: "2001:db8:1::/64".',
        default=None, shown="false", on=EVERYWHERE, example=False,
    )
    gateway6: IPv6Address | None = setting(
        "The IPv6 address of the bridge, inside the prefix.", default=None, shown="the first address of the prefix",
        on=EVERYWHERE, example="2001:db8:1::1", needs="ipv6",
    )
    bridge: Annotated[str | None, LINK] = setting(
        "The name of the bridge, at most 15 characters.", default=None,
        shown="solo5-NAME, or its beginning and a hash if that is longer", example="solo5-default",
    )
    mtu: Annotated[int | None, integer(68, 65521)] = setting(  # 68: the smallest of IPv4 (RFC 791); 65521: of a tap
        "The MTU in bytes, 68 to 65521; with ipv6 at least 1280.", default=None,
        shown="that of the link of the default route, at most 1500", on=(HOST, NAMESPACE), example=1500,
    )
    dns: Annotated[tuple[IPv4Address | IPv6Address, ...], SERVERS] = setting(
        "Name servers of guests, at most eight.", default=(), shown="the host's", on=EVERYWHERE
    )
    search: Annotated[tuple[str, ...], SEARCH] = setting(
        "Search domains of guests, at most six.", default=(), shown="the host's", on=EVERYWHERE
    )
    # fmt: on


@cache
def network_keys() -> Mapping[str, Entry]:
    """Return all keys by name, those of the packet filter last."""
    inherited = {each.name: each for each in (*entries(NetworkTraits), *entries(NetworkPolicy))}
    return {each.name: each for each in entries(NetworkKeys) if each.name not in inherited} | inherited


@cache
def keys_on(*kinds: str) -> Sequence[str]:
    """Return the keys that a network of one of these kinds can have."""
    return tuple(name for name, each in network_keys().items() if {*kinds} & {*each.metadata.get("on", (HOST,))})


@cache
def keys_with(needed: str) -> Sequence[str]:
    """Return the keys that are refused on a network of the host where another key is not set."""
    return tuple(name for name, each in network_keys().items() if each.metadata.get("needs") == needed)
