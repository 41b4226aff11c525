"""The parts of one network namespace, which the classes that choose, show, recover and repair its networks share."""

from collections.abc import Callable, Iterable
from ipaddress import IPv4Network, IPv6Network

from solo5_systemd.network.lease_files import LeaseStore
from solo5_systemd.network.links import Links
from solo5_systemd.network.nft_tables import Tables
from solo5_systemd.network.remembered_addresses import RememberedAddresses
from solo5_systemd.networkd.bridges import Bridges
from solo5_systemd.networkd.leases import Leases
from solo5_systemd.settings.solo5_toml import Settings


class Parts:
    """The parts of one network namespace, made in a thread that has entered it.

    Args:
        links: its links.
        settings: returns the settings of its networks.
        namespace: its path; empty: the host's own.
        reserved: returns ranges and prefixes that a chosen one must not overlap, besides those of the namespace's
            routes.

    Attributes:
        store: its files.
        tables: its nftables tables.
        remembered: the addresses that declared tasks had last: other tasks get them last, and a network has the range
            of its own again; None: there are none.
        leases: the lease records.
        bridges: the networks in use.
    """

    def __init__(
        self,
        links: Links,
        settings: Callable[[], Settings],
        namespace: str = "",
        reserved: Callable[[], Iterable[IPv4Network | IPv6Network]] = tuple,
    ) -> None:
        self.links, self.settings, self.namespace, self.reserved = links, settings, namespace, reserved
        self.store, self.tables = LeaseStore(namespace), Tables()
        self.remembered = None if namespace else RememberedAddresses()
        self.leases = Leases(self.store, namespace)
        self.bridges = Bridges(self.store, links, self.tables, self.leases)
