"""The state of the host's networks: reserve, attach, release, repair, without D-Bus."""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Network

from solo5_systemd.errors import HostError, InvalidRequestError, NotFoundError, Solo5Error, TakenError
from solo5_systemd.names import NetworkName, TaskName
from solo5_systemd.network import ipv6_sysctls, links, nft_rules, sysctls
from solo5_systemd.network.conntrack import RedirectedPort
from solo5_systemd.network.drops import Dropped
from solo5_systemd.network.guest_limits import NO_LIMITS, check_limits
from solo5_systemd.network.ipam import (
    Allocations,
    assign_leases,
    choose_network,
    first_bridge,
    free_addresses,
    segment_link,
    segments,
)
from solo5_systemd.network.joined import (
    BridgeFacts,
    check_macs,
    check_room,
    check_unpublished,
    usable_bridge,
    with_mtu,
)
from solo5_systemd.network.lease_files import LeaseStore
from solo5_systemd.network.lease_recovery import recover_lease_record, tap_network
from solo5_systemd.network.links import Links
from solo5_systemd.network.model import (
    UNNAMED,
    GuestNames,
    IpAddress,
    Lease,
    LeaseRecord,
    LeaseState,
    Network,
    NetworkOverview,
    NicRequest,
    PortRequest,
    Protocol,
    Repair,
    Reservation,
    destinations,
    limits_of,
)
from solo5_systemd.network.namespaces import NetworkNamespace
from solo5_systemd.network.nft_rules import Element, Ruleset
from solo5_systemd.network.nft_tables import Tables
from solo5_systemd.network.port_conflicts import (
    BoundPort,
    check_families,
    check_ports,
    check_reserved,
    host_ports,
)
from solo5_systemd.networkd.dhcp_files import DhcpFiles
from solo5_systemd.networkd.held_ports import HeldPorts, bound_ports
from solo5_systemd.networkd.ipv6 import Ipv6
from solo5_systemd.settings.model import Join, NetworkSettings, Settings
from solo5_systemd.settings.resolver import UNSET

