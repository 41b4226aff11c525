"""IPv6 prefixes of networks and addresses of guests, derived from names like those of `network.ipam`."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from ipaddress import IPv6Address, IPv6Network

from solo5_systemd.base.errors import HostError
from solo5_systemd.base.names import NetworkName
from solo5_systemd.network.derived_addresses import number_of
from solo5_systemd.network.model import IpAddress, Network
from solo5_systemd.settings.addresses import IpNetwork
from solo5_systemd.settings.network import DEFAULT_NETWORK, Ipv6, NetworkSettings

_SUBNETS = 1 << 16
"""Prefixes of 64 bits in one of 48."""


def with_ipv6(
    network: Network,
    ipv6: Ipv6,
    used: Iterable[Network],
    routed: Iterable[IPv6Network],
    local: Callable[[], IPv6Network],
    remembered: Collection[IpAddress] = (),
) -> Network:
    """Return a network with an IPv6 prefix and gateway, chosen where the settings have none.

    Args:
        network: a new network, without IPv6.
        ipv6: its IPv6 settings.
        routed: the prefixes of the host's routes and addresses, and those of the settings of other networks.
        local: returns this host's unique local prefix.
        remembered: addresses that declared tasks had on this network last: their prefix is chosen if it is free.

    Raises:
        HostError: the prefix overlaps a network in use or a route of the host, or none is free.
    """
    busy = {other.ipv6: f"network {other.name}" for other in used if other.ipv6}
    busy |= {prefix: "the host's own routes" for prefix in routed if prefix.prefixlen > _WIDE}
    prefix = ipv6.prefix or _free_prefix(network.name, local(), busy, remembered)
    check_overlap(network.name, prefix, busy.items())
    gateway = ipv6.gateway or prefix[1]
    return replace(network, ipv6=prefix, gateway6=gateway, nat66=ipv6.nat66, ra=ipv6.ra)


_WIDE = 16
"""Bits of the longest prefix that is a default route rather than a network: ::/0, 2000::/3, fc00::/7, fd00::/8."""


def _free_prefix(
    name: NetworkName, local: IPv6Network, busy: Collection[IPv6Network], remembered: Collection[IpAddress]
) -> IPv6Network:
    first = 0 if name == DEFAULT_NETWORK else number_of("network6", name) % _SUBNETS
    had = (int(address) >> 64 & (_SUBNETS - 1) for address in remembered if address in local)
    for subnet in (*had, *((first + offset) % _SUBNETS for offset in range(_SUBNETS))):
        candidate = IPv6Network((int(local.network_address) | subnet << 64, 64))
        if not any(candidate.overlaps(other) for other in busy):
            return candidate
    raise HostError(
        f"network {name} has no IPv6 prefix: the host's routes cover all of {local}.",
        f"Set a prefix as network.{name}.ipv6 below /etc/solo5.",
    )


def check_overlap(name: NetworkName, chosen: IpNetwork, busy: Iterable[tuple[IpNetwork, str]]) -> None:
    """Check that the range or prefix of a network overlaps none that is in use.

    Raises:
        HostError: it does one of these, each with its owner.
    """
    what = "range" if chosen.version == 4 else "prefix"
    for other, owner in busy:
        if chosen.overlaps(other):
            raise HostError(
                f"network {name} cannot use {chosen}: it overlaps {other} of {owner}.",
                f"Set another {what} as network.{name}.ipv{chosen.version} below /etc/solo5.",
            )


def advertised_servers(settings: NetworkSettings) -> tuple[IPv6Address, ...]:
    """Return the name servers in a network's router advertisements."""
    return tuple(server for server in settings.resolver.servers if isinstance(server, IPv6Address))
