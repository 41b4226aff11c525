"""Choose the IPv4 range and the IPv6 prefix of a network; check requested ones; routes that overtake them.

Each is derived from the network's name, so that a network has the same again unless another program has it by then.

Routes of other programs, such as a VPN's, can take the packets for guests away from the bridge of their network. One
that is wider than a network is harmless: the kernel prefers the bridge's. One that is more specific, or of a routing
table with precedence, takes what the host sends to the guests, and what it forwards to them.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from ipaddress import IPv4Network, IPv6Network

from solo5_systemd.base.errors import HostError
from solo5_systemd.base.names import NetworkName
from solo5_systemd.network.derived_addresses import number_of
from solo5_systemd.network.model import IpAddress
from solo5_systemd.settings.addresses import IpNetwork, overlapping
from solo5_systemd.settings.network import DEFAULT_NETWORK
from solo5_systemd.settings.network_policy import Network

CANDIDATES = tuple(
    subnet
    for block in ("10.153.0.0/16", "172.29.0.0/16", "192.168.192.0/18")
    for subnet in IPv4Network(block).subnets(new_prefix=24)
)
"""The ranges for a network without `ipv4`: /24s of each private block (RFC 1918), so that a host with a VPN route for
one whole block has the others, and none of the default ranges of Docker, Podman, libvirt and Nomad."""


def choose_network(
    settings: Network,
    used: Iterable[Network],
    routed: Iterable[IpNetwork],
    local: Callable[[], IPv6Network],
    remembered: Collection[IpAddress] = (),
) -> Network:
    """Return a network with a range and, with IPv6, a prefix: chosen where the settings have none.

    Args:
        used: the other networks.
        routed: ranges and prefixes of the host's routes and addresses, and others that it must not overlap.
        local: returns this host's unique local prefix.
        remembered: addresses that declared tasks had on this network last: range and prefix are theirs if these are
            free.

    Raises:
        HostError: the range or the prefix overlaps a network in use or a route of the host, or none is free.
    """
    name, own = settings.name, settings.join is None
    ipv4, ipv6 = settings.ipv4, settings.ipv6
    used, routed = (*used,), (*routed,) if own else ()  # the range of a joined network is one of the host's routes
    if ipv4 or (own and not settings.without_ipv4):
        ranges = _busy(4, used, routed)
        ipv4 = ipv4 or _free_range(name, ranges, remembered)
        _check_overlap(name, ipv4, ranges)
    if own and settings.has_ipv6:
        prefixes = _busy(6, used, routed)
        ipv6 = ipv6 or _free_prefix(name, local(), prefixes, remembered)
        _check_overlap(name, ipv6, prefixes)
    gateway4 = settings.gateway4 or (ipv4[1] if ipv4 and own else None)
    gateway6 = settings.gateway6 or (ipv6[1] if ipv6 and own else None)
    return replace(settings, ipv4=ipv4, ipv6=ipv6, gateway4=gateway4, gateway6=gateway6)


_WIDE = {4: 0, 6: 16}
"""Bits of the longest prefix that is a default route rather than a network: ::/0, 2000::/3, fc00::/7, fd00::/8."""


def _busy(version: int, used: Iterable[Network], routed: Iterable[IpNetwork]) -> dict[IpNetwork, str]:
    """Return the ranges of a version of IP that a network must not overlap, each with its owner."""
    busy = {inside: f"network {network.name}" for network in used if (inside := network.inside(version))}
    taken = (each for each in routed if each.version == version and each.prefixlen > _WIDE[version])
    return busy | dict.fromkeys(taken, "the host's own routes")


def _free_range(name: NetworkName, busy: Collection[IpNetwork], remembered: Collection[IpAddress]) -> IPv4Network:
    # The default network has the same range on all hosts with free routes: the first candidate.
    first = 0 if name == DEFAULT_NETWORK else number_of("network", name) % 256
    had = [candidate for candidate in CANDIDATES if any(address in candidate for address in remembered)]
    for candidate in (*had, *CANDIDATES[first:], *CANDIDATES[:first]):
        if not overlapping(candidate, busy):
            return candidate
    raise HostError(
        f"network {name} has no range: the host's routes cover all of 10.153.0.0/16, 172.29.0.0/16 and "
        "192.168.192.0/18.",
        f"Set a range as network.{name}.ipv4 below /etc/solo5.",
    )


_SUBNETS = 1 << 16
"""Prefixes of 64 bits in one of 48."""


def _free_prefix(
    name: NetworkName, local: IPv6Network, busy: Collection[IpNetwork], remembered: Collection[IpAddress]
) -> IPv6Network:
    first = 0 if name == DEFAULT_NETWORK else number_of("network6", name) % _SUBNETS
    had = (int(address) >> 64 & (_SUBNETS - 1) for address in remembered if address in local)
    for subnet in (*had, *((first + offset) % _SUBNETS for offset in range(_SUBNETS))):
        candidate = IPv6Network((int(local.network_address) | subnet << 64, 64))
        if not overlapping(candidate, busy):
            return candidate
    raise HostError(
        f"network {name} has no IPv6 prefix: the host's routes cover all of {local}.",
        f"Set a prefix as network.{name}.ipv6 below /etc/solo5.",
    )


def _check_overlap(name: NetworkName, chosen: IpNetwork, busy: Mapping[IpNetwork, str]) -> None:
    if (other := overlapping(chosen, busy)) is not None:
        what = "range" if chosen.version == 4 else "prefix"
        raise HostError(
            f"network {name} cannot use {chosen}: it overlaps {other} of {busy[other]}.",
            f"Set another {what} as network.{name}.ipv{chosen.version} below /etc/solo5.",
        )


_OUR_TABLE = 505
"""The routing table of the remedy: one that no program is known to use."""


@dataclass(frozen=True, kw_only=True)
class Overtaken:
    """A guest whose packets leave by a route other than that of its network's bridge.

    Attributes:
        inside: the range of the network that has the guest's address.
        route: a phrase with its link and its table.
    """

    network: NetworkName
    bridge: str
    inside: IPv4Network | IPv6Network
    guest: IpAddress
    route: str

    @property
    def remedy(self) -> str:
        """The commands that give all guests of the network their packets back, against every kind of route."""
        ip = f"ip -{self.inside.version}"
        return (
            f"{ip} route replace {self.inside} dev {self.bridge} table {_OUR_TABLE} && "
            f"{ip} rule add priority 1 to {self.inside} lookup {_OUR_TABLE}"
        )

    def __str__(self) -> str:
        return (
            f"{self.route} takes the packets for {self.guest} of network {self.network}. While the network is in use, "
            f"this gives them back: {self.remedy}; for good, keep the other program out of {self.inside}, or set "
            f"another range as network.{self.network}.ipv{self.inside.version}"
        )