RESERVATION_TIMEOUT_S = 60
ATTACH_TIMEOUT_S = 10
"""How long after an Attach a task may be without a run: its caller calls StartTransientUnit next."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Remains:
    """What a release leaves to its caller, which is slow to delete.

    Attributes:
        reservation: of the released task, with its taps and with ports that PID 1 may still hold.
        redirected: the UDP ports that may have flows to the task's guests.
        addresses: the guests that may have connections of their own in the conntrack table.
        namespace: the network namespace of all this; None: the host's own.
    """

    reservation: Reservation
    redirected: frozenset[RedirectedPort] = frozenset()
    addresses: Sequence[IpAddress] = ()
    namespace: NetworkNamespace | None = None


class NetworkState:
    """Networks, leases and port sockets, in memory, in files and in the kernel. Not thread-safe.

    A file is written before the object that it describes is made, and removed after it: a service that is killed
    between any two lines finds a file for everything that it may have made. `recover` then makes the kernel's state
    match the files.
    """

    def __init__(
        self,
        *,
        store: LeaseStore,
        links: Links,
        tables: Tables,
        ports: HeldPorts,
        settings: Callable[[], Settings],
        dhcp: DhcpFiles,
        reserved: Callable[[], Iterable[IPv4Network]] = tuple,
        namespace: str = "",
    ) -> None:
        """Take the parts of one network namespace.

        Args:
            store: its files.
            links: its links.
            tables: its nftables tables.
            ports: its published ports.
            settings: returns the settings of its networks.
            dhcp: the files of its DHCP servers.
            reserved: returns ranges that a chosen one must not overlap, besides those of the namespace's routes.
            namespace: its path; empty: the host's own.
        """
        self._store = store
        self.dhcp = dhcp
        self._links = links
        self._ipv6 = Ipv6(store, links)
        self._tables = tables
        self._ports = ports
        self._settings = settings
        self._reserved_ranges = reserved
        self._namespace = namespace
        self._records: dict[TaskName, LeaseRecord] = {}
        self._reserved: dict[TaskName, LeaseRecord] = {}
        self._allocations = Allocations()
        self._networks: dict[NetworkName, Network] = {}
        self._up: set[NetworkName] = set()
        self._segments: dict[str, NetworkName] = {}
        self._neighbours = 0
        self._is_router = sysctls.is_configured_to_forward()
        self._neighbours6 = 0
        self._repairs: list[Repair] = []
        self._missing: frozenset[NetworkName] = frozenset()

    @property
    def records(self) -> Collection[LeaseRecord]:
        """The lease records of all tasks, as a copy: safe to read in any thread."""
        return tuple(self._records.values())

    def networks(self) -> Sequence[Network]:
        """Return the networks in use."""
        return tuple(self._networks.values())

    def overview(self) -> Sequence[NetworkOverview]:
        """Return every network, in use or only configured, by name."""
        configured = self._settings().networks
        known = {settings.name: self._configured(settings) for settings in configured}
        dropped = self._tables.dropped() if self._up else Dropped()
        used = {network.name: self._in_use(network, dropped) for network in self.networks()}
        resolvers = {settings.name: settings.resolver for settings in configured}
        return sorted(
            (replace(each, resolver=resolvers.get(name, UNSET)) for name, each in (known | used).items()),
            key=lambda network: network.name,
        )

    def _in_use(self, network: Network, dropped: Dropped) -> NetworkOverview:
        leases = self._allocations.leases.get(network.name, 0)
        overview = NetworkOverview.of(
            network,
            up=network.name in self._up,
            leases=leases,
            free=free_addresses(network, leases),
            dropped=dropped.within(
                (network.ipv4, network.ipv6),
                {lease.tap for _, lease in self._attached_leases() if lease.network == network.name},
                (network.bridge, *(segment for segment, name in self._segments.items() if name == network.name)),
            ),
        )
        return self._with_bridge(overview)

    def _configured(self, settings: NetworkSettings) -> NetworkOverview:
        return self._with_bridge(NetworkOverview.of(settings, free=free_addresses(settings, 0)))

    def _with_bridge(self, overview: NetworkOverview) -> NetworkOverview:
        """Return an overview with the state and the MTU of a bridge of others."""
        if overview.join is None:
            return overview
        bridge = self._links.bridge(overview.bridge)
        return replace(overview, up=bridge is not None, mtu=bridge.mtu if bridge else 0)

    # -- one task ------------------------------------------------------------------------------------------------

    def reserve(
        self, task: TaskName, nics: Sequence[NicRequest], ports: Sequence[PortRequest], names: GuestNames = UNNAMED
    ) -> Reservation:
        """Reserve addresses, MACs, tap names and ports for a task; changes files and port sockets, no links or rules.

        Idempotent: the same request renews the reservation.

        Raises:
            InvalidRequestError: the request can never succeed.
            TakenError: an address, MAC or port is in use, or the task has another reservation.
            HostError: the host lacks a resource, such as a free range.
        """
        # Without the ports of other processes, a dump of all sockets: bind(2) fails for these.
        reservation, networks = self._find_or_choose(task, nics, ports)
        held = self._records.get(task)
        if held is None or held.state is LeaseState.RESERVED:
            self._hold(reservation, nics, networks, names)
            self._store.keep_request(task)
        return reservation

    def _hold(
        self, reservation: Reservation, nics: Sequence[NicRequest], networks: Iterable[Network], names: GuestNames
    ) -> LeaseRecord:
        """Bind the ports of a reservation and write its record, with the networks that it creates."""
        record = LeaseRecord(
            reservation=reservation,
            nics=tuple(nics),
            state=LeaseState.RESERVED,
            expires=now() + RESERVATION_TIMEOUT_S,
            namespace=self._namespace,
            names=names,
        )
        ports = host_ports(reservation)
        self._ports.bind(ports)
        try:
            for network in networks:
                self._store.save_network(network)
                self._networks[network.name] = network
            self._save(record)
        except Solo5Error:
            if reservation.task not in self._records:  # without a record, no release would close these port sockets
                self._ports.release(ports)
            raise
        return record

    def preview(
        self, task: TaskName, nics: Sequence[NicRequest], ports: Sequence[PortRequest]
    ) -> tuple[Reservation, Sequence[Element]]:
        """Return the result of `reserve` and the nftables elements that `attach` would add; changes nothing."""
        reservation, networks = self._find_or_choose(task, nics, ports, bound_ports() if ports else ())
        before = self._ruleset()
        known = set(nft_rules.elements(before))
        after = replace(before, networks=(*before.networks, *networks), reservations=(reservation,))
        return reservation, tuple(element for element in nft_rules.elements(after) if element not in known)

    def attach(self, task: TaskName) -> frozenset[RedirectedPort]:
        """Make the taps and firewall elements of a reservation, which a released task gets again; idempotent.

        Returns:
            The task's UDP ports that may have flows to an earlier destination, which the caller deletes.

        Raises:
            NotFoundError: the task has neither a reservation nor a request.
            TakenError, InvalidRequestError: a released task cannot have the same values again.
            HostError: the kernel refused; the attach is undone.
        """
        held = self._records.get(task)
        self.repair()
        record = held or self._reserve_again(task)
        if record.state is LeaseState.RESERVED:
            try:
                self._attach(record)
            except Solo5Error:
                self._undo_attach(record.reservation)
                if held is None:
                    self._ports.release(host_ports(record.reservation))
                    self.end_release(task)
                raise
        else:  # a second start: its unit gets as long to run as the first one's
            self._repair_links({task})
            self._save(replace(record, expires=now() + ATTACH_TIMEOUT_S))
        return self._redirected([record.reservation])

    def redirected(self) -> frozenset[RedirectedPort]:
        """Return the UDP ports of all tasks that may have flows to another destination than the guest.

        Such a flow began while there were no tables, or a service that was killed has not deleted it.
        """
        return self._redirected([record.reservation for record in self._attached()])

    def _redirected(self, reservations: Iterable[Reservation]) -> frozenset[RedirectedPort]:
        found: set[RedirectedPort] = set()
        guests: dict[int, dict[int, IpAddress]] = {4: {}, 6: {}}
        for held in reservations:
            for port, address in _udp(held):
                guests[address.version][port] = address
        for version, leads in guests.items():
            contacted = self._tables.contacted(leads, version)
            found |= {RedirectedPort(port=port, guest=leads[port], version=version) for port in contacted}
        return frozenset(found)

    def _reserve_again(self, task: TaskName) -> LeaseRecord:
        """Reserve what a released task had, from its request: its unit's command line has these values."""
        kept = self._store.request(task)
        if kept is None:
            raise NotFoundError(
                f"task {task} has no reservation: expected one made less than {RESERVATION_TIMEOUT_S} s ago.",
                "Start the task again.",
            )
        had = kept.reservation
        nics = [
            NicRequest(
                nic=lease.nic,
                network=lease.network,
                ipv4=lease.address,
                mac=lease.mac,
                ipv6=lease.address6,
                limits=had.limits.get(lease.nic, NO_LIMITS),
            )
            for lease in had.leases
        ]
        reservation, networks = self._choose(task, nics, had.ports, ())
        if _without_bridges(reservation) != _without_bridges(had):  # a bridge is not part of the unit
            raise TakenError(
                f"task {task} cannot have its network again: its tap or the settings of its network have changed.",
                f"Remove the task (`solo5ctl rm {task}`) and start it anew.",
            )
        return self._hold(had, kept.nics, networks, kept.names)

    def is_known(self, task: TaskName) -> bool:
        """Return whether the task has a lease record."""
        return task in self._records

    def held(self) -> Sequence[TaskName]:
        """Return the tasks with an attached network, or one whose release has not ended."""
        return [task for task, record in list(self._records.items()) if record.state is not LeaseState.RESERVED]

    def is_held(self, task: TaskName) -> bool:
        """Return whether the task has an attached network, or one whose release has not ended."""
        record = self._records.get(task)
        return record is not None and record.state is not LeaseState.RESERVED

    def is_releasing(self, task: TaskName) -> bool:
        """Return whether a release of the task was begun and has not ended."""
        record = self._records.get(task)
        return record is not None and record.state is LeaseState.RELEASING

    def begin_release(self, task: TaskName) -> Remains:
        """Remove the firewall elements and ports of a task.

        The caller deletes what remains, and then calls `end_release`.
        """
        record = self._records.get(task)
        if record is None:
            return Remains(reservation=Reservation(task=task))
        self.repair()
        attached = record.state is LeaseState.ATTACHED
        again = record.state is LeaseState.RELEASING  # an earlier release may have failed to delete flows
        if record.state is LeaseState.RESERVED:  # no unit has had it
            self._store.remove_request(task)
        self._save(replace(record, state=LeaseState.RELEASING))
        if attached:
            self._delete_from_tables(self._task_elements(record.reservation))
        if attached or again:
            self.dhcp.remove(record.reservation, self._networks)
        self._ports.release(host_ports(record.reservation))
        # After the deletion: no new flow leads to the task.
        redirected: set[RedirectedPort] = set()
        for version in (4, 6):
            ports = [port for port, address in _udp(record.reservation) if address.version == version]
            contacted = ports if again else self._tables.contacted(ports, version)
            if attached and contacted:
                self._delete_from_tables(self._tables.forget(contacted, version))
            redirected |= {RedirectedPort(port=port, guest=None, version=version) for port in contacted}
        own = (lease for lease in record.reservation.leases if not self._joins(lease))
        addresses = (address for lease in own for address in lease.addresses)
        return Remains(
            reservation=record.reservation,
            redirected=frozenset(redirected),
            addresses=[address for address in addresses if again or self._tables.may_have_flows(address)],
        )

    def flows_remain(self) -> None:
        """Take into account that flows may remain, after their deletion failed."""
        self._tables.reread_flows()

    def end_release(self, task: TaskName) -> None:
        """Remove the networks without a lease, and the lease record of a task whose taps are deleted."""
        self._reserved.pop(task, None)
        record = self._records.pop(task, None)
        if record is not None:
            self._allocations.remove(record.reservation)
        self._remove_idle_networks()
        self._store.remove_lease_record(task)  # last: without it, callers take the release to be over

    # -- recovery and repair -------------------------------------------------------------------------------------

    def recover(self) -> Sequence[TaskName]:
        """Make the kernel's state match the files, at start-up.

        Returns:
            The tasks whose release was interrupted.
        """
        # Files first, then the kernel: damaged records are rebuilt from taps and rules that are replaced below.
        self._networks = self._store.networks()
        for record in self._store.lease_records().values():
            self._remember(record)
        self._restore_missing_networks()
        self._apply_changed_policies()
        self._recover_damaged_records()
        self._ports.restore(self._published_ports())
        self._up = {network.name for network in self.networks() if not network.join and self._links.has_bridge(network)}
        self.remove_orphaned_taps()
        for name in {lease.network for _, lease in self._attached_leases()}:
            self._bring_up(self._networks[name])
        for _, lease in self._attached_leases():
            self._bring_up_segment(lease)
        self.dhcp.restore(self._attached(), self._networks)
        if self._up:
            self._tables.replace(self._ruleset())
            self._repair_links()
            for _, lease in self._attached_leases():
                if lease.network not in self._missing:
                    self._links.set_port(lease, self._networks[lease.network])
        if not self._forwarding6:
            self._ipv6.restore_sysctls()
        if not self._forwarding:
            self._restore_sysctls()  # a start was killed between the sysctls and its bridge
        self._remove_idle_networks()
        return tuple(h.reservation.task for h in self.records if h.state is LeaseState.RELEASING)

    def remove_orphaned_taps(self) -> None:
        """Delete the taps without an attached lease, such as after a deletion that failed."""
        orphans = self._links.taps().keys() - {lease.tap for _, lease in self._attached_leases()}
        if orphans:
            _log.info("removing orphaned taps: %s", ", ".join(sorted(orphans)))
            links.delete_links(orphans)

    def repair(self, *, verify: bool = False) -> None:
        """Rebuild the nftables tables if another program has changed them; with `verify` they are listed for that."""
        if not self._up:
            return
        if not self._tables.are_intact(self._elements, verify=verify):
            self._tables.replace(self._ruleset())
            tasks = [record.reservation.task for record in self._attached()]
            self._repaired(tasks, "another program changed nftables: tables ip solo5 and bridge solo5 are rebuilt")

    @property
    def owns_tables(self) -> bool:
        """Whether no other program can change the nftables tables."""
        return self._tables.owned

    @property
    def has_repairs(self) -> bool:
        """Whether `pop_repairs` has something to return; safe to read in any thread."""
        return bool(self._repairs)

    def close(self) -> None:
        """Close the sockets. No task has a record any more."""
        self._links.close()
        self._tables.close()
        self._store.remove_namespace()

    def pop_repairs(self) -> Sequence[Repair]:
        """Return the repairs since the last call."""
        repairs, self._repairs = self._repairs, []
        return repairs

    @property
    def awaits_bridge(self) -> bool:
        """Whether a bridge of others is missing under a running guest; safe to read in any thread."""
        return bool(self._missing)

    def repair_joined(self) -> None:
        """Put taps back on bridges that were missing, and have been made again."""
        if any(self._is_usable(self._networks[name]) for name in self._missing if name in self._networks):
            self._repair_links()
        self._missing &= self._networks.keys()

    def repair_links(self, changed: frozenset[str] | None) -> None:
        """Restore the bridges and taps among these changed links, and forwarding; None checks all."""
        if self._forwarding and sysctls.enable_forwarding():
            tasks = {task for task, lease in self._attached_leases() if not self._joins(lease)}
            self._repaired(sorted(tasks), "net.ipv4.ip_forward was not 1: it is set again")
        if changed is None or any(map(self.is_expected, changed - {sysctls.IP_FORWARD})):
            self._repair_links()

    def repair_sysctls(self) -> None:
        """Restore the sysctls of bridges, of whose changes there is no message."""
        if self._up:
            self._repair_bridges()

    def is_expected(self, link: str) -> bool:
        """Return whether a link belongs to a task that is not being released, or is a bridge; safe in any thread.

        Also for the sysctl IP_FORWARD, while it is needed.
        """
        if link == sysctls.IP_FORWARD:
            return self._forwarding
        record = self._records.get(self._allocations.taps.get(link, TaskName("")))
        if record is not None:
            return record.state is not LeaseState.RELEASING
        if any(network.bridge == link for network in self.networks()):
            return True
        return any(link in (segment, *segment_link(segment)) for segment in list(self._segments))

    def is_gateway(self, link: int) -> bool:
        """Return whether a link, by its index, is a bridge with an IPv6 address; safe in any thread."""
        return any(network.ipv6 is not None and links.index(network.bridge) == link for network in self.networks())

    def bind_missing_ports(self) -> None:
        """Retry to bind published ports that another process had bound when the service started."""
        self._ports.bind_missing(self._published_ports())

    def expired(self) -> Sequence[TaskName]:
        """Return the tasks whose reservation has expired."""
        return tuple(task for task, record in list(self._reserved.items()) if record.expires <= now())

    def is_due(self, task: TaskName) -> bool:
        """Return whether the time of the last reservation or attach of a task is over."""
        record = self._records.get(task)
        return record is not None and record.expires <= now()

    def next_expiry(self) -> int | None:
        """Return the second of CLOCK_BOOTTIME in which the next reservation expires; None without a reservation."""
        return min((record.expires for record in list(self._reserved.values())), default=None)

    def _find_or_choose(
        self,
        task: TaskName,
        nics: Sequence[NicRequest],
        ports: Sequence[PortRequest],
        bound: Collection[BoundPort] = (),
    ) -> tuple[Reservation, Sequence[Network]]:
        """Return the task's existing reservation or a new one, and the networks that it would create."""
        held = self._records.get(task)
        if held is None:
            return self._choose(task, nics, ports, bound)
        if held.nics == tuple(nics) and held.reservation.ports == tuple(ports):
            return held.reservation, ()
        raise TakenError(
            f"task {task} holds another reservation: expected the same request or another name.",
            f"`solo5ctl rm {task}` releases it.",
        )

    def _choose(
        self,
        task: TaskName,
        nics: Sequence[NicRequest],
        ports: Sequence[PortRequest],
        bound: Collection[BoundPort],
    ) -> tuple[Reservation, Sequence[Network]]:
        names = [nic.nic for nic in nics]
        check_reserved(ports, self._settings() if ports else Settings())
        local = self._links.local_addresses({port.host_ip.version for port in ports if port.host_ip})
        check_ports(ports, names, self._allocations, bound, local)
        new = self._new_networks(nics)
        networks = [self._checked(network, nics) for network in (*self.networks(), *new)]
        check_unpublished(networks, nics, ports)
        check_limits(nics, networks)
        # In the range of a joined network, the host has addresses as well.
        joined = {network.name for network in networks if network.join}
        own = self._links.local_addresses() if any(nic.network in joined for nic in nics) else ()
        leases = assign_leases(task, nics, networks, self._allocations, lambda link: bool(links.index(link)), own)
        reservation = Reservation(task=task, leases=leases, ports=tuple(ports), limits=limits_of(nics))
        check_families(reservation)
        return reservation, networks[len(self._networks) :]

    def _checked(self, network: Network, nics: Sequence[NicRequest]) -> Network:
        """Return a network, checked and with the present MTU of its bridge if it is requested and that is of others.

        Raises:
            HostError: taps cannot become ports of the bridge.
            TakenError: the bridge is full, or has a requested MAC address.
        """
        wanted = [nic for nic in nics if nic.network == network.name]
        if network.join is None or not wanted:
            return network
        facts = self._bridge(network)
        joining = [other.name for other in self.networks() if other.bridge == network.bridge]
        leases = sum(self._allocations.leases.get(name, 0) for name in joining)
        check_room(network, self._links.ports(network.bridge), self._allocations.taps, leases, len(wanted))
        if any(nic.mac for nic in wanted):
            check_macs(network, self._links.macs(network.bridge), wanted)
        return with_mtu(network, facts)

    def _bridge(self, network: Network) -> BridgeFacts:
        """Return the bridge that a network joins; raises as `_checked`."""
        return usable_bridge(network, self._links.bridge(network.bridge))

    def _new_networks(self, nics: Iterable[NicRequest]) -> Sequence[Network]:
        names = dict.fromkeys(nic.network for nic in nics if nic.network not in self._networks)
        if not names:
            return ()
        settings = self._settings()
        new: list[Network] = []
        own = [network.bridge for network in self.networks() if network.join is None]
        routed = (*self._links.routed_ranges(ours=own), *self._reserved_ranges())
        for name in names:
            known = settings.network(name)
            if known is None:
                raise InvalidRequestError(
                    f"network {name} does not exist: expected one of "
                    f"{', '.join(network.name for network in settings.networks)}.",
                    f"Define it as [network.{name}] in a *.toml file in /etc/solo5.",
                )
            reserved = [other.ipv4 for other in settings.networks if other.ipv4 and other.name != name]
            new.append(choose_network(known, (*self.networks(), *new), (*routed, *reserved)))
        return self._ipv6.with_prefixes(new, self.networks(), settings)

    def _attach(self, record: LeaseRecord) -> None:
        reservation = record.reservation
        for lease in reservation.leases:
            if self._joins(lease):
                self._bridge(self._networks[lease.network])
            self._bring_up(self._networks[lease.network])
            self._bring_up_segment(lease)
        self.dhcp.add(record, self._networks)
        for lease in reservation.leases:
            self._make_tap(reservation.task, lease)
        self._add_to_tables(reservation)
        self._save(replace(record, state=LeaseState.ATTACHED, expires=now() + ATTACH_TIMEOUT_S))
        self._neighbours = sysctls.make_room_for_neighbours(self._allocations.guests, self._neighbours)
        if any(lease.ipv6 for lease in reservation.leases):  # each guest has a link-local address as well
            room = self._neighbours6
            self._neighbours6 = sysctls.make_room_for_neighbours(2 * self._allocations.guests, room, "ipv6")

    def _add_to_tables(self, reservation: Reservation) -> None:
        try:
            self._tables.add(self._task_elements(reservation))
        except HostError:  # another program may have removed the tables since `repair`
            ruleset = self._ruleset()
            self._tables.replace(replace(ruleset, reservations=(*ruleset.reservations, reservation)))

    def _delete_from_tables(self, elements: Sequence[Element]) -> None:
        try:
            self._tables.delete(elements)
        except HostError:  # as above
            self._tables.replace(self._ruleset())

    def _undo_attach(self, reservation: Reservation) -> None:
        if self._up:
            self._tables.replace(self._ruleset())
        links.delete_links(lease.tap for lease in reservation.leases)
        self.dhcp.remove(reservation, self._networks)

    def _bring_up(self, network: Network) -> None:
        if network.name in self._up:
            return
        before = self._ruleset()
        if network.join is None:
            self._save_sysctls()
        if network.ipv6 is not None:
            self._ipv6.save_sysctls()
        self._up.add(network.name)
        try:
            self._tables.change(before, self._ruleset())  # first: the rules must exist before ip_forward is set
            if network.join is None:
                sysctls.enable_forwarding()
                if network.ipv6 is not None:
                    ipv6_sysctls.enable_forwarding()
                self._links.make_bridge(network)
        except Solo5Error:
            self._up.discard(network.name)
            raise

    def _bring_up_segment(self, lease: Lease) -> None:
        """Make the bridge of a lease, if that is not the network's first."""
        network = self._networks[lease.network]
        if lease.bridge == network.bridge or lease.bridge in self._segments:
            return
        before = self._ruleset()
        self._segments[lease.bridge] = network.name
        try:
            self._tables.change(before, self._ruleset())
            self._links.make_segment(network, lease.bridge)
        except Solo5Error:
            del self._segments[lease.bridge]
            raise

    def _save_sysctls(self) -> None:
        if not self._store.sysctls():  # saved once, before the first change: later values are this service's
            self._store.save_sysctls(sysctls.values_to_restore())

    def _restore_sysctls(self) -> None:
        if not self._is_router:
            sysctls.restore(self._store.sysctls())

    def _remove_idle_networks(self) -> None:
        idle = [network for name, network in self._networks.items() if not self._allocations.leases.get(name)]
        if not idle:
            return
        for network in idle:
            if network.join is None:
                links.delete_links(self._own_bridges(network))
        before = self._ruleset()
        self._up -= {network.name for network in idle}
        self._segments = {segment: name for segment, name in self._segments.items() if name in self._up}
        if not self._forwarding6:
            self._ipv6.restore_sysctls()  # first: without rules, nothing may be forwarded
        if not self._forwarding:
            self._restore_sysctls()  # first: without rules, nothing may be forwarded
            self._store.remove_sysctls()
        if self._up:
            self._tables.change(before, self._ruleset())
        else:
            self._tables.remove()
        for network in idle:
            self._store.remove_network(network.name)
            del self._networks[network.name]

    def _own_bridges(self, network: Network) -> Sequence[str]:
        """Return the bridges of a network that exist, and the links between them, with those of an earlier process."""
        if not self._links.has_bridge(network):
            return ()
        found = self._found_segments(network)
        return [network.bridge, *found, *(segment_link(each)[0] for each in found)]

    def _found_segments(self, network: Network) -> Sequence[str]:
        """Return the segments of a network that exist; none of one that joins a bridge of others."""
        if network.join:
            return ()
        return [segment for segment in segments(network.bridge) if self._links.has_bridge(network, segment)]

    def _repair_links(self, only: Collection[TaskName] | None = None) -> None:
        """Recreate bridges, then taps, of all tasks or of some.

        A running tender keeps the file descriptor of its deleted tap: no repair.
        """
        joined = [network for network in self.networks() if network.join and network.name in self._up]
        self._missing = frozenset(network.name for network in joined if not self._is_usable(network))
        self._repair_bridges()
        self.repair_gateways()
        for segment, name in self._segments.items():
            network = self._networks[name]
            if not self._links.has_segment(network, segment):
                self._links.make_segment(network, segment)
                tasks = {task for task, lease in self._attached_leases() if lease.bridge == segment}
                self._repaired(sorted(tasks), f"bridge {segment} of network {name} was incomplete: it is restored")
        for task, lease in self._attached_leases():
            wanted = lease.network not in self._missing and (only is None or task in only)
            if wanted and not self._links.has_tap(lease):
                self._make_tap(task, lease)
                what = (
                    f"tap {lease.tap} was missing, down or not on its bridge: it is restored; if it was deleted, task "
                    f"{task} has no NIC {lease.nic} until its next start"
                )
                self._repaired([task], what)

    def _repair_bridges(self) -> None:
        for network in self.networks():
            if network.name in self._up and not network.join and not self._links.is_whole(network):
                state = "was down or had lost a setting" if self._links.has_bridge(network) else "was missing"
                self._links.make_bridge(network)
                tasks = {task for task, lease in self._attached_leases() if lease.network == network.name}
                what = f"bridge {network.bridge} of network {network.name} {state}: it is restored"
                self._repaired(sorted(tasks), what)

    def repair_gateways(self) -> None:
        """Restore the IPv6 addresses of bridges that have lost them, such as by a change of disable_ipv6."""
        for network in self.networks():
            if network.name in self._up and not self._links.has_gateway6(network):
                self._links.make_bridge(network)
                tasks = {task for task, lease in self._attached_leases() if lease.network == network.name}
                what = f"bridge {network.bridge} of network {network.name} had lost {network.gateway6}: it is restored"
                self._repaired(sorted(tasks), what)

    def _is_usable(self, network: Network) -> bool:
        """Return whether taps can become ports of the bridge that a network joins."""
        try:
            self._bridge(network)
        except Solo5Error:
            return False
        return True

    def _joins(self, lease: Lease) -> bool:
        network = self._networks.get(lease.network)
        return network is not None and network.join is not None

    @property
    def _forwarding(self) -> bool:
        """Whether a network with a bridge of this service is up: the host forwards packets for it."""
        return any(network.join is None for name, network in self._networks.items() if name in self._up)

    @property
    def _forwarding6(self) -> bool:
        """Whether a network with IPv6 is up: the host forwards IPv6 packets for it."""
        return any(network.ipv6 is not None for name, network in self._networks.items() if name in self._up)

    def _repaired(self, tasks: Sequence[TaskName], what: str) -> None:
        _log.warning("network repaired: %s", what)
        self._repairs.append(Repair(tasks=tasks, what=what))
        self._store.record_repair(self._repairs[-1])

    def _recover_damaged_records(self) -> None:
        """Rebuild damaged lease records from taps and nftables elements."""
        damaged = [task for task in self._store.damaged_tasks() if task not in self._records]
        if not damaged:
            return
        bridges = {links.index(network.bridge): network.name for network in self.networks()}  # IFLA_MASTER is an index
        bridges |= {
            links.index(segment): network.name
            for network in self.networks()
            for segment in self._found_segments(network)
        }
        found = {name: (tap.alias, bridges.get(tap.master)) for name, tap in self._links.taps().items()}
        taps = {
            name: (alias, self._networks[network])
            for name, (alias, bridge) in found.items()
            if (network := tap_network(alias) or bridge) in self._networks
        }
        elements = self._tables.elements()
        for task in damaged:
            record = recover_lease_record(task, taps, elements)
            if record is None:
                _log.warning("removing damaged lease record of task %s: the kernel has no tap of this task", task)
                self._store.remove_lease_record(task)
            else:
                _log.warning("rebuilt damaged lease record of task %s from the kernel's state", task)
                self._save(record)

    def _restore_missing_networks(self) -> None:
        """Rebuild networks without a file from the leases: a lease has all fields but masquerade, policy and join."""
        for record in self.records:
            for lease in record.reservation.leases:
                if lease.network not in self._networks:
                    join = self._configured_join(lease)
                    network = Network(
                        name=lease.network,
                        bridge=lease.bridge if join else first_bridge(lease.bridge, lease.network),
                        ipv4=lease.ipv4.network if lease.ipv4 else None,
                        gateway4=lease.gateway4,
                        mtu=lease.mtu,
                        masquerade=True,
                        join=join,
                        ipv6=lease.ipv6.network if lease.ipv6 else None,
                        gateway6=lease.gateway6,
                    )
                    self._store.save_network(network)
                    self._networks[lease.network] = network

    def _configured_join(self, lease: Lease) -> Join | None:
        """Return the `join` of a lease's network by the settings; where these cannot be read, by its tap's alias."""
        try:
            known = self._settings().network(lease.network)
        except Solo5Error:
            known = None
        if known is not None and known.bridge == lease.bridge:
            return known.join
        tap = self._links.taps().get(lease.tap)
        joined = lease.ipv4 is None or (tap is not None and tap_network(tap.alias) is not None)
        return Join() if joined else None

    def _attached_leases(self) -> Sequence[tuple[TaskName, Lease]]:
        return [(held.reservation.task, lease) for held in self._attached() for lease in held.reservation.leases]

    def _attached(self) -> Sequence[LeaseRecord]:
        return [record for record in self.records if record.state is LeaseState.ATTACHED]

    def _make_tap(self, task: TaskName, lease: Lease) -> None:
        self._links.make_tap(task, lease, self._networks[lease.network])

    def _ruleset(self) -> Ruleset:
        return Ruleset(
            networks=[network for network in self.networks() if network.name in self._up],
            reservations=[held.reservation for held in self._attached()],
            segments=tuple(self._segments.items()),
            forwards=not self._forwarding or self._is_router or sysctls.was_forwarding(self._store.sysctls()),
            forwards6=self._forwarding6 and self._ipv6.was_forwarding(),
        )

    def _task_elements(self, reservation: Reservation) -> Sequence[Element]:
        return nft_rules.task_elements(reservation, self.networks())

    def _elements(self) -> Sequence[Element]:
        return nft_rules.elements(self._ruleset())

    def _published_ports(self) -> Sequence[PortRequest]:
        live = (held for held in self.records if held.state is not LeaseState.RELEASING)
        return [port for held in live for port in host_ports(held.reservation)]

    def _apply_changed_policies(self) -> None:
        """Apply a changed policy to networks in use; called at start-up, so that a restart of the service suffices."""
        try:
            settings = self._settings()
        except Solo5Error as error:
            _log.warning("cannot read settings, networks in use keep their policy: %s", error)
            return
        for name, network in list(self._networks.items()):
            known = settings.network(name)
            changed = _with_policy(network, known) if known is not None else network
            if changed != network:
                self._networks[name] = changed
                self._store.save_network(changed)

    def _save(self, record: LeaseRecord) -> None:
        self._store.save_lease_record(record)
        self._remember(record)

    def _remember(self, record: LeaseRecord) -> None:
        task = record.reservation.task
        if task not in self._records:
            self._allocations.add(record.reservation)
        self._records[task] = record
        if record.state is LeaseState.RESERVED:
            self._reserved[task] = record
        else:
            self._reserved.pop(task, None)


def _without_bridges(reservation: Reservation) -> Reservation:
    return replace(reservation, leases=tuple(replace(lease, bridge="") for lease in reservation.leases))


def _udp(reservation: Reservation) -> Sequence[tuple[int, IpAddress]]:
    """Return the host's port and the guest's address of each published UDP port, once for each family."""
    return [
        (port.host_port, address)
        for port in reservation.ports
        if port.protocol is Protocol.UDP
        for address in destinations(port, reservation.lease(port.nic))
    ]


def _with_policy(network: Network, settings: NetworkSettings) -> Network:
    """Return a network with the settings that apply to one in use: the policy, and the pool of a joined network."""
    join = network.join
    if join is not None and settings.join is not None:
        join = replace(settings.join, vlan=join.vlan)
    return replace(network, policy=settings.policy, join=join)


def now() -> int:
    """Return the seconds since boot, suspend included (CLOCK_BOOTTIME)."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME))
