"""The overview of the networks, as `solo5ctl network` and `solo5ctl metrics` show it."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from solo5_systemd.network.drops import Dropped
from solo5_systemd.network.ipam import free_addresses
from solo5_systemd.network.model import Network, NetworkOverview, is_without_ipv4
from solo5_systemd.network.network_ranges import network_of
from solo5_systemd.networkd.address_choice import Choice
from solo5_systemd.networkd.parts import Parts
from solo5_systemd.settings.network import Ipv6, NetworkSettings
from solo5_systemd.settings.resolver import UNSET


class Overview:
    """Reads the networks of one network namespace with their counts; changes nothing, is not thread-safe.

    `choice`: has the MTU of a network that is not in use.
    """

    def __init__(self, parts: Parts, choice: Choice) -> None:
        self._parts = parts
        self._choice = choice

    def networks(self) -> Sequence[NetworkOverview]:
        """Return every network by name: those in use, and of the host's own namespace the configured ones."""
        settings = () if self._parts.namespace else self._parts.settings().networks
        networks = self._parts.bridges.networks
        mtu_of = self._choice.default_mtus()
        known = {each.name: self._configured(each, mtu_of) for each in settings if each.name not in networks}
        dropped = self._parts.tables.dropped() if self._parts.bridges.up else Dropped()
        used = {name: self._in_use(each, dropped) for name, each in networks.items()}
        resolvers = {each.name: each.resolver for each in settings}
        return sorted(
            (replace(each, resolver=resolvers.get(name, UNSET)) for name, each in (known | used).items()),
            key=lambda network: network.name,
        )

    def _in_use(self, network: Network, dropped: Dropped) -> NetworkOverview:
        leases = self._parts.leases.allocations.leases.get(network.name, 0)
        segments = (segment for segment, name in self._parts.bridges.segments.items() if name == network.name)
        taps = (lease.tap for _, lease in self._parts.leases.attached_leases() if lease.network == network.name)
        overview = NetworkOverview(
            **vars(network),
            up=network.name in self._parts.bridges.up,
            leases=leases,
            free=free_addresses(network, leases),
            dropped=dropped.within((network.ipv4, network.ipv6), {network.bridge, *segments, *taps}),
            without_ipv4=is_without_ipv4(network),
            namespace=self._parts.namespace,
        )
        return self._with_bridge(overview)

    def _configured(self, settings: NetworkSettings, mtu_of: Callable[[NetworkSettings], int]) -> NetworkOverview:
        mtu = 0 if settings.mtu or settings.join else mtu_of(settings)
        return self._with_bridge(configured(settings, mtu))

    def _with_bridge(self, overview: NetworkOverview) -> NetworkOverview:
        """Return an overview with the state and the MTU of a joined bridge."""
        if overview.join is None:
            return overview
        bridge = self._parts.links.link(overview.bridge)
        return replace(overview, up=bridge is not None, mtu=bridge.mtu if bridge else 0)


def configured(settings: NetworkSettings, mtu: int) -> NetworkOverview:
    """Return the overview of a network that is not in use."""
    ipv6 = settings.ipv6 or Ipv6()
    network = replace(
        network_of(settings, settings.ipv4, settings.gateway4),
        mtu=settings.mtu or mtu,
        ipv6=ipv6.prefix,
        gateway6=ipv6.gateway,
        nat66=ipv6.nat66,
        ra=ipv6.ra,
    )
    free = free_addresses(settings, 0)
    return NetworkOverview(**vars(network), up=False, leases=0, free=free, without_ipv4=settings.without_ipv4)
