"""Choose the IPv4 range and the IPv6 prefix of a network; check requested ones; routes that overtake them.

Each is derived from the network's name, so that a network has the same again unless another program has it by then.

Routes of other programs, such as a VPN's, can take the packets for guests away from the bridge of their network. One
that is wider than a network is harmless: the kernel prefers the bridge's. One that is more specific, or of a routing
table with precedence, takes what the host sends to the guests, and what it forwards to them.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from solo5_systemd.base.errors import HostError
from solo5_systemd.base.names import NetworkName
from solo5_systemd.network.derived_addresses import number_of
from solo5_systemd.network.model import IpAddress
from solo5_systemd.network.overview import Network
from solo5_systemd.settings.addresses import IpNetwork
from solo5_systemd.settings.network import DEFAULT_NETWORK, MTU, Ipv6, NetworkSettings

CANDIDATES = tuple(
    subnet
    for block in ("10.153.0.0/16", "172.29.0.0/16", "192.168.192.0/18")
    for subnet in IPv4Network(block).subnets(new_prefix=24)
)
"""The ranges for a network without `ipv4`: /24s of each private block (RFC 1918), so that a host with a VPN route for
one whole block has the others, and none of the default ranges of Docker, Podman, libvirt and Nomad."""


def choose_network(
    settings: NetworkSettings,
    used: Iterable[Network],
    routed: Iterable[IPv4Network],
    remembered: Collection[IpAddress] = (),
) -> Network:
    """Return a network with a range and gateway, chosen where the settings have none, unless it has IPv6 only.

    Its IPv6 prefix is added by `with_ipv6`.

    Args:
        routed: the ranges of the host's routes and addresses, without the default route.
        remembered: addresses that declared tasks had on this network last: their range is chosen if it is free.

    Raises:
        HostError: the range overlaps a network in use or a route of the host, or no candidate is free.
    """
    busy = {network.ipv4: f"network {network.name}" for network in used if network.ipv4}
    if settings.join is not None:  # its range is one of the host's routes
        if settings.ipv4 is not None:
            check_overlap(settings.name, settings.ipv4, busy.items())
        return network_of(settings, settings.ipv4, settings.gateway4)
    if settings.without_ipv4:
        return network_of(settings, None, None)
    busy |= {destination: "the host's own routes" for destination in routed if destination.prefixlen}
    ipv4 = settings.ipv4 or _free_range(settings.name, tuple(busy), remembered)
    check_overlap(settings.name, ipv4, busy.items())
    return network_of(settings, ipv4, settings.gateway4 or ipv4[1])


def network_of(settings: NetworkSettings, ipv4: IPv4Network | None, gateway4: IPv4Address | None) -> Network:
    """Return a network of its settings, with a range and a gateway, without IPv6."""
    return Network(
        name=settings.name,
        bridge=settings.bridge,
        ipv4=ipv4,
        gateway4=gateway4,
        mtu=MTU if settings.mtu is None else settings.mtu,
        masquerade=settings.masquerade,
        policy=settings.policy,
        join=settings.join,
        shared=settings.shared,
    )


def _free_range(name: NetworkName, busy: Sequence[IPv4Network], remembered: Collection[IpAddress]) -> IPv4Network:
    # The default network has the same range on all hosts with free routes: the first candidate.
    first = 0 if name == DEFAULT_NETWORK else number_of("network", name) % 256
    had = [candidate for candidate in CANDIDATES if any(address in candidate for address in remembered)]
    for candidate in (*had, *CANDIDATES[first:], *CANDIDATES[:first]):
        if not any(candidate.overlaps(other) for other in busy):
            return candidate
    raise HostError(
        f"network {name} has no range: the host's routes cover all of 10.153.0.0/16, 172.29.0.0/16 and "
        "192.168.192.0/18.",
        f"Set a range as network.{name}.ipv4 below /etc/solo5.",
    )


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


_OUR_TABLE = 505
"""The routing table of the remedy: one that no program is known to use."""


@dataclass(frozen=True, kw_only=True)
class Overtaken:
    """A guest whose packets leave by a route other than that of its network's bridge.

    Attributes:
        inside: the range of the network that has the guest's address.
        route: a phrase that names the route, with its link and its table.
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
