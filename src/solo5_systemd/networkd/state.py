"""The state of the host's networks: reserve, attach, release, repair, without D-Bus."""

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from solo5_systemd.base.errors import InvalidRequestError, NotFoundError, Solo5Error, TakenError
from solo5_systemd.base.names import TaskName
from solo5_systemd.network import nft_elements
from solo5_systemd.network.conntrack import UdpPorts
from solo5_systemd.network.lease_files import LeaseStore, remove_request
from solo5_systemd.network.links import Links, delete_links
from solo5_systemd.network.model import (
    GuestNames,
    IpAddress,
    Lease,
    LeaseRecord,
    LeaseState,
    PortRequest,
    Protocol,
    Request,
    Reservation,
)
from solo5_systemd.network.neighbours import Neighbours
from solo5_systemd.network.nft_objects import Element
from solo5_systemd.network.nft_rules import STRANGERS, UNSERVED
from solo5_systemd.network.nft_tables import Tables
from solo5_systemd.network.overview import Repair
from solo5_systemd.network.remembered_addresses import RememberedAddresses
from solo5_systemd.network.request_checks import absent, host_ports
from solo5_systemd.network.routes import overtaken
from solo5_systemd.networkd.address_choice import Choice
from solo5_systemd.networkd.bridges import Bridges
from solo5_systemd.networkd.dhcp import DhcpFiles
from solo5_systemd.networkd.held_ports import HeldPorts
from solo5_systemd.networkd.leases import RESERVATION_TIMEOUT_S, Leases, Remains, attached, udp_ports
from solo5_systemd.networkd.repairs import Repairs
from solo5_systemd.networkd.sleepers import Sleepers
from solo5_systemd.settings.addresses import IpNetwork
from solo5_systemd.settings.network_policy import Network
from solo5_systemd.settings.solo5_toml import Settings

if TYPE_CHECKING:
    from solo5_systemd.network.namespaces import NetworkNamespace

_log = logging.getLogger(__name__)


