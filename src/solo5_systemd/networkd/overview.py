"""The overview of the networks, as `solo5ctl network` and `solo5ctl metrics` show it."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from solo5_systemd.network.drops import Dropped
from solo5_systemd.network.ipam import free_addresses, network_of
from solo5_systemd.network.links import Links
from solo5_systemd.network.model import Network, NetworkOverview
from solo5_systemd.network.nft_tables import Tables
from solo5_systemd.networkd.address_choice import Choice
from solo5_systemd.networkd.bridges import Bridges
from solo5_systemd.networkd.leases import Leases
from solo5_systemd.settings.ipv6 import Ipv6
from solo5_systemd.settings.network import NetworkSettings
from solo5_systemd.settings.resolver import UNSET
from solo5_systemd.settings.solo5_toml import Settings


class Overview:
    """Reads the networks of one network namespace with their counts; changes nothing, is not thread-safe.

    Args:
        tables: its nftables tables, with the counts of dropped packets.
        choice: has the MTU of a network that is not in use.
        settings: returns the settings of the networks.
        namespace: its path; empty: the host's own.
    """

    def __init__(
        self,
        links: Links,
        tables: Tables,
        bridges: Bridges,
        leases: Leases,
        choice: Choice,
        settings: Callable[[], Settings],
        namespace: str,
    ) -> None:
        self._links = links
        self._tables = tables
        self._bridges = bridges
        self._leases = leases
        self._choice = choice
        self._settings = settings
        self._namespace = namespace

    def networks(self) -> Sequence[NetworkOverview]:
        """Return every network, in use or only configured, by name."""
        settings = self._settings().networks
        networks = self._bridges.networks
        mtu_of = self._choice.default_mtus()
        known = {each.name: self._configured(each, mtu_of) for each in settings if each.name not in networks}
        used = {each.name: each for each in self.networks_in_use()}
        resolvers = {each.name: each.resolver for each in settings}
        return sorted(
            (replace(each, resolver=resolvers.get(name, UNSET)) for name, each in (known | used).items()),
            key=lambda network: network.name,
        )

    def networks_in_use(self) -> Sequence[NetworkOverview]:
        """Return the networks in use, without their resolvers."""
        dropped = self._tables.dropped() if self._bridges.up else Dropped()
        return [self._in_use(network, dropped) for network in self._bridges.networks.values()]

    def _in_use(self, network: Network, dropped: Dropped) -> NetworkOverview:
        leases = self._leases.allocations.leases.get(network.name, 0)
        segments = (segment for segment, name in self._bridges.segments.items() if name == network.name)
        taps = (lease.tap for _, lease in self._leases.attached_leases() if lease.network == network.name)
        overview = NetworkOverview.of(
            network,
            up=network.name in self._bridges.up,
            leases=leases,
            free=free_addresses(network, leases),
            dropped=dropped.within((network.ipv4, network.ipv6), {network.bridge, *segments, *taps}),
        )
        return self._with_bridge(replace(overview, namespace=self._namespace))

    def _configured(self, settings: NetworkSettings, mtu_of: Callable[[NetworkSettings], int]) -> NetworkOverview:
        mtu = 0 if settings.mtu or settings.join else mtu_of(settings)
        return self._with_bridge(configured(settings, mtu))

    def _with_bridge(self, overview: NetworkOverview) -> NetworkOverview:
        """Return an overview with the state and the MTU of a joined bridge."""
        if overview.join is None:
            return overview
        bridge = self._links.bridge(overview.bridge)
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
    return replace(NetworkOverview.of(network, free=free_addresses(settings, 0)), without_ipv4=settings.without_ipv4)
