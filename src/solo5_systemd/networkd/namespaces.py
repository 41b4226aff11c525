"""The networks of all network namespaces: the host's own, and those of other programs, such as Nomad's groups."""

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TypeVar

from solo5_systemd.base.concurrency import KeyedLocks, SerialThread
from solo5_systemd.base.errors import HostError, InvalidRequestError, Solo5Error
from solo5_systemd.base.names import TaskName
from solo5_systemd.network.conntrack import UdpPorts, delete_udp_flows
from solo5_systemd.network.drops import Dropped
from solo5_systemd.network.ipam import free_addresses
from solo5_systemd.network.model import LeaseRecord, LeaseState, Protocol, Request, Reservation
from solo5_systemd.network.namespaces import NetworkNamespace
from solo5_systemd.network.nft_objects import Element
from solo5_systemd.network.overview import NetworkOverview
from solo5_systemd.networkd.leases import now
from solo5_systemd.networkd.sleepers import Sleepers
from solo5_systemd.networkd.state import NetworkState
from solo5_systemd.networkd.task_units import TaskUnits
from solo5_systemd.networkd.watches import Watches
from solo5_systemd.settings.resolver import UNSET

_log = logging.getLogger(__name__)


T = TypeVar("T")

NAMESPACES_MAX = 200
"""The namespaces of other programs with guests. Each takes 1.2 MB of the service (MemoryMax=), and up to 0.3 s of its
start (TimeoutStartSec=); and libnftables has a socket in each, whose number select(2) limits."""


