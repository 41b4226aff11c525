"""A network of `[network.NAME]`: one that this package makes, or one on an existing bridge."""

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from solo5_systemd.base.decode import Fields
from solo5_systemd.base.errors import SettingsError, located
from solo5_systemd.base.names import NetworkName, hash_of, network_name
from solo5_systemd.settings.addresses import check_within, is_within, overlapping
from solo5_systemd.settings.network_keys import NetworkKeys, keys_on, network_keys
from solo5_systemd.settings.network_policy import CLOSED, HOST, INHERITED, LAN, NAMESPACE, Join, NetworkPolicy
from solo5_systemd.settings.records import record
from solo5_systemd.settings.resolver import UNSET, Resolver

MTU = 1500
"""Bytes: the MTU of Ethernet, and the largest of a network that sets none."""

DEFAULT_NETWORK = NetworkName("default")
NAMESPACE_NETWORK = NetworkName("namespace")
"""The only network of a namespace that guests share with other programs."""

NO_NETWORK = NetworkName("none")
"""The network of a NIC that leads nowhere, for an image whose devices have to be connected."""

_LINK_MAX = 15
"""Most characters of a link's name: IFNAMSIZ without its NUL."""

SLAAC_LENGTH = 64
"""Bits of a prefix in which a guest gives itself an address: the other 64 are of its MAC (RFC 2464, section 4)."""

IPV6_MTU = 1280
"""Bytes: the smallest MTU of a link with IPv6 (RFC 8200, section 5)."""

_SHORTEST, _LONGEST = 64, 120
_EXPECTED = f'true, false, or a prefix of {_SHORTEST} to {_LONGEST} bits such as "2001:db8:1::/64"'


@dataclass(frozen=True, kw_only=True)
class Ipv6:
    """The IPv6 settings of a network that has IPv6.

    Attributes:
        prefix: None: a /64 of this host's unique local prefix.
        gateway: the host's address in it; None: the first one.
        nat66: packets that leave the host get the host's address as their source.
        ra: the host sends router advertisements, by which guests give themselves the address of their lease.
    """

    prefix: IPv6Network | None = None
    gateway: IPv6Address | None = None
    nat66: bool = False
    ra: bool = False


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """One network.

    Attributes:
        ipv4: its range; None: a free one is chosen, or, with `join`, guests have addresses of the LAN's DHCP.
        without_ipv4: it has no range, and none is chosen: guests have IPv6 only.
        gateway4: the host's address in it; None: the first one. With `join`, a router's; None: there is none.
        mtu: of its bridge, in bytes; None: `default_mtu`. With `join`, the bridge's own is used instead.
        join: the bridge is one of others; None: one that this package makes.
        ipv6: None: guests have no IPv6, or, with `join`, what `Join.ipv6` permits. With `join`, a prefix of the LAN's.
        resolver: name servers and search domains of its guests; empty: the host's.
        shared: it is in the network namespace of other programs (`of_namespace`).
        without_ipv6: (of the network `namespace`) guests have no IPv6 where their namespace has.
    """

    name: NetworkName
    bridge: str
    ipv4: IPv4Network | None = None
    without_ipv4: bool = False
    gateway4: IPv4Address | None = None
    mtu: int | None = None
    masquerade: bool = True
    policy: NetworkPolicy = CLOSED
    join: Join | None = None
    ipv6: Ipv6 | None = None
    resolver: Resolver = UNSET
    shared: bool = False
    without_ipv6: bool = False


NOWHERE = NetworkSettings(
    name=NO_NETWORK,
    bridge=f"solo5-{NO_NETWORK}",
    without_ipv4=True,
    masquerade=False,
    policy=NetworkPolicy(isolated=True),
)
"""The settings of `none`."""


def parse_network(key: str, tables: Fields) -> NetworkSettings:
    """Return the settings of one network.

    Args:
        key: its name, as it is written.
        tables: of all networks by name; `namespace` has keys of the table of `default` that it does not set.

    Raises:
        SettingsError: the name or a value is invalid, or a key is unknown or without effect.
    """
    with located(f"network.{key}", SettingsError):
        name = network_name(key)
    fields = _table(name, tables)
    if name == NO_NETWORK:
        raise SettingsError(
            f"network.{name} cannot be defined: expected another name, since a NIC on it is connected to nothing."
        )
    if fields.has("join"):
        return _joining(name, fields)
    return _own(name, fields)


def _table(name: NetworkName, tables: Fields) -> Fields:
    """Return the table of a network, that of `[network.namespace]` with what it inherits; refuse unknown keys."""
    fields = tables.table(name)
    if name != NAMESPACE_NETWORK:
        fields.allow(*network_keys())
        return fields
    known = keys_on(NAMESPACE, INHERITED)
    for key in fields:
        if key not in known:
            raise SettingsError(
                f"{fields.path(key)} has no effect: expected one of {', '.join(known)}, the "
                "keys of the network in namespaces of other programs."
            )
    return fields.over(tables.table(DEFAULT_NETWORK).having(*keys_on(INHERITED)))


