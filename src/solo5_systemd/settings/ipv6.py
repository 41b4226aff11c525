"""The IPv6 settings of a network: `ipv6`, `gateway6`, `nat66`, `ra`, and `pool6` on a bridge of others."""

from dataclasses import dataclass
from ipaddress import IPv6Address, IPv6Network

from solo5_systemd.base.decode import Fields
from solo5_systemd.base.errors import SettingsError
from solo5_systemd.settings.address_pool import Pool6, address_pool6, range6

IPV6_KEYS = ("ipv6", "gateway6", "nat66", "ra")
POOL6_KEY = "pool6"

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


def ipv6_settings(fields: Fields, mtu: int) -> Ipv6 | None:
    """Return the IPv6 settings of a network's table; None: it has no IPv6. Other keys are ignored.

    Args:
        fields: the table.
        mtu: of the network, in bytes.

    Raises:
        Solo5Error: (of the class of `fields`) a value is invalid, or has no meaning without `ipv6`.
    """
    wanted, prefix = _prefix(fields)
    if not wanted:
        for key in IPV6_KEYS[1:]:
            if fields.has(key):
                raise SettingsError(f"{fields.path(key)} is set without ipv6: expected ipv6 = true or a prefix.")
        return None
    if mtu < IPV6_MTU:
        raise fields.wrong("mtu", mtu, f"at least {IPV6_MTU} bytes beside ipv6, the smallest MTU of IPv6")
    gateway = fields.parsed("gateway6", IPv6Address) if fields.has("gateway6") else None
    if gateway is not None and (prefix is None or not is_host6(gateway, prefix)):
        raise fields.wrong(
            "gateway6", str(gateway), "an address inside the network's ipv6 prefix, other than its first"
        )
    ra = fields.boolean("ra", default=False)
    if ra and prefix is not None and prefix.prefixlen != SLAAC_LENGTH:
        raise fields.wrong("ipv6", str(prefix), f"a prefix of {SLAAC_LENGTH} bits beside ra, for guests to complete it")
    return Ipv6(
        prefix=prefix,
        gateway=gateway,
        nat66=fields.boolean("nat66", default=False),
        ra=ra,
    )


def joined_ipv6(fields: Fields) -> tuple[bool, Ipv6 | None, Pool6 | None]:
    """Return the IPv6 settings of the table of a network on a bridge of others, whose other keys are ignored.

    Returns:
        Whether guests may send IPv6; prefix and router of the LAN, None where no address is leased; and the pool.

    Raises:
        Solo5Error: (of the class of `fields`) a value is invalid, or has no meaning without a prefix.
    """
    wanted, prefix = _prefix(fields)
    if prefix is None:
        for key in ("gateway6", POOL6_KEY):
            if fields.has(key):
                raise SettingsError(
                    f'{fields.path(key)} is set without a prefix: expected one such as ipv6 = "fd00::/64".'
                )
        return wanted, None, None
    gateway = fields.parsed("gateway6", IPv6Address) if fields.has("gateway6") else None
    if gateway is not None and not (is_host6(gateway, prefix) or gateway.is_link_local):
        raise fields.wrong("gateway6", str(gateway), "the router's link-local address, or its one in the ipv6 prefix")
    pool = fields.parsed(POOL6_KEY, address_pool6) if fields.has(POOL6_KEY) else None
    if pool is not None and not all(is_host6(address, prefix) for address in pool):
        raise fields.wrong(POOL6_KEY, fields.text(POOL6_KEY), "addresses inside the network's ipv6 prefix")
    if pool is not None and gateway is not None and pool[0] <= gateway <= pool[1]:
        raise fields.wrong(POOL6_KEY, fields.text(POOL6_KEY), f"a pool without gateway6, {gateway}")
    return True, Ipv6(prefix=prefix, gateway=gateway), pool


def _prefix(fields: Fields) -> tuple[bool, IPv6Network | None]:
    """Return whether the network has IPv6, and its prefix, if that is set."""
    if not fields.has("ipv6"):
        return False, None
    if fields.is_boolean("ipv6"):
        return fields.boolean("ipv6"), None
    prefix = fields.parsed("ipv6", range6)
    if not _SHORTEST <= prefix.prefixlen <= _LONGEST or not _is_unicast(prefix):
        raise fields.wrong("ipv6", str(prefix), f"{_EXPECTED}, global or unique local")
    return True, prefix


def _is_unicast(prefix: IPv6Network) -> bool:
    """Return whether packets from addresses of the prefix can be routed: 2000::/3 or fc00::/7."""
    return any(prefix.subnet_of(IPv6Network(block)) for block in ("2000::/3", "fc00::/7"))


def is_host6(address: IPv6Address, prefix: IPv6Network) -> bool:
    """Return whether a host may have an address; the first one is any router's (RFC 4291, section 2.6.1)."""
    return address in prefix and address != prefix.network_address
