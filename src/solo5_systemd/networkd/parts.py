"""The parts of one network namespace, which the classes that choose, show, recover and repair its networks share."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network

from solo5_systemd.network.lease_files import LeaseStore
from solo5_systemd.network.links import Links
from solo5_systemd.network.nft_tables import Tables
from solo5_systemd.network.remembered_addresses import RememberedAddresses
from solo5_systemd.networkd.bridges import Bridges
from solo5_systemd.networkd.leases import Leases
from solo5_systemd.settings.solo5_toml import Settings


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of one network namespace.

    Attributes:
        store: its files.
        links: its links.
        tables: its nftables tables.
        settings: returns the settings of its networks.
        reserved: returns ranges and prefixes that a chosen one must not overlap, besides those of the namespace's
            routes.
        remembered: the addresses that declared tasks had last: other tasks get them last, and a network has the range
            of its own again; None: there are none.
        namespace: its path; empty: the host's own.
        leases: the lease records.
        bridges: the networks in use.
    """

    store: LeaseStore
    links: Links
    tables: Tables
    settings: Callable[[], Settings]
    reserved: Callable[[], Iterable[IPv4Network | IPv6Network]] = tuple
    remembered: RememberedAddresses | None = None
    namespace: str = ""
    leases: Leases = field(init=False)
    bridges: Bridges = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "leases", Leases(self.store, self.namespace))
        object.__setattr__(self, "bridges", Bridges(self.store, self.links, self.tables, self.leases))