def _own(name: NetworkName, fields: Fields) -> NetworkSettings:
    """Return a network whose bridge this package makes."""
    for key in keys_on(LAN):
        if key not in keys_on(HOST) and fields.has(key):
            raise SettingsError(f"{fields.path(key)} is set without join: expected the name of a bridge as join.")
    keys = record(NetworkKeys, fields)
    without_ipv4 = _is_without_ipv4(name, keys, fields)
    ipv4 = _range4(
        keys,
        fields,
        "room for a gateway and a guest: a prefix of at most 30",
        "a host address inside the network's ipv4 range",
    )
    ipv6 = _ipv6_settings(keys, fields, keys.mtu or MTU)
    if without_ipv4 and ipv6 is None:
        raise fields.wrong("ipv4", False, "a range, or ipv6 = true beside ipv4 = false")
    ranges = [each for each in (ipv4, ipv6 and ipv6.prefix) if each]
    check_within(keys.reserved_addresses, ranges, fields.path("reserved_addresses"))
    return NetworkSettings(
        name=name,
        bridge=keys.bridge or default_bridge(name),
        ipv4=ipv4,
        without_ipv4=without_ipv4,
        gateway4=keys.gateway4,
        mtu=keys.mtu,
        masquerade=not without_ipv4 if keys.masquerade is None else keys.masquerade,
        policy=record(NetworkPolicy, fields),
        ipv6=ipv6,
        without_ipv6=name == NAMESPACE_NETWORK and keys.ipv6 is False,
        resolver=Resolver(servers=keys.dns, search=keys.search),
    )


def _joining(name: NetworkName, fields: Fields) -> NetworkSettings:
    """Return a network that joins an existing bridge."""
    known = keys_on(LAN)
    for key in fields:
        if key not in known:
            raise SettingsError(
                f"{fields.path(key)} is set beside join: expected one of {', '.join(known)}, since the bridge "
                "and what it forwards belong to others."
            )
    keys = record(NetworkKeys, fields)
    if isinstance(keys.ipv4, bool):
        raise fields.wrong("ipv4", keys.ipv4, "the LAN's range")
    ipv4 = _range4(
        keys,
        fields,
        "the LAN's range, with a prefix of at most 30",
        "the address of a router inside the network's ipv4 range",
    )
    if keys.pool and (ipv4 is None or not all(_is_host(each, ipv4) for each in (keys.pool.first, keys.pool.last))):
        raise fields.wrong("pool", fields.text("pool"), "addresses inside the network's ipv4 range")
    if keys.pool and keys.gateway4 and keys.gateway4 in keys.pool:
        raise fields.wrong("pool", fields.text("pool"), f"a pool without gateway4, {keys.gateway4}")
    may_send6, ipv6 = _joined_ipv6(keys, fields)
    return NetworkSettings(
        name=name,
        bridge=keys.join or "",
        ipv4=ipv4,
        gateway4=keys.gateway4,
        masquerade=False,
        policy=record(NetworkPolicy, fields),
        join=Join(vlan=keys.vlan or 0, pool=keys.pool, ipv6=may_send6, pool6=keys.pool6),
        ipv6=ipv6,
        resolver=Resolver(servers=keys.dns, search=keys.search),
    )


def _range4(keys: NetworkKeys, fields: Fields, expected: str, gateway: str) -> IPv4Network | None:
    """Return the range that is set, with `gateway4` in it; None: it is chosen, or there is none."""
    ipv4 = None if isinstance(keys.ipv4, bool) else keys.ipv4
    if ipv4 and ipv4.prefixlen > 30:
        raise fields.wrong("ipv4", str(ipv4), expected)
    if keys.gateway4 is not None and (ipv4 is None or not _is_host(keys.gateway4, ipv4)):
        raise fields.wrong("gateway4", str(keys.gateway4), gateway)
    return ipv4


def _is_without_ipv4(name: NetworkName, keys: NetworkKeys, fields: Fields) -> bool:
    """Return whether `ipv4 = false` is set, for guests with IPv6 only."""
    if keys.ipv4 is not False:
        return False
    if name == NAMESPACE_NETWORK:
        raise fields.wrong("ipv4", False, "a range: guests in a namespace of other programs have IPv4")
    for key, value in (("masquerade", keys.masquerade), ("dhcp", keys.dhcp)):  # of IPv4
        if value:
            raise fields.wrong(key, True, f"no {key} beside ipv4 = false")
    return True


def _ipv6_settings(keys: NetworkKeys, fields: Fields, mtu: int) -> Ipv6 | None:
    """Return the IPv6 settings of a network; None: it has no IPv6.

    Raises:
        SettingsError: a value is invalid, or has no meaning without `ipv6`.
    """
    if not keys.ipv6:
        for key in ("gateway6", "nat66", "ra"):
            if fields.has(key):
                raise SettingsError(f"{fields.path(key)} is set without ipv6: expected ipv6 = true or a prefix.")
        return None
    if mtu < IPV6_MTU:
        raise fields.wrong("mtu", mtu, f"at least {IPV6_MTU} bytes beside ipv6, the smallest MTU of IPv6")
    prefix, gateway = _prefix(keys, fields), keys.gateway6
    if gateway is not None and (prefix is None or not _is_host(gateway, prefix)):
        raise fields.wrong(
            "gateway6", str(gateway), "an address inside the network's ipv6 prefix, other than its first"
        )
    if keys.ra and prefix is not None and prefix.prefixlen != SLAAC_LENGTH:
        raise fields.wrong("ipv6", str(prefix), f"a prefix of {SLAAC_LENGTH} bits beside ra, for guests to complete it")
    return Ipv6(prefix=prefix, gateway=gateway, nat66=keys.nat66, ra=keys.ra)


