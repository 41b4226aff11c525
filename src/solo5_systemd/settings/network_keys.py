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
from solo5_systemd.base.errors import SettingsError
from solo5_systemd.base.names import NetworkName
from solo5_systemd.settings.addresses import AddressRange, IpNetwork, Reserved, Routes, network_range
from solo5_systemd.settings.egress import Egress
from solo5_systemd.settings.rate import UNLIMITED, Rate
from solo5_systemd.settings.records import TYPES, Entry, Type, entries, integer, setting, text
from solo5_systemd.settings.resolver import SEARCH, SERVERS

HOST = "host"
"""A network of the host that this package makes, where every key has its meaning."""

LAN = "lan"
"""One on an existing bridge, with `join`."""

NAMESPACE = "namespace"
"""That in the network namespaces of other programs."""

INHERITED = "inherited"
"""The same, which has the key from the network `default` where it does not set it."""

MTUS = integer(68, 65521)
"""68 is the smallest MTU of IPv4 (RFC 791), 65521 the largest of a tap."""

_LINK_NAME = r"[A-Za-z0-9_.-]{1,15}"


def _link_name(fields: Fields, key: str) -> str:
    name = fields.text(key)
    if not re.fullmatch(_LINK_NAME, name, re.ASCII) or name in (".", ".."):
        raise fields.wrong(key, name, "a link name of at most 15 letters, digits, '_', '.' or '-'")
    return name


def _or_boolean(kind: type[IpNetwork], example: str) -> Type:
    def read(fields: Fields, key: str) -> object:
        if fields.is_boolean(key):
            return fields.boolean(key)
        return fields.parsed(key, lambda given: network_range(given, kind, example))

    return Type(read, lambda value: value if isinstance(value, bool) else str(value))


LINK = Type(_link_name, str)
EVERYWHERE = (HOST, LAN, NAMESPACE)

_HOST_PORT = r"([0-9]{1,5})/(tcp|udp)"


@dataclass(frozen=True, kw_only=True)
class HostPort:
    """A port of the host that guests may connect to."""

    port: int
    protocol: str

    def __str__(self) -> str:
        return f"{self.port}/{self.protocol}"


def _host_port(given: str) -> HostPort:
    match = re.fullmatch(_HOST_PORT, given, re.ASCII)
    if match is None or not 1 <= int(match[1]) <= 65535:
        raise SettingsError(f'{given!r} is not a port of the host: expected one such as "53/udp" or "8080/tcp".')
    return HostPort(port=int(match[1]), protocol=match[2])


TYPES[HostPort] = text(_host_port)


@dataclass(frozen=True, kw_only=True)
class NetworkPolicy:
    """What a network's packet filter accepts besides published ports and outgoing connections."""

    # fmt: off
    routed: bool = setting(
        "true: clients with a route to the network reach ports of its guests that are not published.", default=False
    )
    reach: tuple[NetworkName, ...] = setting(
        "Other networks to whose guests the guests of this one can connect.", default=()
    )
    isolated: bool = setting(
        "true: guests of this network do not reach each other.", default=False, on=(HOST, LAN, NAMESPACE)
    )
    host: tuple[HostPort, ...] = setting(
        'Ports of the host, at any of its addresses, that guests can connect to: ["53/udp", "8080/tcp"].', default=()
    )
    metadata: bool = setting(
        "true: guests reach the metadata services of clouds, which have credentials of the machine.",
        default=False, on=(HOST, INHERITED),
    )
    connections: Annotated[int, integer(16, 1 << 20)] = setting(
        # 1/64 of nf_conntrack_max of a host with 4 GiB or more
        "Connection limit of each guest, 16 to 1048576.", default=4096, on=(HOST, INHERITED),
    )
    fragments: bool = setting(
        "true: guests can send fragments of datagrams, which the host reassembles.",
        default=False, on=(HOST, LAN, INHERITED),
    )
    dhcp: bool = setting(
        "true: guests get their leased address by DHCP; requires dnsmasq-base.", default=False
    )
    egress: Egress = setting(
        'All destinations to which guests can open connections: ["10.0.0.0/8:5432/tcp"]; [] permits none.',
        default=None, shown="everything that the other keys permit", on=(HOST, INHERITED), example=["10.0.0.0/8"],
    )
    rate: Rate = setting(
        'Rate limits of each NIC, per second, which a job can lower: ["sent=10M", "received-packets=20000"].',
        default=UNLIMITED, on=(HOST, LAN, INHERITED),
    )
    sleep: bool = setting(
        "false: tasks in this network have no idle time, after which they would sleep.",
        default=True, on=(HOST, LAN, INHERITED),
    )
    idle_min: Annotated[int, integer(5, 365 * 86400)] = setting(
        "Least idle time of a task in seconds, 5 to 31536000.", default=5, on=(HOST, LAN, INHERITED)
    )
    reserved_addresses: Reserved = setting(
        'Addresses that no guest gets, inside ipv4 or ipv6: ["10.89.0.2-10.89.0.20"].', default=()
    )
    routes: Routes = setting(
        "Ranges of addresses of which tasks may have the host route parts to their guest.", default=(), on=(HOST, LAN)
    )
    # fmt: on


CLOSED = NetworkPolicy()


@dataclass(frozen=True, kw_only=True)
class NetworkKeys(NetworkPolicy):
    """The keys of a network as they are set. `on`: the kinds of networks that can have a key; by default HOST."""

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
        on=EVERYWHERE, example="2001:db8:1::1",
    )
    nat66: bool = setting(
        "true: IPv6 packets that leave the host have the host's address as source.", default=False
    )
    ra: bool = setting(
        "true: guests give themselves their leased IPv6 address, by router advertisements; requires dnsmasq-base.",
        default=False,
    )
    bridge: Annotated[str | None, LINK] = setting(
        "The name of the bridge, at most 15 characters.", default=None,
        shown="solo5-NAME, or its beginning and a hash if that is longer", example="solo5-default",
    )
    mtu: Annotated[int | None, MTUS] = setting(
        "The MTU in bytes, 68 to 65521; with ipv6 at least 1280.", default=None,
        shown="that of the link of the default route, at most 1500", on=(HOST, NAMESPACE), example=1500,
    )
    masquerade: bool | None = setting(
        "true: IPv4 packets that leave the host have the host's address as source.",
        default=None, shown="true", example=True,
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
    policy = {each.name for each in entries(NetworkPolicy)}
    return {each.name: each for each in sorted(entries(NetworkKeys), key=lambda each: each.name in policy)}


@cache
def keys_on(*kinds: str) -> Sequence[str]:
    """Return the keys that a network of one of these kinds can have."""
    return tuple(name for name, each in network_keys().items() if {*kinds} & {*each.metadata.get("on", (HOST,))})
