"""The client of PID 1: org.freedesktop.systemd1.Manager, for the units of tasks."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from solo5_systemd.bus import checked_call
from solo5_systemd.bus.connection import Connection, RemoteError
from solo5_systemd.bus.jobs import MANAGER, MANAGER_PATH, Jobs
from solo5_systemd.bus.unit_exports import ExportedState
from solo5_systemd.bus.unit_watch import UNIT, ListedState, UnitWatch, WatchedUnit, unit_path
from solo5_systemd.cgroup.scope_xattrs import ScopeFields
from solo5_systemd.concurrency.gather import gather
from solo5_systemd.concurrency.retry import retry
from solo5_systemd.dbus_api.messages import Variant
from solo5_systemd.errors import HostError, InvalidRequestError, NoSuchTaskError, Solo5Error, TakenError
from solo5_systemd.names import TASK_PREFIX, TaskName, network_service, outcome_target, task_scope, task_service
from solo5_systemd.unit.exec_start import for_release, has_dollars, release_of
from solo5_systemd.unit.properties import JobFailedError, Property, TransientUnit, UnitFiles
from solo5_systemd.unit.state import (
    TYPE_END_PROPERTIES,
    TYPE_PROPERTIES,
    TYPE_START_PROPERTIES,
    UNIT_END_PROPERTIES,
    UNIT_PROPERTIES,
    UNIT_START_PROPERTIES,
    Invocation,
    UnitState,
    invocation,
    invocation_id,
    unit_state,
)
from solo5_systemd.workload import UnitKind

INTERFACES = {
    UnitKind.SERVICE: "org.freedesktop.systemd1.Service",
    UnitKind.SCOPE: "org.freedesktop.systemd1.Scope",
}

PROPERTIES = "org.freedesktop.DBus.Properties"
STARTED = "ExecMainStartTimestamp"

READ_RETRIES = 25
RETRY_INTERVAL_S = 0.2
"""Number and interval of retries of a read while PID 1 is off the bus."""

START_RETRIES = 10
"""Number of retries of a start while a dependency of the unit is being stopped. Bounded: at a shutdown it stays so."""

_ANY = TaskName("*")

T = TypeVar("T")


class Manager:
    """systemd's Manager over one connection; implements `backends.Units`.

    Args:
        connection: to the system bus.
        exports: properties of units in files; None: those of this host.
        marks: fields of scopes; None: those of this host.
    """

    def __init__(
        self, connection: Connection, exports: ExportedState | None = None, marks: ScopeFields | None = None
    ) -> None:
        self._connection = connection
        self._exports = exports or ExportedState()
        self._marks = marks or ScopeFields()
        self._jobs = Jobs(connection)
        self._watch = UnitWatch(connection, self._jobs, self._list_states)
        self._release: tuple[int, int] | None = None

    async def start(self, unit: TransientUnit, files: UnitFiles) -> Invocation:
        """Call StartTransientUnit, wait for the job, and return the new run."""
        fds: list[int] = []
        properties = [_to_wire(await self._for_this_release(p)) for p in unit.properties]
        for name, fd in (("StandardInputFileDescriptor", files.stdin), ("StandardErrorFileDescriptor", files.stderr)):
            if fd is not None:
                properties.append([name, Variant("h", len(fds))])
                fds.append(fd)
        # "fail" never cancels a job that is queued for a dependency, such as a stop of the slice.
        body = [unit.name, "fail", properties, []]
        with _translated():
            result = await self._start_job(body, fds)
        if result != "done":
            raise JobFailedError(unit.name, result)
        begun = await self._new_run(unit.name)
        # Only now, since the start job creates the cgroup.
        if unit.marks and begun.control_group:
            self._marks.write(begun.control_group, unit.marks)
        return begun

    async def _for_this_release(self, entry: Property) -> Property:
        """Return the form of a property that survives a daemon-reload of this systemd."""
        return for_release(entry, await self.release()) if has_dollars(entry) else entry

    async def _start_job(self, body: Sequence[Any], fds: Sequence[int]) -> str:
        """Return the job result of a start; retry while it would cancel a queued stop job, such as a slice's."""
        return await retry(
            lambda: self._jobs.run("StartTransientUnit", "ssa(sv)a(sa(sv))", body, fds),
            RemoteError,
            interval_s=RETRY_INTERVAL_S,
            attempts=1 + START_RETRIES,
            transient=lambda error: error.name in _DESTRUCTIVE,
        )

    async def stop(self, unit: str) -> None:
        """Stop a unit, and wait for the job."""
        # "replace" cancels a start job that is still queued.
        with suppress(NoSuchTaskError), _translated():
            await self._jobs.run("StopUnit", "ss", [unit, "replace"])

    async def kill(self, unit: str, number: int, *, everyone: bool) -> None:
        """Send a signal; without effect if the processes have ended."""
        with suppress(NoSuchTaskError):
            await self._manager_call("KillUnit", "ssi", [unit, "all" if everyone else "main", number])

    async def reset_failed(self, units: Sequence[str]) -> None:
        """Reset the failed state of units."""
        await gather(map(self._reset_failed, units))

    async def _reset_failed(self, unit: str) -> None:
        with suppress(NoSuchTaskError):
            await self._manager_call("ResetFailedUnit", "s", [unit])

    async def ensure_started(self, unit: str) -> None:
        """Start an installed unit unless it is active, and wait for the job."""
        with _translated():
            result = await self._jobs.run("StartUnit", "ss", [unit, "replace"])
        if result != "done":
            raise HostError(f"{unit} did not start: job result {result!r}.", f"See: systemctl status {unit}")

    async def set_properties(self, slice_unit: str, properties: Sequence[Property]) -> None:
        """Start a slice unless it is active, and set runtime properties of it."""
        await self.ensure_started(slice_unit)
        until_boot = True
        body = [slice_unit, until_boot, [_to_wire(p) for p in properties]]
        await self._manager_call("SetUnitProperties", "sba(sv)", body)

    async def freeze(self, unit: str) -> None:
        """Freeze the unit's cgroup."""
        await self._manager_call("FreezeUnit", "s", [unit])

    async def thaw(self, unit: str) -> None:
        """Thaw the unit's cgroup."""
        await self._manager_call("ThawUnit", "s", [unit])

    async def version(self) -> str:
        """Return systemd's version."""
        return await self._manager_property("Version")

    async def release(self) -> int:
        """Return systemd's release, read once per connection; an upgrade of systemd can only raise it."""
        if self._release is None or self._release[0] != self._connection.generation:
            generation, version = self._connection.generation, await self.version()
            self._release = generation, release_of(version)
        return self._release[1]

    async def is_shutting_down(self) -> bool:
        """Return whether SystemState is `stopping`."""
        return await self._manager_property("SystemState") == "stopping"

    async def _manager_property(self, name: str) -> str:
        """Return a property of the Manager."""
        with _translated():
            reply = await self._read_only_call(MANAGER_PATH, PROPERTIES, "Get", "ss", [MANAGER, name])
        return str(reply[0].value)

    async def is_taken(self, task: TaskName) -> bool:
        """Return whether the task has a loaded unit."""
        return bool(await self._named([task_service(task), task_scope(task)]))

    async def is_running(self, task: TaskName) -> bool:
        """Return whether the task has a unit that is not over."""
        states = (row.state() for row in await self._rows(task))
        return any(state is not None and not state.over for state in states)

    async def state(self, task: TaskName) -> UnitState | None:
        """Return the state of a task's service or scope; None if neither is loaded."""
        states = await self._read_all(await self._rows(task))
        return states[0] if states else None

    async def states(self, *, ended: bool = True) -> Sequence[UnitState]:
        """Return the states of all tasks' units; without `ended`, of those that are not over."""
        rows = [row for row in await self._listing() if ended or not row.over]
        exported = await asyncio.to_thread(self._exported, rows)
        found = await gather(self._with_start_time(row, exported.get(row.unit)) for row in rows)
        return [state for state in found if state is not None]

    async def names(self, *, ended: bool = True) -> Sequence[TaskName]:
        """Return the names of tasks with a loaded unit; without `ended`, of those that are not over."""
        states = (row.state() for row in await self._listing())
        return [state.task for state in states if state is not None and (ended or not state.over)]

    async def companion_units(self) -> tuple[frozenset[TaskName], frozenset[TaskName]]:
        """Return the tasks with an active network unit, and those with an active outcome target."""
        (rows,) = await self._list_call(
            "ListUnitsByPatterns", "asas", [[], [network_service(_ANY), outcome_target(_ANY)]]
        )
        # Activating and deactivating units count: their task may be starting or stopping.
        active = [row.unit for row in map(_ListedUnit._make, rows) if row.active not in ("inactive", "failed")]
        return _instances(network_service(_ANY), active), _instances(outcome_target(_ANY), active)

    async def running_states(self) -> Sequence[UnitState]:
        """Return the states of units that are not over, without `started`."""
        rows = [row for row in await self._listing() if not row.over]
        exported = await asyncio.to_thread(self._exported, rows)
        from_files = [self._unit_state(row, exported[row.unit]) for row in rows if row.unit in exported]
        from_bus = await self._read_all(row for row in rows if row.unit not in exported)
        return [*filter(None, from_files), *from_bus]

    def watched(self, state: UnitState, *, seen: bool = False) -> AbstractAsyncContextManager[WatchedUnit]:
        """Subscribe to a unit for a block; see `backends.Units`."""
        return self._watch.subscribed(state.unit, lambda: self._refreshed(state), state if seen else None)

    async def _refreshed(self, before: UnitState) -> UnitState | None:
        """Read a state again: of a running unit only invocation, active state and sub-state."""
        rows = await self._named([before.unit])
        now = rows[0].state() if rows else None
        if now is None or now.over:
            states = await self._read_all(rows)
            return states[0] if states else None
        # A unit that was restarted between two reads shows it by its invocation only.
        properties = await self._properties(rows[0].path, [(UNIT, "InvocationID")])
        return replace(before, active=now.active, sub=now.sub, invocation=invocation_id(properties))

    async def _new_run(self, unit: str) -> Invocation:
        kind = UnitKind(unit.rpartition(".")[2])
        wanted = [(UNIT, name) for name in UNIT_START_PROPERTIES]
        wanted += [(INTERFACES[kind], name) for name in TYPE_START_PROPERTIES[kind]]
        return invocation(await self._properties(unit_path(unit), wanted))

    async def _rows(self, task: TaskName) -> list["_ListedUnit"]:
        # One after the other: PID 1 looks for the files of a unit that is not loaded, and reports its removal.
        return await self._named([task_service(task)]) or await self._named([task_scope(task)])

    async def _named(self, units: Sequence[str]) -> list["_ListedUnit"]:
        (rows,) = await self._list_call("ListUnitsByNames", "as", [list(units)])
        return [row for row in map(_ListedUnit._make, rows) if row.load == "loaded"]

    async def _listing(self) -> list["_ListedUnit"]:
        patterns = [f"{TASK_PREFIX}*.service", f"{TASK_PREFIX}*.scope"]
        (rows,) = await self._list_call("ListUnitsByPatterns", "asas", [[], patterns])
        return [row for row in map(_ListedUnit._make, rows) if row.load == "loaded"]

    async def _list_states(self) -> Mapping[str, ListedState]:
        states = (row.state() for row in await self._listing())
        return {state.unit: (state.active, state.sub) for state in states if state is not None}

    def _exported(self, rows: Sequence["_ListedUnit"]) -> Mapping[str, Mapping[str, object]]:
        """Return the properties of running units, by unit, if files contain all but the start time."""
        control_groups = self._exports.control_groups()
        found: dict[str, Mapping[str, object]] = {}
        for row in rows:
            if not row.over and row.unit in control_groups:
                properties = self._exports.properties(row.unit, control_groups[row.unit])
                if {name for _, name in row.wanted()} - {STARTED, "LoadState"} <= properties.keys():
                    found[row.unit] = properties
        return found

    async def _with_start_time(self, row: "_ListedUnit", exported: Mapping[str, object] | None) -> UnitState | None:
        """Return the state of a unit, with the start time from D-Bus: no file has it."""
        if exported is None:
            return await self._read(row)
        if row.kind is UnitKind.SCOPE:
            return self._unit_state(row, exported)  # a scope has no start time
        started = await self._get(row.path, INTERFACES[row.kind], STARTED)
        return self._unit_state(row, {**exported, STARTED: started}) if started else await self._read(row)

    async def _read_all(self, rows: Iterable["_ListedUnit"]) -> list[UnitState]:
        states = await gather(map(self._read, rows))
        return [state for state in states if state is not None]

    async def _read(self, row: "_ListedUnit") -> UnitState | None:
        """Read the properties of a unit one by one: for GetAll, PID 1 reads every file of the cgroup.

        PID 1 replies in order: a unit that is over in the listing has its exit status among the properties, and
        LoadState, read last, shows whether the unit was loaded during all of the reads.
        """
        properties = await self._properties(row.path, row.wanted())
        if properties.pop("LoadState", None) != "loaded":
            return None  # unloaded meanwhile: PID 1 has properties for any unit name
        return self._unit_state(row, properties)

    def _unit_state(self, row: "_ListedUnit", properties: Mapping[str, object]) -> UnitState | None:
        """Return the state of a unit from its properties, and of a scope from its extended attribute."""
        state = unit_state(row.unit, {**properties, **row.properties()})
        if state is None or row.kind is not UnitKind.SCOPE or not state.control_group:
            return state
        return replace(state, log_fields=self._marks.read(state.control_group))

    async def _properties(self, path: str, wanted: Sequence[tuple[str, str]]) -> dict[str, object]:
        """Return the properties (interface, name) that exist, by name."""
        values = await gather(self._get(path, interface, name) for interface, name in wanted)
        return {name: value for (_, name), value in zip(wanted, values, strict=True) if value is not None}

    async def _get(self, path: str, interface: str, name: str) -> object:
        try:
            reply = await self._read_only_call(path, PROPERTIES, "Get", "ss", [interface, name])
        except RemoteError as error:
            if error.name.rpartition(".")[2] in _ABSENT:
                return None  # unloaded meanwhile, or a property of a later systemd
            raise HostError(f"systemd returned the D-Bus error {error.name}: {error.text}") from error
        return reply[0].value

    async def _list_call(self, member: str, signature: str, body: Sequence[Any]) -> list[Any]:
        with _translated():
            return await self._read_only_call(MANAGER_PATH, MANAGER, member, signature, body)

    async def _read_only_call(
        self, path: str, interface: str, member: str, signature: str, body: Sequence[Any]
    ) -> list[Any]:
        """Call a method that only reads; retry while PID 1 is off the bus during its re-execution."""
        return await retry(
            lambda: checked_call.call(self._connection, path, interface, member, signature, body),
            RemoteError,
            interval_s=RETRY_INTERVAL_S,
            attempts=1 + READ_RETRIES,
            transient=lambda error: error.name in _PEER_LOST,
        )

    async def _manager_call(self, member: str, signature: str, body: Sequence[Any]) -> list[Any]:
        with _translated():
            return await checked_call.call(self._connection, MANAGER_PATH, MANAGER, member, signature, body)