def _joined_ipv6(keys: NetworkKeys, fields: Fields) -> tuple[bool, Ipv6 | None]:
    """Return the IPv6 settings of a network on an existing bridge; arguments and errors as for `_ipv6_settings`.

    Returns:
        Whether guests may send IPv6, and prefix and router of the LAN, None where no address is leased.
    """
    prefix, gateway, pool = _prefix(keys, fields), keys.gateway6, keys.pool6
    if prefix is None:
        for key in ("gateway6", "pool6"):
            if fields.has(key):
                raise SettingsError(
                    f'{fields.path(key)} is set without a prefix: expected one such as ipv6 = "fd00::/64".'
                )
        return bool(keys.ipv6), None
    if gateway is not None and not (_is_host(gateway, prefix) or gateway.is_link_local):
        raise fields.wrong("gateway6", str(gateway), "the router's link-local address, or its one in the ipv6 prefix")
    if pool is not None and not (_is_host(pool.first, prefix) and _is_host(pool.last, prefix)):
        raise fields.wrong("pool6", fields.text("pool6"), "addresses inside the network's ipv6 prefix")
    if pool is not None and gateway is not None and gateway in pool:
        raise fields.wrong("pool6", fields.text("pool6"), f"a pool without gateway6, {gateway}")
    return True, Ipv6(prefix=prefix, gateway=gateway)


def _prefix(keys: NetworkKeys, fields: Fields) -> IPv6Network | None:
    """Return the prefix, if one is set."""
    if keys.ipv6 is None or isinstance(keys.ipv6, bool):
        return None
    is_unicast = is_within(keys.ipv6, (IPv6Network("2000::/3"), IPv6Network("fc00::/7")))
    if not _SHORTEST <= keys.ipv6.prefixlen <= _LONGEST or not is_unicast:
        raise fields.wrong("ipv6", str(keys.ipv6), f"{_EXPECTED}, global or unique local")
    return keys.ipv6


def _is_host(address: IPv4Address | IPv6Address, network: IPv4Network | IPv6Network) -> bool:
    """Return whether a host may have an address; the first one of IPv6 is any router's (RFC 4291, section 2.6.1)."""
    last = network.broadcast_address if network.version == 4 else None
    return address in network and address not in (network.network_address, last)


def default_mtu(uplink: int | None, *, ipv6: bool = False) -> int:
    """Return the MTU of a network without `mtu`: that of the uplink, at most 1500.

    A guest that sends larger packets than the uplink's needs path MTU discovery, which unikernels seldom have.

    Args:
        uplink: the MTU of the link of the default route, in bytes; None: there is none.
        ipv6: the network has IPv6, whose smallest MTU is 1280.
    """
    mtu = MTU if uplink is None else min(MTU, uplink)
    return max(mtu, IPV6_MTU) if ipv6 else mtu


def default_bridge(name: NetworkName) -> str:
    """Return `solo5-NAME`; if that is longer than 15 characters, `solo5-` with a prefix and a hash of the name."""
    bridge = f"solo5-{name}"
    if len(bridge) <= _LINK_MAX:
        return bridge
    return f"solo5-{name[:4]}{hash_of(name, 5)}"


def check_distinct(networks: Sequence[NetworkSettings]) -> None:
    """Check that networks have bridges and ranges of their own.

    Raises:
        SettingsError: two share one.
    """
    for index, one in enumerate(networks):
        for other in networks[:index]:
            if one.bridge == other.bridge and (one.join is None or other.join is None):
                key = "bridge" if one.join is None else "join"
                raise SettingsError(
                    f"network.{one.name}.{key} is {one.bridge!r}, as network.{other.name}'s: expected a bridge of its "
                    "own."
                )
            if one.bridge == other.bridge and one.join and other.join and one.join.vlan == other.join.vlan:
                raise SettingsError(
                    f"network.{one.name} joins {one.bridge!r} with the VLAN of network.{other.name}: expected another "
                    "bridge, or another vlan."
                )
            for key, what, own, taken in (
                ("ipv4", "range", one.ipv4, other.ipv4),
                ("ipv6", "prefix", one.ipv6 and one.ipv6.prefix, other.ipv6 and other.ipv6.prefix),
            ):
                if own and taken and overlapping(own, [taken]):
                    raise SettingsError(
                        f"network.{one.name}.{key} is {own}, which overlaps network.{other.name}'s {taken}: expected "
                        f"a {what} of its own."
                    )
