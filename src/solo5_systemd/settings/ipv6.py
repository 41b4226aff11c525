"""The IPv6 settings of a network: `ipv6`, `gateway6`, `nat66`, `ra`, and `pool6` on an existing bridge."""

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network

from solo5_systemd.base.decode import Fields
from solo5_systemd.base.errors import SettingsError
from solo5_systemd.settings.network_keys import NetworkKeys

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


def ipv6_settings(keys: NetworkKeys, fields: Fields, mtu: int) -> Ipv6 | None:
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
    if gateway is not None and (prefix is None or not is_host6(gateway, prefix)):
        raise fields.wrong(
            "gateway6", str(gateway), "an address inside the network's ipv6 prefix, other than its first"
        )
    if keys.ra and prefix is not None and prefix.prefixlen != SLAAC_LENGTH:
        raise fields.wrong("ipv6", str(prefix), f"a prefix of {SLAAC_LENGTH} bits beside ra, for guests to complete it")
    return Ipv6(prefix=prefix, gateway=gateway, nat66=keys.nat66, ra=keys.ra)


def joined_ipv6(keys: NetworkKeys, fields: Fields) -> tuple[bool, Ipv6 | None]:
    """Return the IPv6 settings of a network on an existing bridge; arguments and errors as for `ipv6_settings`.

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
    if gateway is not None and not (is_host6(gateway, prefix) or gateway.is_link_local):
        raise fields.wrong("gateway6", str(gateway), "the router's link-local address, or its one in the ipv6 prefix")
    if pool is not None and not (is_host6(pool.first, prefix) and is_host6(pool.last, prefix)):
        raise fields.wrong("pool6", fields.text("pool6"), "addresses inside the network's ipv6 prefix")
    if pool is not None and gateway is not None and gateway in pool:
        raise fields.wrong("pool6", fields.text("pool6"), f"a pool without gateway6, {gateway}")
    return True, Ipv6(prefix=prefix, gateway=gateway)


def _prefix(keys: NetworkKeys, fields: Fields) -> IPv6Network | None:
    """Return the prefix, if one is set."""
    if keys.ipv6 is None or isinstance(keys.ipv6, bool):
        return None
    if not _SHORTEST <= keys.ipv6.prefixlen <= _LONGEST or not _is_unicast(keys.ipv6):
        raise fields.wrong("ipv6", str(keys.ipv6), f"{_EXPECTED}, global or unique local")
    return keys.ipv6


def _is_unicast(prefix: IPv6Network) -> bool:
    """Return whether packets from addresses of the prefix can be routed: 2000::/3 or fc00::/7."""
    return any(prefix.subnet_of(IPv6Network(block)) for block in ("2000::/3", "fc00::/7"))


def is_host6(address: IPv4Address | IPv6Address, prefix: IPv6Network) -> bool:
    """Return whether a host may have an address; the first one is any router's (RFC 4291, section 2.6.1)."""
    return address in prefix and address != prefix.network_address
