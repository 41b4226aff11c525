"""The networks in use: their bridges, their part of the packet filter, and forwarding on the host."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from solo5_systemd.base.errors import HostError, Solo5Error
from solo5_systemd.base.names import NetworkName
from solo5_systemd.network import links, nft_elements, sysctls
from solo5_systemd.network.ipam import segment_link, segments
from solo5_systemd.network.joined import Link, usable_bridge
from solo5_systemd.network.lease_files import LeaseStore
from solo5_systemd.network.links import Links
from solo5_systemd.network.model import Lease, LeaseRecord, Reservation
from solo5_systemd.network.neighbours import announce_lookups, make_room
from solo5_systemd.network.nft_elements import Ruleset
from solo5_systemd.network.nft_objects import Element
from solo5_systemd.network.nft_tables import Tables
from solo5_systemd.networkd.leases import Leases
from solo5_systemd.settings.network_policy import Network


class Bridges:
    """The networks with a lease, and what they need in the kernel besides taps. Not thread-safe. Raises HostError.

    Attributes:
        store, links, tables, leases: those of `NetworkState`.
        up: the names of networks that have their bridge, rules and forwarding.
        segments: the further bridges of networks with more guests than one bridge has ports, with their network.
    """

    def __init__(self, store: LeaseStore, links: Links, tables: Tables, leases: Leases) -> None:
        self.store, self.links, self.tables, self.leases = store, links, tables, leases
        self.networks: dict[NetworkName, Network] = {}
        self.up = set[NetworkName]()
        self.segments: dict[str, NetworkName] = {}
        self._is_router = self._is_router6 = False

    # -- networks ------------------------------------------------------------------------------------------------

    def add(self, network: Network) -> None:
        """Write a network to its file, then keep it."""
        self.store.save_network(network)
        self.networks[network.name] = network

    def bring_up(self, lease: Lease) -> None:
        """Make the bridge, rules and forwarding of a lease's network, and the lease's own segment; idempotent."""
        network = self.networks[lease.network]
        self._bring_up(network)
        if lease.bridge != network.bridge and lease.bridge not in self.segments:
            before = self.ruleset()
            self.segments[lease.bridge] = network.name
            try:
                self.tables.change(before, self.ruleset())
                self.links.make_segment(network, lease.bridge)
            except Solo5Error:
                del self.segments[lease.bridge]
                self.tables.distrust()
                raise

    def _bring_up(self, network: Network) -> None:
        if network.name in self.up:
            return
        before = self.ruleset()
        if network.join is None:
            self.links.check_name(network)  # before the rules: to make them anew resets what the kernel counts
            self._save_sysctls(network)  # a joined bridge changes none: the host routes nothing for it
        self.read_routers()
        self.up.add(network.name)
        try:
            self.tables.change(before, self.ruleset())  # first: the rules must exist before ip_forward is set
            if network.join is None:
                self.set_sysctls()
                self.make(network)
        except Solo5Error:
            self.up.discard(network.name)
            self.tables.distrust()
            raise

    def make(self, network: Network) -> None:
        """Make the bridge of a network, or repair it; packets for tasks on it that wait start these."""
        self.links.make_bridge(network)
        if any(lease.network == network.name for each in self.leases.waiting() for lease in each.reservation.leases):
            announce_lookups(network.bridge)

    def remove_idle(self) -> None:
        """Remove the networks without a lease, from the kernel and from the files."""
        idle = [network for name, network in self.networks.items() if not self.leases.allocations.leases.get(name)]
        if not idle:
            return
        links.delete_links(link for network in idle if network.join is None for link in self._own_bridges(network))
        before = self.ruleset()
        self.up -= {network.name for network in idle}
        self.segments = {segment: name for segment, name in self.segments.items() if name in self.up}
        try:
            self.restore_unused_sysctls()  # first: without rules, nothing may be forwarded
            if self.up:
                self.tables.change(before, self.ruleset())
            else:
                self.tables.remove()
        except Solo5Error:  # to be repeated
            self.tables.distrust()
            raise
        for network in idle:
            self.store.remove_network(network.name)
            del self.networks[network.name]

    def _own_bridges(self, network: Network) -> Sequence[str]:
        """Return the bridges of a network that exist, and the links between them, with those of an earlier process."""
        if not self.links.has_bridge(network):  # gone, or a link of another program by now
            return ()
        found = [segment for segment in segments(network.bridge) if self.links.has_bridge(network, segment)]
        return [network.bridge, *found, *(segment_link(each)[0] for each in found)]

    def make_room_for_neighbours(self, reservation: Reservation) -> None:
        """Let the kernel's neighbour tables hold all guests, besides those that they are sized for."""
        guests = sum(self.leases.allocations.leases.values())
        make_room(guests)
        if any(lease.ipv6 for lease in reservation.leases):  # each guest has a link-local address as well
            make_room(2 * guests, "ipv6")

    # -- what is there -------------------------------------------------------------------------------------------

    def _up(self) -> Sequence[Network]:
        return [network for network in self.networks.values() if network.name in self.up]

    @property
    def own(self) -> Sequence[Network]:
        """The networks that are up, but for those that join an existing bridge."""
        return [network for network in self._up() if not network.join]

    @property
    def joined(self) -> Sequence[Network]:
        """The networks that are up and join an existing bridge."""
        return [network for network in self._up() if network.join]

    def joins(self, lease: Lease) -> bool:
        """Return whether a lease is of a network that joins an existing bridge."""
        network = self.networks.get(lease.network)
        return network is not None and network.join is not None

    def joined_bridge(self, network: Network) -> Link:
        """Return the bridge that a network joins; raises HostError if taps cannot become its ports."""
        return usable_bridge(network, self.links.link(network.bridge))

    def is_usable(self, network: Network) -> bool:
        """Return whether taps can become ports of the bridge that a network joins."""
        try:
            self.joined_bridge(network)
        except Solo5Error:
            return False
        return True

    def is_own(self, link: str) -> bool:
        """Return whether a link is a bridge of a network, or part of a segment; safe in any thread."""
        if any(network.bridge == link for network in list(self.networks.values())):
            return True
        return any(link in (segment, *segment_link(segment)) for segment in list(self.segments))

    @property
    def forwarding(self) -> bool:
        """Whether a network with a bridge of this service is up: the host forwards packets for it."""
        return bool(self.own)

    @property
    def forwarding6(self) -> bool:
        """Whether a network with IPv6 and a bridge of this service is up: the host forwards IPv6 packets for it."""
        return any(network.routes6 for network in self.own)

    # -- sysctls -------------------------------------------------------------------------------------------------

    def _save_sysctls(self, network: Network) -> None:
        """Save the values that a network changes: once, before the first change, since later ones are this service's.

        Those of IPv6 are in the same file, under their own names.
        """
        before = self.store.sysctls()
        saved = before or sysctls.values_to_restore()
        if network.ipv6 is not None and sysctls.IPV6_FORWARDING not in saved:  # one without may be up already
            saved = {**saved, **sysctls.values_to_restore6(shared=network.shared)}
        if saved != before:
            self.store.save_sysctls(saved)

    def set_sysctls(self) -> Sequence[tuple[str, int]]:
        """Set the sysctls that the networks need which are up; return what was not so, with its version of IP."""
        # Guests reach the loopback of the programs beside them.
        loopback6 = any(each.shared and each.ipv6 is not None for each in self.own)
        needed = (
            (self.forwarding, sysctls.enable_forwarding, "net.ipv4.conf.*.forwarding was not 1", 4),
            (self.forwarding6, sysctls.enable_forwarding6, "net.ipv6.conf.all.forwarding was not 1", 6),
            (loopback6, sysctls.receive_untranslated, "net.bridge.bridge-nf-call-ip6tables was not 0", 6),
        )
        return [(what, version) for is_needed, change, what, version in needed if is_needed and change()]

    def restore_unused_sysctls(self) -> None:
        """Restore the saved values that no network needs, also after a start that was killed before its bridge."""
        saved = self.store.sysctls()
        if not self.forwarding6 and sysctls.IPV6_FORWARDING in saved:
            sysctls.restore6(saved)
            saved = {name: value for name, value in saved.items() if not name.startswith(("ipv6/", "bridge/"))}
            self.store.save_sysctls(saved)
        if not self.forwarding:
            sysctls.restore(saved)
            self.store.save_sysctls({})

    def follow_routers(self) -> Sequence[str]:
        """Drop packets between other links while only this service has enabled forwarding; pass them otherwise.

        Return what has changed, as text for the log.
        """
        before, was = self.ruleset(), (self._is_router, self._is_router6)
        self.read_routers()
        self.tables.change(before, self.ruleset())
        settings = ((sysctls.IP_FORWARD, self._is_router), (sysctls.IPV6_FORWARDING, self._is_router6))
        return [
            f"net/{name} is {'set by another program: packets pass' if is_router else '0: packets are dropped'} "
            "between other links"
            for (name, is_router), had in zip(settings, was, strict=True)
            if is_router != had
        ]

    def read_routers(self) -> None:
        """Read whether the host forwards packets for other programs."""
        self._is_router = sysctls.is_router()
        self._is_router6 = sysctls.is_router6(self.store.sysctls())

    # -- packet filter -------------------------------------------------------------------------------------------

    def ruleset(self) -> Ruleset:
        """Return the rules of the networks that are up, and of the tasks attached to them."""
        return Ruleset(
            networks=self._up(),
            records=self.leases.records,
            segments=tuple(self.segments.items()),
            forwards=not self.forwarding or self._is_router,
            forwards6=self.forwarding6 and self._is_router6,
            forwarding=tuple(sysctls.forwarding_links(self.store.sysctls())),
        )

    def elements(self) -> Sequence[Element]:
        """Return the nftables elements of all attached tasks."""
        return nft_elements.elements(self.ruleset())

    def replace_tables(self) -> None:
        """Make the nftables tables anew."""
        self.tables.replace(self.ruleset())

    def elements_of(self, records: Iterable[LeaseRecord]) -> Sequence[Element]:
        """Return the nftables elements of tasks in the states of these records."""
        networks = tuple(self.networks.values())
        return [element for record in records for element in nft_elements.record_elements(record, networks)]

    def change_elements(self, before: Sequence[LeaseRecord], after: Sequence[LeaseRecord]) -> None:
        """Change the nftables elements of tasks, by their records, in one transaction: no packet finds neither."""
        old, new = dict.fromkeys(self.elements_of(before)), dict.fromkeys(self.elements_of(after))
        try:
            self.tables.exchange([each for each in old if each not in new], [each for each in new if each not in old])
        except HostError:  # another program may have removed the tables since they were looked at
            changed = {record.reservation.task: record for record in after}
            kept = (record for record in self.leases.records if record.reservation.task not in changed)
            self.tables.replace(replace(self.ruleset(), records=(*kept, *after)))
