"""The state of a namespace whose interface is a guest's: reserve, attach, release, repair, as `NetworkState`."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from solo5_systemd.base.errors import InvalidRequestError, Solo5Error, TakenError
from solo5_systemd.base.names import TaskName
from solo5_systemd.network import links
from solo5_systemd.network.conntrack import RedirectedPort
from solo5_systemd.network.ipam import tap_name
from solo5_systemd.network.lease_files import LeaseStore
from solo5_systemd.network.links import Links
from solo5_systemd.network.model import (
    UNNAMED,
    GuestNames,
    LeaseRecord,
    LeaseState,
    NicRequest,
    PortRequest,
    Repair,
    Reservation,
)
from solo5_systemd.network.nft_elements import Element
from solo5_systemd.network.nft_tables import Nft
from solo5_systemd.network.redirect import MODULES, TABLE, check_redirected, redirect_rules, redirected_lease
from solo5_systemd.networkd.flow_and_tap_deletions import Remains
from solo5_systemd.networkd.leases import Leases
from solo5_systemd.networkd.state import attempt_each

_log = logging.getLogger(__name__)


class RedirectState:
    """The one task of a namespace that has its interface, in memory, in files and in the kernel. Not thread-safe.

    Attributes:
        repairs: this object.
    """

    def __init__(self, *, store: LeaseStore, links: Links, permitted: Callable[[], bool], namespace: str) -> None:
        """Take the parts of one network namespace.

        Args:
            permitted: returns whether the settings permit it.
        """
        self._store = store
        self._links = links
        self._nft = Nft(MODULES)
        self._permitted = permitted
        self._namespace = namespace
        self._listed = ""
        self._done: list[Repair] = []
        self.leases = Leases(store, namespace)

    @property
    def repairs(self) -> "RedirectState":
        """This object: there is one link and one table to repair."""
        return self

    # -- one task ------------------------------------------------------------------------------------------------

    def reserve(
        self, task: TaskName, nics: Sequence[NicRequest], ports: Sequence[PortRequest], names: GuestNames = UNNAMED
    ) -> Reservation:
        """Reserve as `NetworkState.reserve`; raises also where the namespace has another task."""
        held = self.leases.get(task)
        reservation = self._chosen(task, nics, ports)
        if held is None or held.state is LeaseState.RESERVED:
            self._hold(reservation, nics, names)
            self._store.keep_request(task)
        return reservation

    def preview(
        self, task: TaskName, nics: Sequence[NicRequest], ports: Sequence[PortRequest]
    ) -> tuple[Reservation, Sequence[Element]]:
        """Return the result of `reserve`; its rules are no elements of a set."""
        return self._chosen(task, nics, ports), ()

    def _chosen(self, task: TaskName, nics: Sequence[NicRequest], ports: Sequence[PortRequest]) -> Reservation:
        if not self._permitted():
            raise InvalidRequestError(
                f"task {task} is on network redirect, which this host does not permit: expected another network.",
                "Set redirect = true in [network.namespace] below /etc/solo5: such a guest has no packet filter.",
            )
        for other in self.leases.records:
            if other.reservation.task != task:
                raise TakenError(
                    f"network namespace {self._namespace} has task {other.reservation.task}, to which its interface "
                    f"belongs: expected task {task} to be alone in it."
                )
        held = self.leases.same(task, nics, ports)
        if held is not None:
            return held
        check_redirected(task, tuple(nics), tuple(ports))
        lease = redirected_lease(nics[0], tap_name(task, nics[0].nic), self._links.routes.uplink(), self._namespace)
        return Reservation(task=task, leases=(lease,), ports=tuple(ports))

    def _hold(self, reservation: Reservation, nics: Sequence[NicRequest], names: GuestNames) -> LeaseRecord:
        record = self.leases.reserved(reservation, nics, names)
        self._store.make_namespace()
        self.leases.save(record)
        return record

    def attach(self, task: TaskName) -> frozenset[RedirectedPort]:
        """Make the tap and the rules; idempotent. Raises as `NetworkState.attach`."""
        held = self.leases.get(task)
        record = held or self._reserve_again(task)
        try:
            self._make(record)
            self.leases.save_attached(record)
        except Solo5Error:
            if record.state is LeaseState.RESERVED:  # otherwise a guest may be running with both
                self._undo_attach(record.reservation)
                if held is None:
                    self.end_release(task)
            raise
        return frozenset()

    def _undo_attach(self, reservation: Reservation) -> None:
        attempt_each(
            f"the attach of task {reservation.task}",
            lambda: links.delete_links(lease.tap for lease in reservation.leases),
            self._delete_table,
        )

    def _reserve_again(self, task: TaskName) -> LeaseRecord:
        kept = self.leases.request(task)
        if self._chosen(task, kept.nics, kept.reservation.ports) != kept.reservation:
            raise TakenError(
                f"task {task} cannot have its network again: the interface of {self._namespace} has changed.",
                f"Remove the task (`solo5ctl rm {task}`) and start it anew.",
            )
        return self._hold(kept.reservation, kept.nics, kept.names)

    def _make(self, record: LeaseRecord) -> None:
        [lease] = record.reservation.leases
        self._links.make_unbridged_tap(record.reservation.task, lease)
        self._nft.run(redirect_rules(lease))
        self._listed = self._listing()

    def _listing(self) -> str:
        """Return the table, without counters; empty where it does not exist."""
        code, output, _ = self._nft.cmd(f"list table {TABLE}")
        return "" if code else str(output)

    def _delete_table(self) -> None:
        self._nft.run(f"add table {TABLE}\ndelete table {TABLE}")

    def begin_release(self, task: TaskName) -> Remains:
        """Remove the rules; the caller deletes the tap, and then calls `end_release`."""
        record = self.leases.get(task)
        if record is None:
            return Remains(reservation=Reservation(task=task))
        if record.state is LeaseState.RESERVED:  # no unit has had it
            self._store.remove_request(task)
        self.leases.save(replace(record, state=LeaseState.RELEASING))
        self._delete_table()
        return Remains(reservation=record.reservation)

    def end_release(self, task: TaskName) -> None:
        """Remove the lease record of a task whose tap is deleted."""
        self.leases.forget(task)
        self._store.remove_lease_record(task)

    def recover(self) -> Sequence[TaskName]:
        """Make the kernel's state match the files, at start-up; return the tasks whose release was interrupted."""
        for record in self._store.lease_records().values():
            self.leases.remember(record)
        for record in self.leases.attached():
            self._make(record)
        return self.leases.releasing()

    def close(self) -> None:
        """Close the sockets. No task has a record any more."""
        self._links.close()
        self._store.remove_namespace()

    # -- repair --------------------------------------------------------------------------------------------------

    @property
    def any(self) -> bool:
        """Whether `pop` has something to return."""
        return bool(self._done)

    def pop(self) -> Sequence[Repair]:
        """Return the repairs since the last call."""
        done, self._done = self._done, []
        return done

    def repair_tables(self, *, verify: bool = True) -> None:
        """Restore the rules if another program has changed them; they are listed for that."""
        for record in self.leases.attached() if verify else ():
            if self._listing() != self._listed:
                self._make(record)
                what = f"another program changed nftables in {self._namespace}: table {TABLE} is rebuilt"
                self._repaired(record.reservation.task, what)

    def repair_changed(self, changed: frozenset[str] | None) -> None:
        """Make a tap that is missing or down."""
        for record in self.leases.attached():
            [lease] = record.reservation.leases
            if (changed is None or lease.tap in changed) and not self._links.has_unbridged_tap(
                record.reservation.task, lease
            ):
                self._make(record)
                self._repaired(record.reservation.task, f"tap {lease.tap} was missing or down: it is restored")

    def _repaired(self, task: TaskName, what: str) -> None:
        _log.warning("network repaired: %s", what)
        self._done.append(Repair(tasks=[task], what=what))
        self._store.record_repair(self._done[-1])

    def remove_orphaned_taps(self) -> None:
        """Delete the taps without an attached lease."""
        orphans = self._links.taps().keys() - {lease.tap for _, lease in self.leases.attached_leases()}
        if orphans:
            links.delete_links(orphans)
