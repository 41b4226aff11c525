"""The networks and lease records of a network namespace, as a service finds them that starts."""

import logging
from dataclasses import replace

from solo5_systemd.base.errors import Solo5Error
from solo5_systemd.network.ipam import first_bridge
from solo5_systemd.network.ipam6 import advertised_servers
from solo5_systemd.network.model import Lease, Network
from solo5_systemd.network.raw_netlink import link_index
from solo5_systemd.networkd.parts import Parts
from solo5_systemd.settings.network import Join, NetworkSettings

_log = logging.getLogger(__name__)


class Recovery:
    """Fills the leases and networks of a namespace from its files."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def read(self) -> None:
        """Read the files. A network without a file is rebuilt from leases and settings."""
        self._parts.bridges.networks = self._parts.store.networks()
        for record in self._parts.store.lease_records():
            self._parts.leases.remember(record)
        self._parts.leases.resolve_moves()
        self._restore_missing_networks()
        self._apply_changed_policies()

    def _restore_missing_networks(self) -> None:
        """Rebuild networks without a file: from a lease, and from the settings what a lease lacks; policies follow."""
        for record in self._parts.leases.records:
            for lease in record.reservation.leases:
                if lease.network not in self._parts.bridges.networks:
                    self._parts.bridges.add(self._rebuilt(lease))

    def _rebuilt(self, lease: Lease) -> Network:
        known = self._configured_network(lease)
        network = Network(
            name=lease.network,
            bridge=first_bridge(lease.bridge, lease.network),
            ipv4=lease.ipv4.network if lease.ipv4 else None,
            gateway4=lease.gateway4,
            mtu=lease.mtu,
            masquerade=known is None or known.masquerade,
            ipv6=lease.ipv6.network if lease.ipv6 else None,
            gateway6=lease.gateway6,
            shared=bool(self._parts.namespace),
            nat66=bool(self._parts.namespace),
        )
        is_own = self._parts.links.has_bridge(network, "" if lease.bridge == network.bridge else lease.bridge)
        join = known.join if known else None if is_own or not link_index(lease.bridge) else Join()
        if join:
            network = replace(network, bridge=lease.bridge, join=join)
        if known is None or known.ipv6 is None or lease.ipv6 is None:
            return network
        return replace(network, nat66=known.ipv6.nat66, ra=known.ipv6.ra, dns6=advertised_servers(known))

    def _configured_network(self, lease: Lease) -> NetworkSettings | None:
        """Return the settings of a lease's network; None where they cannot be read, or are those of another bridge."""
        try:
            known = self._parts.settings().network(lease.network)
        except Solo5Error:
            return None
        return known if known and known.bridge in (lease.bridge, first_bridge(lease.bridge, lease.network)) else None

    def _apply_changed_policies(self) -> None:
        """Apply a changed policy to networks in use; called at start-up, so that a restart of the service suffices."""
        try:
            settings = self._parts.settings()
        except Solo5Error as error:
            _log.warning("cannot read settings, networks in use keep their policy: %s", error)
            return
        for name, network in list(self._parts.bridges.networks.items()):
            known = settings.network(name)
            changed = _with_policy(network, known) if known is not None else network
            if changed != network:
                self._parts.bridges.add(changed)


def _with_policy(network: Network, settings: NetworkSettings) -> Network:
    """Return a network with the settings that apply to one in use: the policy, and the pool of a joined network."""
    join = network.join
    if join is not None and settings.join is not None:
        join = replace(settings.join, vlan=join.vlan)
    return replace(network, policy=settings.policy, join=join)