class _ListedUnit(NamedTuple):
    """A unit in the reply of ListUnits: org.freedesktop.systemd1(5), the structure `ssssssouso`."""

    unit: str
    description: str
    load: str
    active: str
    sub: str
    following: str
    path: str
    job: int
    job_type: str
    job_path: str

    @property
    def kind(self) -> UnitKind:
        """Return the type of the unit."""
        return UnitKind(self.unit.rpartition(".")[2])

    @property
    def over(self) -> bool:
        """Return whether the unit is over, or not a task's."""
        state = self.state()
        return state is None or state.over

    def wanted(self) -> list[tuple[str, str]]:
        """Return interface and name of each property to read, LoadState last."""
        of_type = TYPE_PROPERTIES[self.kind] + (TYPE_END_PROPERTIES[self.kind] if self.over else ())
        of_unit = UNIT_PROPERTIES + (UNIT_END_PROPERTIES if self.over else ())
        return [(INTERFACES[self.kind], name) for name in of_type] + [(UNIT, name) for name in (*of_unit, "LoadState")]

    def state(self) -> UnitState | None:
        """Return the state as far as it is in the listing; None if it is not a task's unit."""
        return unit_state(self.unit, self.properties())

    def properties(self) -> Mapping[str, object]:
        """Return the D-Bus properties that are in the listing."""
        return {
            "ActiveState": self.active,
            "SubState": self.sub,
            "Description": self.description,
            "JobType": self.job_type,
        }


