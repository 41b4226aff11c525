"""A network of `[network.NAME]`: one that this package makes, or one on an existing bridge."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from solo5_systemd.base.decode import Fields
from solo5_systemd.base.errors import SettingsError, located
from solo5_systemd.base.names import NetworkName, hash_of, network_name
from solo5_systemd.settings.addresses import is_within, overlapping
from solo5_systemd.settings.network_keys import NetworkKeys, keys_on, keys_with, network_keys
from solo5_systemd.settings.network_policy import (
    HOST,
    INHERITED,
    LAN,
    NAMESPACE,
    Join,
    Network,
    NetworkPolicy,
    NetworkTraits,
)
from solo5_systemd.settings.records import record
from solo5_systemd.settings.resolver import Resolver

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


NOWHERE = Network(
    name=NO_NETWORK,
    bridge=f"solo5-{NO_NETWORK}",
    without_ipv4=True,
    masquerade=False,
    policy=NetworkPolicy(isolated=True),
)
"""The settings of `none`."""


def parse_network(key: str, tables: Fields) -> Network:
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
    if "join" in fields:
        why = f"is set as well as join: expected one of {', '.join(keys_on(LAN))}: the bridge is an existing one."
        _refuse_keys(fields, {*fields} - {*keys_on(LAN)}, why)
    else:
        of_lan = {*keys_on(LAN)} - {*keys_on(HOST)}
        _refuse_keys(fields, of_lan, "is set without join: expected the name of a bridge as join.")
    keys = record(NetworkKeys, fields)
    network = Network(
        **vars(record(NetworkTraits, fields)),
        name=name,
        bridge=keys.join or keys.bridge or default_bridge(name),
        ipv4=keys.ipv4 if isinstance(keys.ipv4, IPv4Network) else None,
        without_ipv4=keys.ipv4 is False,
        gateway4=keys.gateway4,
        ipv6=keys.ipv6 if isinstance(keys.ipv6, IPv6Network) else None,
        has_ipv6=None if keys.ipv6 is None else keys.ipv6 is not False,
        gateway6=keys.gateway6,
        mtu=keys.mtu or 0,
        policy=record(NetworkPolicy, fields),
        resolver=Resolver(servers=keys.dns, search=keys.search),
    )
    _check_ranges(network, fields)
    return _own(network, fields) if keys.join is None else _joining(network, keys, fields)


def _table(name: NetworkName, tables: Fields) -> Fields:
    """Return the table of a network, that of `[network.namespace]` with what it inherits; refuse unknown keys."""
    fields = tables.table(name)
    if name != NAMESPACE_NETWORK:
        fields.allow(*network_keys())
        return fields
    known = keys_on(NAMESPACE, INHERITED)
    why = f"has no effect: expected one of {', '.join(known)}, the keys of the network in namespaces of other programs."
    _refuse_keys(fields, {*fields} - {*known}, why)
    return fields.over(tables.table(DEFAULT_NETWORK).having(*keys_on(INHERITED)))


def _check_ranges(network: Network, fields: Fields) -> None:
    ipv4, prefix = network.ipv4, network.ipv6
    is_unicast = prefix is None or is_within(prefix, (IPv6Network("2000::/3"), IPv6Network("fc00::/7")))
    is_length = prefix is None or _SHORTEST <= prefix.prefixlen <= _LONGEST
    _check(
        fields,
        ("ipv4", ipv4 and ipv4.prefixlen > 30, "a prefix of at most 30 bits, with room for a gateway and a guest"),
        ("gateway4", _is_outside(network.gateway4, ipv4), "a host address inside the network's ipv4 range"),
        ("ipv6", not (is_unicast and is_length), f"{_EXPECTED}, global or unique local"),
    )


def _own(network: Network, fields: Fields) -> Network:
    """Return a network whose bridge this package makes, checked."""
    if not network.has_ipv6:
        _refuse_keys(fields, keys_with("ipv6"), "is set without ipv6: expected ipv6 = true or a prefix.")
    alone, prefix, ranges = network.without_ipv4, network.ipv6, network.ranges
    shown = " or ".join(map(str, ranges)) or "a range that is set as ipv4, or a prefix that is set as ipv6"
    reserved = network.policy.reserved_addresses
    are_inside = all(any(each.first in known and each.last in known for known in ranges) for each in reserved)
    is_other_length = network.ra and prefix and prefix.prefixlen != SLAAC_LENGTH
    in_namespace = network.name == NAMESPACE_NETWORK
    _check(
        fields,
        ("ipv4", alone and in_namespace, "a range: guests in a namespace of other programs have IPv4"),
        ("ipv4", alone and not network.has_ipv6, "a range, or ipv6 = true in addition to ipv4 = false"),
        ("masquerade", alone and "masquerade" in fields and network.masquerade, "false, as ipv4 is"),
        ("dhcp", alone and network.policy.dhcp, "false, as ipv4 is"),
        ("mtu", network.has_ipv6 and (network.mtu or MTU) < IPV6_MTU, f"at least {IPV6_MTU} bytes with ipv6"),
        ("gateway6", _is_outside(network.gateway6, prefix), "an address inside the ipv6 prefix, other than its first"),
        ("ipv6", is_other_length, f"a prefix of {SLAAC_LENGTH} bits with ra"),
        ("reserved_addresses", not are_inside, f"addresses inside {shown}"),
    )
    return replace(network, masquerade=network.masquerade and not alone)


def _joining(network: Network, keys: NetworkKeys, fields: Fields) -> Network:
    """Return a network that joins an existing bridge, checked."""
    if network.ipv6 is None:
        without = 'is set without a prefix: expected one such as ipv6 = "fd00::/64".'
        _refuse_keys(fields, ("gateway6", "pool6"), without)
    is_on_link = network.gateway6 is not None and network.gateway6.is_link_local
    expected = "the router's link-local address, or its one in the ipv6 prefix"
    _check(
        fields,
        ("ipv4", isinstance(keys.ipv4, bool), "the LAN's range"),
        ("gateway6", not is_on_link and _is_outside(network.gateway6, network.ipv6), expected),
    )
    pools = ("pool", keys.pool, network.ipv4, keys.gateway4), ("pool6", keys.pool6, network.ipv6, keys.gateway6)
    for key, pool, inside, gateway in pools:
        if pool is not None:
            is_outside = _is_outside(pool.first, inside) or _is_outside(pool.last, inside)
            _check(
                fields,
                (key, is_outside, "host addresses inside the network's range"),
                (key, gateway and gateway in pool, f"a pool without the gateway, {gateway}"),
            )
    join = Join(vlan=keys.vlan or 0, pool=keys.pool, ipv6=bool(keys.ipv6), pool6=keys.pool6)
    return replace(network, masquerade=False, join=join, has_ipv6=network.ipv6 is not None)


def _refuse_keys(fields: Fields, keys: Collection[str], why: str) -> None:
    for key in fields:  # in the order of the table: `keys` may be a set
        if key in keys:
            raise SettingsError(f"{fields.path(key)} {why}")


def _check(fields: Fields, *checks: tuple[str, object, str]) -> None:
    """Raise the error of the first key that is wrong, with what is expected of it."""
    for key, is_wrong, expected in checks:
        if is_wrong:
            raise fields.wrong(key, fields.having(key)[key], expected)


def _is_outside(address: IPv4Address | IPv6Address | None, network: IPv4Network | IPv6Network | None) -> bool:
    """Return whether an address is set that no host has there; the first one of IPv6 is any router's (RFC 4291)."""
    if address is None or network is None:  # a range that is chosen later need not have the address
        return address is not None
    last = network.broadcast_address if network.version == 4 else None
    return address not in network or address in (network.network_address, last)


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


def check_distinct(networks: Sequence[Network]) -> None:
    """Check that networks have bridges and ranges of their own; raises SettingsError."""
    for index, one in enumerate(networks):
        for other in networks[:index]:
            vlans = one.join and one.join.vlan, other.join and other.join.vlan
            # Guests in two VLANs of one bridge do not meet.
            if one.bridge == other.bridge and (None in vlans or vlans[0] == vlans[1]):
                key = "bridge" if one.join is None else "join"
                raise SettingsError(
                    f"network.{one.name}.{key} is {one.bridge!r}, as network.{other.name}'s: expected a bridge of its "
                    "own, or another vlan of one that both join."
                )
            for own in one.ranges:  # one that is not set is chosen free of the others
                if taken := overlapping(own, other.ranges):
                    raise SettingsError(
                        f"network.{one.name}.ipv{own.version} is {own}, which overlaps network.{other.name}'s {taken}: "
                        f"expected a {'range' if own.version == 4 else 'prefix'} of its own."
                    )