class NetworkState:
    """Networks, leases and port sockets, in memory, in files and in the kernel. Not thread-safe. Raises HostError.

    A file is written before the object that it describes is made, and removed after it: a service that is killed
    between any two lines finds a file for everything that it may have made. `recover` then makes the kernel's state
    match the files. It is made in a thread that has entered its network namespace.

    Args:
        settings: returns the settings of its networks.
        report: called with each repair of what other programs change.
        namespace: its path; empty: the host's own.
        reserved: returns ranges and prefixes that a chosen one must not overlap, besides those of the namespace's
            routes.

    Attributes:
        remembered: the addresses that declared tasks had last: other tasks get them last, and a network has the range
            of its own again; None: there are none.
        within: its open network namespace, which the caller sets; None: the host's own.
        is_restored: it matches the files.
    """

    def __init__(
        self,
        links: Links,
        settings: Callable[[], Settings],
        ports: HeldPorts,
        report: Callable[[Repair], None],
        namespace: str = "",
        reserved: Callable[[], Iterable[IpNetwork]] = tuple,
    ) -> None:
        self.links, self.settings, self.ports, self.namespace = links, settings, ports, namespace
        self.within: NetworkNamespace | None = None
        self.is_restored = True
        self.store, self.tables = LeaseStore(namespace), Tables()
        self.remembered = None if namespace else RememberedAddresses()
        self.leases = Leases(self.store, namespace)
        self.bridges = Bridges(self.store, links, self.tables, self.leases)
        self.dhcp = DhcpFiles(self.store.own / "dhcp")  # remains empty in another namespace: no network there has DHCP
        self.repairs = Repairs(self.bridges, report)
        self.sleepers = Sleepers(self.bridges)
        self.choice = Choice(self.bridges, settings, reserved, self.remembered)

    # -- one task ------------------------------------------------------------------------------------------------

    def reserve(self, task: TaskName, request: Request) -> LeaseRecord:
        """Reserve addresses, MACs, tap names and ports for a task: in files and port sockets, without links or rules.

        The same request renews the reservation.

        Raises:
            InvalidRequestError: the request can never succeed.
            TakenError: an address, MAC or port is in use, or the task has another reservation.
            HostError: the host lacks a resource, such as a free range.
        """
        reservation, networks = self._find_or_choose(task, request)
        held = self.leases.get(task)
        if held is not None and held.waits and held.names != request.names:  # name servers may have changed
            self.leases.save(held := replace(held, names=request.names))
        if held is not None and held.state is not LeaseState.RESERVED:  # a new one would expire under a running guest
            return held
        record = self._hold(reservation, request.names, networks)
        self.store.keep_request(task)
        if held is None:
            self._log_remembered(reservation)
        return record

    def absent_addresses(self, ports: Iterable[PortRequest]) -> Sequence[PortRequest]:
        """Return those of a task's ports at an address that the host does not have yet: no client reaches them."""
        return absent(ports, self.links.routes.addresses((4, 6)))

    def _log_remembered(self, reservation: Reservation) -> None:
        """Log an address that another, declared task had last: it was requested by value, or the network is full."""
        remembered = self.choice.remembered
        for lease in reservation.leases:
            for address in lease.addresses:
                owner = remembered.get(address, reservation.task)
                if owner != reservation.task:
                    _log.info(
                        "task %s has the address %s of network %s, which declared task %s had last",
                        reservation.task,
                        address,
                        lease.network,
                        owner,
                    )

    def _hold(self, reservation: Reservation, names: GuestNames, networks: Iterable[Network]) -> LeaseRecord:
        """Bind the ports of a reservation and write its record, with the networks that it creates."""
        record = self.leases.reserved(reservation, names)
        ports = host_ports(reservation)
        # In another namespace, no socket keeps a port from the programs that share it. One that binds it later is
        # reached neither at the namespace's address nor at its loopback.
        (self.ports.check if self.namespace else self.ports.bind)(ports)
        try:
            for network in networks:
                self.bridges.add(network)
            self.leases.save(record)
        except Solo5Error:
            if self.leases.get(reservation.task) is None:  # without a record, no release would close these port sockets
                self.ports.release(ports)
            raise
        return record

    def preview(self, task: TaskName, request: Request) -> tuple[Reservation, Sequence[Element]]:
        """Return the result of `reserve` and the nftables elements that `attach` would add; changes nothing."""
        reservation, networks = self._find_or_choose(task, request)
        if self.leases.get(task) is None:
            self.ports.check(host_ports(reservation))
        before = self.bridges.ruleset()
        known = set(nft_elements.elements(before))
        record = attached(self.leases.reserved(reservation, request.names))
        after = replace(before, networks=(*before.networks, *networks), records=(record,))
        return reservation, tuple(element for element in nft_elements.elements(after) if element not in known)

    def attach(self, task: TaskName) -> None:
        """Make the taps and firewall elements of a reservation, which a released task gets again; idempotent.

        Raises:
            NotFoundError: the task has neither a reservation nor a request.
            TakenError, InvalidRequestError: a released task cannot have the same values again.
            HostError: the kernel refused; the attach is undone.
        """
        self.repairs.repair_tables()
        before = self.leases.get(task)
        self.sleepers.end(task)  # of an earlier run, or it waits
        held = self.leases.get(task)
        record = held or self._reserve_again(task)
        self.tables.forget_taps((lease.tap for lease in record.reservation.leases), STRANGERS, UNSERVED)
        if record.state in (LeaseState.RESERVED, LeaseState.WAITING):
            try:
                self._attach(record)
            except Solo5Error:
                _attempt_each(
                    f"the attach of task {task}",
                    lambda: self.bridges.replace_tables() if self.bridges.up else None,
                    lambda: delete_links(lease.tap for lease in record.reservation.leases),
                )
                self.dhcp.remove(record.reservation, self.bridges.networks)
                if before is not None and before.waits:  # since when it did
                    _attempt_each(f"the start of task {task}", partial(self.leases.save, before))
                if held is None:  # `_reserve_again` has made it for this attach alone
                    self.ports.release(host_ports(record.reservation))
                    _attempt_each(f"the reservation of task {task}", lambda: self.end_release(task))
                raise
        else:  # a second start: its unit gets as long to run as the first one's
            try:
                self.repairs.repair_links({task})
            except Solo5Error:  # perhaps of another network's bridge
                own = [self.bridges.networks[lease.network] for lease in record.reservation.leases]
                if not all(network.join or self.links.is_whole(network) for network in own):
                    raise
            for lease in record.reservation.leases:  # such as in a namespace that was made again
                self._make_tap(record.reservation, lease)
            self.leases.save(attached(record))
        for each in overtaken(self.bridges.networks.values(), record.reservation.leases):
            self.repairs.report_unrepaired(task, str(each))

    def udp_ports(self, task: TaskName) -> UdpPorts:
        """Return the UDP ports of a task, at the addresses that the host has now."""
        record = self.leases.get(task)
        return udp_ports([record.reservation], self.links.routes.addresses) if record else {}

    def served(self) -> tuple[UdpPorts, Collection[IpAddress]]:
        """Return the UDP ports of all tasks that run or wait, and the guests of these tasks.

        A flow to such a port and no such guest began while there were no tables, or a service that was killed has not
        deleted it.
        """
        held = [record.reservation for record in (*self.leases.attached(), *self.leases.waiting())]
        return udp_ports(held, self.links.routes.addresses), {
            each for of in held for lease in of.leases for each in lease.addresses
        }

    def last_request(self, task: TaskName) -> Request | None:
        """Return the request of a task that may wait again; None: unknown, or its declaration has changed since."""
        request = self.remembered.request(task) if self.remembered else None
        return request if request and request.idle_stops else None

    def wait_again(self, task: TaskName) -> bool:
        """Have a task wait as it did before a boot; return whether it is known what it had.

        Raises:
            TakenError, InvalidRequestError: it cannot have the same addresses or ports again.
        """
        request = self.last_request(task)
        if request is None:
            return False
        record = self.reserve(task, request)
        for lease in record.reservation.leases:
            self.bridges.bring_up(lease)
        self.sleepers.wait(record)
        return True

    def _reserve_again(self, task: TaskName) -> LeaseRecord:
        """Reserve what a released task had: its unit's command line has these values."""
        kept = self.store.request(task)
        if kept is None:
            raise NotFoundError(
                f"task {task} has no reservation: expected one made less than {RESERVATION_TIMEOUT_S} s ago.",
                "Start the task again.",
            )
        had = kept.reservation
        reservation, networks = self.choice.choose(task, had.request)
        if _without_bridges(reservation) != _without_bridges(had):  # a bridge is not part of the unit
            raise TakenError(
                f"task {task} cannot have its network again: its tap or the settings of its network have changed.",
                f"Remove the task (`solo5ctl rm {task}`) and start it anew.",
            )
        return self._hold(had, kept.names, networks)

    def begin_release(self, task: TaskName, *, waits: bool = False) -> Remains:
        """Remove the firewall elements and ports of a task, or with `waits` what it does not need while it waits.

        Ports that it has of another task are moved back to that one, if it has a network.
        The caller deletes what remains, and then calls `end_release`.
        """
        record = self.leases.get(task)
        if record is None:
            return Remains()
        lender = self.leases.get(TaskName(record.lender))
        if lender is not None and lender.state is LeaseState.ATTACHED and not lender.reservation.ports:
            self.move_ports(task, lender.reservation.task)
        self.repairs.repair_tables()
        record = self.leases.get(task) or record  # the steps before may have saved another one
        was_attached = record.state is LeaseState.ATTACHED
        again = record.state is LeaseState.RELEASING  # an earlier release may have failed to delete flows
        ends = record.state is not LeaseState.RESERVED and not waits  # one that waits has the same address later
        if record.state is LeaseState.RESERVED:  # no unit has had it
            remove_request(task)
        if waits:
            self.sleepers.wait(record)
        else:
            ended = replace(record, state=LeaseState.RELEASING, asleep=0)
            self.leases.save(ended)
            if record.reservation.idle_stops:
                with suppress(Solo5Error):  # another program has deleted the bridge, and what is held with it
                    self.sleepers.packets(task, Neighbours.refuse)
            self.ports.release(host_ports(record.reservation))
            self.bridges.change_elements([record], [ended])
        if was_attached or again:
            self.dhcp.remove(record.reservation, self.bridges.networks)
        own = [lease for lease in record.reservation.leases if not self.bridges.joins(lease)]
        for lease in own:
            # An interrupted release may have removed the network.
            if (network := self.bridges.networks.get(lease.network)) is not None:
                self.links.delete_routes(lease, network, lease.limits.routes)
        addresses = [address for lease in own for address in lease.addresses]
        # It had ports before an update moved them, or has some; UDP clients of one that waits reach it again.
        serves = record.moves > 0 or any(ends or each.protocol is not Protocol.UDP for each in record.reservation.ports)
        return Remains(
            taps=[lease.tap for lease in record.reservation.leases],
            ports=() if waits or self.within else host_ports(record.reservation),  # a namespace has no port sockets
            addresses=[address for address in addresses if again or self.tables.may_have_flows(address)],
            servers=addresses if serves else (),
            behind=tuple(route for lease in own for route in lease.limits.routes),
            namespace=self.within,
        )

    def move_ports(self, source: TaskName, target: TaskName) -> None:
        """Move the published ports of a task to another task's guest, in one nftables transaction; idempotent.

        Flows that the kernel tracks stay with their guest; new ones reach the other guest.

        Raises:
            NotFoundError: the second task has no attached network.
            TakenError: it has other ports.
            InvalidRequestError: it has no NIC of a port's name.
        """
        old, new = self.leases.get(source), self.leases.get(target)
        if new is None or new.state is not LeaseState.ATTACHED:
            raise NotFoundError(f"task {target} has no network, so no ports can be moved to it.")
        if old is None or old.state is LeaseState.RELEASING or not old.reservation.ports:
            return
        if new.reservation.ports:
            raise TakenError(f"task {target} has published ports, so no others can be moved to it.")
        names = [lease.nic for lease in new.reservation.leases]
        for port in old.reservation.ports:
            if port.nic not in names:
                raise InvalidRequestError(
                    f"task {target} has no NIC {port.nic}, to which port {port.host_port} is published: expected "
                    f"one of {', '.join(names)}."
                )
        self.repairs.repair_tables()
        self.bridges.change_elements((old, new), self.leases.move_ports(old, new))

    def end_release(self, task: TaskName) -> None:
        """Remove the networks without a lease, and the lease record of a task whose taps are deleted; not if it waits.

        Raises:
            HostError: the kernel refused; the task keeps its record, and the release is to be repeated.
        """
        record = self.leases.get(task)
        if record is not None and record.waits:
            return
        self.leases.forget(task)
        try:
            self.bridges.remove_idle()
        except Solo5Error:
            if record is not None:
                self.leases.remember(record)
            raise
        self.store.remove_lease_record(task)  # last: without it, callers take the release to be over

    # -- recovery and repair -------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Make the kernel's state match the files, at start-up."""
        self.bridges.networks = self.store.networks()
        for record in self.store.lease_records():
            # Of a release that was interrupted, the networks may have gone before the record.
            is_whole = all(lease.network in self.bridges.networks for lease in record.reservation.leases)
            self.leases.remember(record if is_whole else replace(record, state=LeaseState.RELEASING))
        self.leases.resolve_moves()
        for record in self.leases.attached():
            if record.ends:  # a killed service may have sent no signal
                self.leases.save(replace(record, asleep=0))
        self._apply_changed_policies()
        if not self.namespace:
            self.ports.restore(self.leases.published_ports())
        self.bridges.up = {
            name for name, each in self.bridges.networks.items() if not each.join and self.links.has_bridge(each)
        }
        self.repairs.remove_orphaned_taps()
        self.bridges.read_routers()
        self.dhcp.restore(self.leases.attached(), self.bridges.networks)
        if self.bridges.up:
            self.sleepers.keep_frames()  # no process had the announcements of these
            self.bridges.replace_tables()
        try:
            self.repairs.repair_changed(None)
        except Solo5Error as error:  # repeated by the check of units; the other networks can be used
            where = f"network namespace {self.namespace}" if self.namespace else "a network"
            _log.error("%s cannot be restored: %s", where, error)
        self.bridges.restore_unused_sysctls()
        self.bridges.remove_idle()

    def _apply_changed_policies(self) -> None:
        """Apply to networks in use what applies of changed settings: policies, name servers, pools of bridges."""
        try:
            settings = self.settings()
        except Solo5Error as error:
            _log.warning("cannot read settings, networks in use keep their policy: %s", error)
            return
        for network in [*self.bridges.networks.values()]:
            if (known := settings.network(network.name)) is not None:
                join = network.join
                if join is not None and known.join is not None:  # the ports of its taps are in that VLAN
                    join = replace(known.join, vlan=join.vlan)
                changed = replace(network, policy=known.policy, resolver=known.resolver, join=join)
                if changed != network:
                    self.bridges.add(changed)

    def close(self) -> None:
        """Close the sockets. No task has a record any more."""
        self.links.close()
        self.tables.close()
        self.store.remove_namespace()
        if self.within is not None:
            self.within.close()

    def _find_or_choose(self, task: TaskName, request: Request) -> tuple[Reservation, Sequence[Network]]:
        """Return the task's existing reservation or a new one, and the networks that it would create."""
        held = self.leases.get(task)
        if held is not None and not held.serves(request):
            raise TakenError(
                f"task {task} holds another reservation: expected the same request or another name.",
                f"`solo5ctl rm {task}` releases it.",
            )
        reservation, networks = (held.reservation, ()) if held else self.choice.choose(task, request)
        if reservation.idle_s:
            self.sleepers.check(reservation, networks)
        return reservation, networks

    def _attach(self, record: LeaseRecord) -> None:
        reservation = record.reservation
        for lease in reservation.leases:
            if self.bridges.joins(lease):
                self.bridges.joined_bridge(self.bridges.networks[lease.network])
            self.bridges.bring_up(lease)
        self.dhcp.add(record, self.bridges.networks)
        for lease in reservation.leases:
            self._make_tap(reservation, lease)
        made = attached(record)
        self.bridges.change_elements([record], [made])
        self.leases.save(made)
        self.bridges.make_room_for_neighbours(reservation)

    def _make_tap(self, reservation: Reservation, lease: Lease) -> None:
        network = self.bridges.networks[lease.network]
        self.links.make_tap(reservation.task, lease, network)
        if network.join is None:
            self.links.route_behind(lease, network, lease.limits.routes)


def _attempt_each(what: str, *steps: Callable[[], object]) -> None:
    """Undo what has failed step by step, of which one that fails prevents no other, and is logged.

    The error that the caller raises is the first one, which is the reason.
    """
    for step in steps:
        try:
            step()
        except Solo5Error as error:
            _log.error("undoing %s failed: %s", what, error)


def _without_bridges(reservation: Reservation) -> Reservation:
    return replace(reservation, leases=tuple(replace(lease, bridge="") for lease in reservation.leases))