def _instances(pattern: str, units: Iterable[str]) -> frozenset[TaskName]:
    """Return the tasks in the place of the pattern's `*`."""
    start, _, end = pattern.partition(_ANY)
    found = (unit.removeprefix(start).removesuffix(end) for unit in units if unit.startswith(start))
    return frozenset(map(TaskName, found))


def _to_wire(item: Property) -> list[Any]:
    return [item.name, Variant(item.signature, _plain(item.value))]


def _plain(value: object) -> object:
    """Return a value with lists for tuples: the D-Bus libraries marshal structs from lists."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


_PEER_LOST = frozenset(
    f"org.freedesktop.DBus.Error.{word}"
    for word in ("NoReply", "NameHasNoOwner", "ServiceUnknown", "Disconnected", "Spawn.ChildExited", "Spawn.Failed")
)
"""The bus's errors if a peer has left, or its activation failed."""

_DESTRUCTIVE = frozenset({"org.freedesktop.systemd1.TransactionIsDestructive"})
"""systemd's error if a start would cancel a stop job."""

_ABSENT = ("NoSuchUnit", "UnknownInterface", "UnknownMethod", "UnknownObject", "UnknownProperty")
"""Last words of the errors that mean that a property does not exist."""

_ERROR_CLASSES: Mapping[str, type[Solo5Error]] = {
    "NoSuchUnit": NoSuchTaskError,
    "NoSuchProcess": NoSuchTaskError,
    "UnitExists": TakenError,
    "InvalidArgs": InvalidRequestError,
    "PropertyReadOnly": InvalidRequestError,
    "BadUnitSetting": InvalidRequestError,
}
"""Last words of systemd's errors (org.freedesktop.systemd1, org.freedesktop.DBus.Error), with the class of each."""


@contextmanager
def _translated() -> Iterator[None]:
    """Translate D-Bus errors to those of `errors`."""
    try:
        yield
    except RemoteError as error:
        error_class = _ERROR_CLASSES.get(error.name.rpartition(".")[2])
        if error_class is not None:
            raise error_class(f"systemd refuses: {error.text.rstrip('.')}.") from error
        raise HostError(f"systemd returned the D-Bus error {error.name}: {error.text}") from error