class Namespaces:
    """The network state of the host, and of each other namespace that has a task. Not thread-safe, as `NetworkState`.

    The state of another namespace is made for its first task, by sockets that are opened in it, and closed after its
    last one. Such a namespace ends with the programs that it was made for, and so does all that is in it. Methods for
    the host alone are those of `host`.

    Args:
        make_state: makes the state of the namespace with a path, in a thread that has entered it.
    """

    def __init__(self, host: NetworkState, make_state: Callable[[str], NetworkState], watches: Watches) -> None:
        self.host = host
        self._make_state = make_state
        self._watches = watches
        self._states = {"": host}  # by the path of their namespace
        self._tasks: dict[TaskName, str] = {}  # the paths of those in other namespaces

    @property
    def records(self) -> Collection[LeaseRecord]:
        """The lease records of all tasks, as a copy: safe to read in any thread."""
        return [record for state in self._all() for record in state.leases.records]

    def recover(self) -> Sequence[TaskName]:
        """Make the kernel's state match the files, at start-up; return the tasks whose release was interrupted."""
        self.host.recover()
        found: dict[str, list[LeaseRecord]] = {}
        for record in self.host.store.others():
            found.setdefault(record.namespace, []).append(record)
        for path, records in found.items():
            try:
                with self._entered(path) as state:
                    self._tasks |= {record.reservation.task: path for record in records}
                    self._restore(state)
            except Solo5Error as error:  # deleted, with all that a release would remove
                _log.warning("%s", error)
                for record in records:
                    self.host.store.remove_lease_record(record.reservation.task)
        self.host.store.remove_namespaces(self._states)
        return [record.reservation.task for record in self.records if record.state is LeaseState.RELEASING]

    def _restore(self, state: NetworkState) -> None:
        """Make the state of a namespace match the files. Where that fails, `everywhere` does it again."""
        state.is_restored = False
        try:
            state.recover()
            state.is_restored = True
        except Solo5Error as error:  # not lost: its guests run, with the rules that are there
            _log.error("network namespace %s cannot be restored: %s", state.namespace, error)

    # -- one task ------------------------------------------------------------------------------------------------

    def reserve(self, task: TaskName, request: Request) -> LeaseRecord:
        """Reserve as `NetworkState.reserve`, in a namespace; raises HostError where that does not exist."""
        self._check_path(request.namespace)
        with self._entered(request.namespace) as state:
            record = state.reserve(task, request)
            if request.namespace:
                self._tasks[task] = request.namespace
            return record

    def preview(self, task: TaskName, request: Request) -> tuple[Reservation, Sequence[Element]]:
        """Return as `NetworkState.preview`, for a namespace."""
        with self._entered(request.namespace) as state:
            return state.preview(task, request)

    def attach(self, task: TaskName) -> None:
        """Attach as `NetworkState.attach`."""
        path = self._tasks.get(task, "")
        if not path and not self.host.leases.get(task):  # released: its request alone has the namespace
            released = self.host.store.request(task)
            path = released.namespace if released else ""
        self._check_path(path)
        with self._entered(path) as state:
            try:
                state.attach(task)
            finally:
                if path and state.leases.get(task) is not None:  # also one whose attach failed and could not be undone
                    self._tasks[task] = path

    def end_release(self, task: TaskName) -> None:
        """End a release as `NetworkState.end_release`, and close a namespace without a task."""
        self.at(task, lambda state: state.end_release(task))
        self._tasks.pop(task, None)

    def move_ports(self, source: TaskName, target: TaskName) -> None:
        """Move ports as `NetworkState.move_ports`, between tasks of the host's own network namespace."""
        for task in (source, target):
            if task in self._tasks:
                raise InvalidRequestError(
                    f"task {task} is in a network namespace of other programs: ports can be moved "
                    "between tasks in the host's only."
                )
        self.host.move_ports(source, target)

    def record(self, task: TaskName) -> LeaseRecord | None:
        """Return the record of a task; safe in any thread."""
        state = self._states.get(self._tasks.get(task, ""))
        return state.leases.get(task) if state else None  # none: the writer thread has just closed it

    def is_held(self, task: TaskName) -> bool:
        """Return whether the task has an attached network, or one whose release has not ended."""
        record = self.record(task)
        return record is not None and record.state is not LeaseState.RESERVED

    def is_due(self, task: TaskName) -> bool:
        """Return whether the time of the last reservation or attach of a task is over."""
        record = self.record(task)
        return record is not None and record.expires <= now()

    def waits(self, task: TaskName) -> bool:
        """Return whether a task has no process, and is started for its first packet; safe in any thread."""
        record = self.record(task)
        return record is not None and record.waits

    # -- sleep ---------------------------------------------------------------------------------------------------

    def sleepers(self) -> Sequence[tuple[Sleepers, LeaseRecord]]:
        """Return the records of the tasks that may sleep or do, with those of their namespace; safe in any thread."""
        return [(state.sleepers, record) for state in self._all() for record in state.sleepers.records()]

    def frames(self) -> Mapping[TaskName, int]:
        """Return as `Sleepers.frames`, of all namespaces."""
        found: dict[TaskName, int] = {}
        paths = {record.namespace for _, record in self.sleepers()}
        self.everywhere(lambda state: found.update(state.sleepers.frames()), paths)
        return found

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

    def next_expiry(self) -> float:
        """Return the second of CLOCK_BOOTTIME in which the next reservation expires; infinite without one."""
        return min((record.expires for record in self._reserved()), default=math.inf)

    def _all(self) -> Sequence[NetworkState]:
        return list(self._states.values())

    def overview(self) -> Sequence[NetworkOverview]:
        """Return every network of the host, in use or only configured, and those in use in other namespaces."""
        found: list[NetworkOverview] = []
        self.everywhere(lambda state: found.extend(_networks(state)))
        return found

    # -- repair --------------------------------------------------------------------------------------------------

    def everywhere(self, do: Callable[[NetworkState], object], only: Collection[str] | None = None) -> None:
        """Do something in all namespaces, or in some; one that could not be restored is restored first.

        `only`: their paths. An error of the host's own is raised; that of another one, which may be gone, is logged.
        """
        # A copy: the end of `_entered` removes a namespace without a task.
        for path in [path for path in self._states if only is None or path in only]:
            try:
                with self._entered(path) as state:
                    if not state.is_restored:
                        self._restore(state)
                    if state.is_restored:
                        do(state)
            except Solo5Error as error:
                if not path:
                    raise
                _log.error("network namespace %s: %s", path, error)

    def repair_others(self, changed: Collection[str] | None = None) -> None:
        """Restore bridges, taps and tables of other namespaces: not every change in them has a netlink message.

        `changed`: the paths of those in which something has changed, perhaps by the end of a task; None: all.
        """
        attached = {path for path, state in self._states.items() if path and state.leases.attached()}
        self.everywhere(_restore_all, attached if changed is None else attached.intersection(changed))

    # -- namespaces ----------------------------------------------------------------------------------------------

    @contextmanager
    def _entered(self, path: str) -> Iterator[NetworkState]:
        """Have this thread in a namespace, with its state; close that after the block unless it has a task.

        `path`: empty: the host's own.
        """
        state = self._states.get(path) or self._open(path)
        try:
            with state.within.entered() if state.within else nullcontext():
                yield state
        finally:
            if state.within is not None:
                state.links.rest()
            if state.within is not None and not state.leases.records and path in self._states:
                del self._states[path]
                self._watches.remove(path)
                state.close()

    def _check_path(self, path: str) -> None:
        """Check that a path leads to the namespace of the tasks that have it; raises HostError."""
        state = self._states.get(path)
        if state is not None and state.within is not None and not state.within.is_at_path:
            tasks = ", ".join(sorted(record.reservation.task for record in state.leases.records))
            raise HostError(
                f"network namespace {path} was made again, or removed: expected the one of task {tasks}.",
                f"No path leads to that one any more. End task {tasks} first.",
            )

    def at(self, task: TaskName, do: Callable[[NetworkState], T]) -> T:
        """Do something in the namespace of a task, with its state, and return the result."""
        with self._entered(self._tasks.get(task, "")) as state:
            return do(state)

    def _open(self, path: str) -> NetworkState:
        if len(self._states) > NAMESPACES_MAX:  # with the host's own
            raise HostError(
                f"{NAMESPACES_MAX} network namespaces of other programs have guests: expected no further one.",
                "End the tasks of one, or run this one on another host.",
            )
        namespace = NetworkNamespace(path)
        try:
            with namespace.entered():
                state = self._make_state(path)
                self._watches.add(state)
        except BaseException:  # else the open descriptor would keep the namespace
            namespace.close()
            raise
        state.within = namespace
        self._states[path] = state
        return state


