"""The networks of all network namespaces: the host's own, and those of other programs, such as Nomad's groups."""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace

from solo5_systemd.base.errors import InvalidRequestError, Solo5Error
from solo5_systemd.base.names import TaskName
from solo5_systemd.network.conntrack import RedirectedPort
from solo5_systemd.network.lease_files import LeaseStore
from solo5_systemd.network.model import (
    LeaseRecord,
    LeaseState,
    NetworkOverview,
    Repair,
    Request,
    Reservation,
)
from solo5_systemd.network.namespaces import NetworkNamespace
from solo5_systemd.network.nft_elements import Element
from solo5_systemd.networkd.flow_and_tap_deletions import Remains, delete_redirected
from solo5_systemd.networkd.leases import now
from solo5_systemd.networkd.state import NetworkState
from solo5_systemd.networkd.watches import Watches

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Other:
    path: str
    namespace: NetworkNamespace
    state: NetworkState


class Namespaces:
    """The network state of the host, and of each other namespace that has a task. Not thread-safe, as `NetworkState`.

    The state of another namespace is made for its first task, by sockets that are opened in it, and closed after its
    last one. Such a namespace ends with the programs that it was made for, and so does all that is in it. Methods for
    the host alone are those of `host`.

    Args:
        host: the state of the host's own namespace.
        store: the files of the host's own namespace.
        make_state: makes the state of the namespace with a path, in a thread that has entered it.
        watches: of the other namespaces.
    """

    def __init__(
        self,
        host: NetworkState,
        store: LeaseStore,
        make_state: Callable[[str], NetworkState],
        watches: Watches,
    ) -> None:
        self.host = host
        self._store = store
        self._make_state = make_state
        self._watches = watches
        self._others: dict[str, _Other] = {}
        self._tasks: dict[TaskName, str] = {}  # the paths of those in other namespaces
        self._lost: dict[TaskName, LeaseRecord] = {}
        self._unrestored: set[str] = set()
        self._repairs: list[Repair] = []

    @property
    def records(self) -> Collection[LeaseRecord]:
        """The lease records of all tasks, as a copy: safe to read in any thread."""
        return [*(record for state in self._states() for record in state.leases.records), *list(self._lost.values())]

    def recover(self) -> Sequence[TaskName]:
        """Make the kernel's state match the files, at start-up; return the tasks whose release was interrupted."""
        self.host.recover()
        found: dict[str, list[LeaseRecord]] = {}
        for record in self._store.others():
            found.setdefault(record.namespace, []).append(record)
        for path, records in found.items():
            try:
                with self._entered(path):
                    self._tasks |= {record.reservation.task: path for record in records}
                    self._restore(self._others[path])
            except Solo5Error as error:  # deleted, with its taps
                _log.warning("%s", error)
                ended = (replace(record, state=LeaseState.RELEASING, expires=0, asleep=0) for record in records)
                self._lost |= {record.reservation.task: record for record in ended}
        self._store.remove_namespaces(self._others)
        return [record.reservation.task for record in self.records if record.state is LeaseState.RELEASING]

    def _restore(self, other: _Other) -> None:
        """Make the state of a namespace match the files. Where that fails, `repair_others` does it again."""
        try:
            other.state.recover()
            self._unrestored.discard(other.path)
        except Solo5Error as error:  # not lost: its guests run, with the rules that are there
            _log.error("network namespace %s cannot be restored: %s", other.path, error)
            self._unrestored.add(other.path)

    # -- one task ------------------------------------------------------------------------------------------------

    def reserve(self, task: TaskName, request: Request) -> LeaseRecord:
        """Reserve as `NetworkState.reserve`, in a namespace; raises HostError where that does not exist."""
        with self._entered(request.namespace) as state:
            record = state.reserve(task, request)
            if request.namespace:
                self._tasks[task] = request.namespace
            return record

    def preview(self, task: TaskName, request: Request) -> tuple[Reservation, Sequence[Element]]:
        """Return as `NetworkState.preview`, for a namespace."""
        with self._entered(request.namespace) as state:
            return state.preview(task, request)

    def attach(self, task: TaskName) -> frozenset[RedirectedPort]:
        """Attach as `NetworkState.attach`; stale flows of another namespace are deleted here."""
        path = self._tasks.get(task) or self._requested_namespace(task)
        with self._entered(path) as state:
            try:
                redirected = state.attach(task)
            finally:
                if path and state.leases.get(task) is not None:  # also one whose attach failed and could not be undone
                    self._tasks[task] = path
            if not path:
                return redirected
            if redirected:
                delete_redirected(redirected)
            return frozenset()

    def _requested_namespace(self, task: TaskName) -> str:
        """Return the path of the namespace that a released task had; empty: the host's own, or it is not released."""
        request = None if self.host.leases.get(task) else self._store.request(task)
        return request.namespace if request else ""

    def begin_release(self, task: TaskName, *, waits: bool = False) -> Remains:
        """Begin a release as `NetworkState.begin_release`; what remains is in the namespace of the result."""
        if task in self._lost:
            return Remains(reservation=Reservation(task=task))
        with self._of_task(task) as state:
            other = self._others.get(self._tasks.get(task, ""))
            return replace(state.begin_release(task, waits=waits), namespace=other.namespace if other else None)

    def end_release(self, task: TaskName) -> None:
        """End a release as `NetworkState.end_release`, and close a namespace without a task."""
        if self._lost.pop(task, None) is not None:
            self._store.remove_lease_record(task)
            return
        with self._of_task(task) as state:
            state.end_release(task)
        self._tasks.pop(task, None)

    def move_ports(self, source: TaskName, target: TaskName) -> None:
        """Move ports as `NetworkState.move_ports`, between tasks of the host's own network namespace."""
        for task in (source, target):
            if task in self._tasks or task in self._lost:
                raise InvalidRequestError(
                    f"task {task} is in a network namespace of other programs: expected one in the "
                    "host's, between which ports can be moved."
                )
        self.host.move_ports(source, target)

    def record(self, task: TaskName) -> LeaseRecord | None:
        """Return the record of a task; safe in any thread."""
        other = self._others.get(self._tasks.get(task, ""))
        return self._lost.get(task) or (other.state if other else self.host).leases.get(task)

    def is_held(self, task: TaskName) -> bool:
        """Return whether the task has an attached network, or one whose release has not ended."""
        record = self.record(task)
        return record is not None and record.state is not LeaseState.RESERVED

    def is_due(self, task: TaskName) -> bool:
        """Return whether the time of the last reservation or attach of a task is over."""
        record = self.record(task)
        return record is not None and record.expires <= now()

    # -- sleep ---------------------------------------------------------------------------------------------------

    @property
    def announces(self) -> bool:
        """Whether packets that wake are announced; otherwise no task sleeps."""
        return self.host.sleepers.announces

    def sleepers(self) -> Sequence[LeaseRecord]:
        """Return the records of the tasks that may sleep or do; safe in any thread."""
        return [record for state in self._states() for record in state.sleepers.records()]

    def task_of_tap(self, tap: str, path: str = "") -> TaskName | None:
        """Return the task of a tap in a namespace; safe in any thread."""
        other = self._others.get(path)
        return (other.state if other else self.host).leases.allocations.taps.get(tap)

    def frames(self) -> Mapping[TaskName, int]:
        """Return as `Sleepers.frames`, of all namespaces."""
        found = {**self.host.sleepers.frames()} if self.host.sleepers.records() else {}
        sleeping = {record.namespace for record in self.sleepers()}
        self._everywhere(lambda state: found.update(state.sleepers.frames()), sleeping)
        return found

    def begin_sleep(self, task: TaskName, frames: int | None) -> bool:
        """Begin as `Sleepers.begin`."""
        with self._of_task(task) as state:
            return state.sleepers.begin(task, frames)

    def end_sleep(self, task: TaskName) -> None:
        """End as `Sleepers.end`."""
        with self._of_task(task) as state:
            state.sleepers.end(task)

    # -- all tasks -----------------------------------------------------------------------------------------------

    def held(self) -> Sequence[TaskName]:
        """Return the tasks with an attached network, or one whose release has not ended."""
        return [each.reservation.task for each in self.records if each.state is not LeaseState.RESERVED]

    def due(self) -> Sequence[TaskName]:
        """Return the tasks with an attached network, and no start in progress."""
        return [*filter(self.is_due, self.held())]

    def _reserved(self) -> Iterator[LeaseRecord]:
        return (record for record in self.records if record.state is LeaseState.RESERVED)

    def expired(self) -> Sequence[TaskName]:
        """Return the tasks whose reservation has expired."""
        return [record.reservation.task for record in self._reserved() if record.expires <= now()]

    def next_expiry(self) -> int | None:
        """Return the second of CLOCK_BOOTTIME in which the next reservation expires; None without a reservation."""
        return min((record.expires for record in self._reserved()), default=None)

    def _copy(self) -> Sequence[_Other]:
        return list(self._others.values())

    def _states(self) -> Sequence[NetworkState]:
        return [self.host, *(other.state for other in self._copy())]

    def overview(self) -> Sequence[NetworkOverview]:
        """Return every network of the host, in use or only configured, and those in use in other namespaces."""
        found = [*self.host.overview.networks()]
        for other in self._copy():
            try:
                with self._entered(other.path) as state:
                    found += state.overview.networks_in_use()
            except Solo5Error as error:
                _log.error("counts in network namespace %s cannot be read: %s", other.path, error)
        return found

    # -- repair --------------------------------------------------------------------------------------------------

    def repair(self, *, verify: bool = False) -> None:
        """Rebuild the nftables tables of the host, and with `verify` of all namespaces, where they were changed."""
        self.host.repairs.repair_tables(verify=verify)
        if verify:
            self._everywhere(lambda state: state.repairs.repair_tables(verify=True))

    def remove_orphaned_taps(self) -> None:
        """Delete the taps without an attached lease, in all namespaces."""
        self.host.repairs.remove_orphaned_taps()
        self._everywhere(lambda state: state.repairs.remove_orphaned_taps())

    def _everywhere(self, repair: Callable[[NetworkState], None], only: Collection[str] | None = None) -> None:
        for other in (each for each in self._copy() if only is None or each.path in only):
            try:
                with self._entered(other.path) as state:
                    if other.path in self._unrestored:
                        self._restore(other)
                    else:
                        repair(state)
            except Solo5Error as error:
                _log.error("network repair in namespace %s failed: %s", other.path, error)

    def repair_others(self) -> None:
        """Restore bridges, taps and tables of other namespaces: not every change in them has a netlink message."""
        self._everywhere(_restore_all)

    def report_mistakes(self) -> None:
        """Report the guests without their leased address, in all namespaces."""
        self.host.repairs.report_mistakes()
        self._everywhere(lambda state: state.repairs.report_mistakes())

    def repair_changed(self, paths: Collection[str]) -> None:
        """Restore the same of namespaces in which something has changed.

        The end of a task is a change as well, after which there may be nothing to restore.
        """
        self._everywhere(_restore_all, {each.path for each in self._copy() if each.state.leases.attached()} & {*paths})

    @property
    def has_repairs(self) -> bool:
        """Whether `pop_repairs` has something to return; safe to read in any thread."""
        return bool(self._repairs) or self.host.repairs.any

    def pop_repairs(self) -> Sequence[Repair]:
        """Return the repairs since the last call."""
        repairs, self._repairs = self._repairs, []
        return [*self.host.repairs.pop(), *repairs]

    # -- namespaces ----------------------------------------------------------------------------------------------

    @contextmanager
    def _entered(self, path: str) -> Iterator[NetworkState]:
        """Have this thread in a namespace, with its state; close that after the block unless it has a task.

        `path`: empty: the host's own.
        """
        if not path:
            yield self.host
            return
        other = self._others.get(path) or self._open(path)
        try:
            with other.namespace.entered():
                yield other.state
                self._repairs += other.state.repairs.pop()
        finally:
            if not other.state.leases.records and path in self._others:
                del self._others[path]
                self._unrestored.discard(path)
                self._watches.remove(path)
                other.state.close()
                other.namespace.close()

    def _of_task(self, task: TaskName) -> AbstractContextManager[NetworkState]:
        """Have this thread in the namespace of a task, with its state, for a block."""
        return self._entered(self._tasks.get(task, ""))

    def _open(self, path: str) -> _Other:
        namespace = NetworkNamespace(path)
        try:
            with namespace.entered():
                state = self._make_state(path)
            self._watches.add(path, rules=not self.host.repairs.owns_tables)
        except BaseException:
            namespace.close()
            raise
        self._others[path] = _Other(path, namespace, state)
        return self._others[path]


def _restore_all(state: NetworkState) -> None:
    try:
        state.repairs.repair_tables()
    finally:
        state.repairs.repair_changed(None)