@dataclass(frozen=True, kw_only=True)
class Core:
    """The state of the service, and the means to change it: in the thread `writer`, under the lock of the task."""

    state: Namespaces
    writer: SerialThread
    units: TaskUnits
    watches: Watches
    tasks: asyncio.TaskGroup = field(default_factory=asyncio.TaskGroup)
    locks: KeyedLocks[TaskName] = field(default_factory=KeyedLocks)


async def delete_earlier_flows(core: Core, task: TaskName) -> None:
    """Delete the UDP flows to the ports of a guest that does not run yet; a failure is logged.

    In a thread, under the task's lock: with a table that a flood has filled, each address of the host takes 0.1 s.
    """
    record = core.state.record(task)
    if record is None or all(port.protocol is not Protocol.UDP for port in record.reservation.ports):
        return

    def delete(ports: UdpPorts, within: NetworkNamespace | None) -> None:
        with within.entered() if within else nullcontext():
            delete_udp_flows(ports)

    try:
        await asyncio.to_thread(
            delete, *await core.writer.run(core.state.at, task, lambda state: (state.udp_ports(task), state.within))
        )
    except (OSError, Solo5Error) as error:
        _log.warning("deleting conntrack entries of the ports of task %s failed: %s", task, error)


def _restore_all(state: NetworkState) -> None:
    try:
        state.repairs.repair_tables()
    finally:
        state.repairs.repair_changed(None)  # links can be whole also where nftables refuses the tables


# -- overview ----------------------------------------------------------------------------------------------------------


def _networks(state: NetworkState) -> Sequence[NetworkOverview]:
    """Return every network by name: those in use, and of the host's own namespace the configured ones."""
    settings = () if state.namespace else state.settings().networks
    networks, bridges, attached = state.bridges.networks, state.bridges, state.leases.attached_leases()
    mtu_of = state.choice.default_mtus()
    found = []
    for each in settings:
        if each.name not in networks:
            is_open = each.ipv4 is None and each.join is None and not each.without_ipv4
            free = None if is_open else free_addresses(each, 0)
            own = vars(each) | {"mtu": each.mtu or (0 if each.join else mtu_of(each))}
            found.append(NetworkOverview(**own, up=False, leases=0, free=free))
    resolvers = {each.name: each.resolver for each in settings}
    dropped = state.tables.dropped() if bridges.up else Dropped()
    for name, network in networks.items():
        leases = state.leases.allocations.leases.get(name, 0)
        segments = (segment for segment, of in bridges.segments.items() if of == name)
        taps = (lease.tap for _, lease in attached if lease.network == name)
        found.append(
            NetworkOverview(
                **vars(network) | {"resolver": resolvers.get(name, UNSET)},
                up=name in bridges.up,
                leases=leases,
                free=free_addresses(network, leases),
                dropped=dropped.within(network.ranges, {network.bridge, *segments, *taps}),
                namespace=state.namespace,
            )
        )
    for index, each in enumerate(found):
        if each.join is not None:
            bridge = state.links.link(each.bridge)
            found[index] = replace(each, up=bridge is not None, mtu=bridge.mtu if bridge else 0)
    return sorted(found, key=lambda each: each.name)
