"""PID 1 as the engine sees it: start, stop, signal, freeze, look."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from dbus_next import Variant

from solo5_systemd.bus import checked_call
from solo5_systemd.bus.connection import Connection, RemoteError
from solo5_systemd.bus.jobs import MANAGER, MANAGER_PATH, Jobs
from solo5_systemd.bus.unit_exports import Exports
from solo5_systemd.bus.unit_watch import UNIT, Glance, Watches, unit_path
from solo5_systemd.cgroup.scope_xattrs import ScopeFields
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

QUESTIONS = 25
PAUSE = 0.2
"""So often, and so many seconds apart, PID 1 is asked again while it is not there."""

STOPPING = 10
"""So often it is asked to start what needs something that it is just stopping; at a shutdown it will never."""

_ANY = TaskName("*")

T = TypeVar("T")


class Manager:
    """systemd's Manager over one connection; fulfils `backends.Units`.

    Args:
        connection: the system bus.
        exports: what of many units is read from files; None: this machine's.
        marks: what scopes say of their tasks; None: this machine's.
    """

    def __init__(
        self, connection: Connection, exports: Exports | None = None, marks: ScopeFields | None = None
    ) -> None:
        self._connection = connection
        self._exports = exports or Exports()
        self._marks = marks or ScopeFields()
        self._jobs = Jobs(connection)
        self._watches = Watches(connection, self._jobs, self._glances)
        self._release: tuple[int, int] | None = None

    async def start(self, unit: TransientUnit, files: UnitFiles) -> Invocation:
        fds: list[int] = []
        properties = [_to_wire(await self._kept(p)) for p in unit.properties]
        for name, fd in (("StandardInputFileDescriptor", files.stdin), ("StandardErrorFileDescriptor", files.stderr)):
            if fd is not None:
                properties.append([name, Variant("h", len(fds))])
                fds.append(fd)
        body = [unit.name, "fail", properties, []]
        with _translated():
            result = await self._dispatched(body, fds)
        if result != "done":
            raise JobFailedError(unit.name, result)
        begun = await self._begun(unit.name)
        if unit.marks and begun.control_group:
            self._marks.write(begun.control_group, unit.marks)
        return begun

    async def _kept(self, entry: Property) -> Property:
        """The property as it outlasts a daemon-reload."""
        return for_release(entry, await self.release()) if has_dollars(entry) else entry

    async def _dispatched(self, body: Sequence[Any], fds: Sequence[int]) -> str:
        """How a start ended; tried again while a stop is queued that it would cancel, such as a slice's."""
        return await _again(
            lambda: self._jobs.run("StartTransientUnit", "ssa(sv)a(sa(sv))", body, fds), _DESTRUCTIVE, STOPPING
        )

    async def stop(self, unit: str) -> None:
        # "replace", since a start that is still under way is to be stopped as well.
        with suppress(NoSuchTaskError), _translated():
            await self._jobs.run("StopUnit", "ss", [unit, "replace"])

    async def kill(self, unit: str, number: int, *, everyone: bool) -> None:
        # Of a unit whose process has just ended: what was wanted has happened.
        with suppress(NoSuchTaskError):
            await self._manager("KillUnit", "ssi", [unit, "all" if everyone else "main", number])

    async def reset_failed(self, units: Sequence[str]) -> None:
        await asyncio.gather(*map(self._forget, units))

    async def _forget(self, unit: str) -> None:
        with suppress(NoSuchTaskError):
            await self._manager("ResetFailedUnit", "s", [unit])

    async def ensure_started(self, unit: str) -> None:
        with _translated():
            result = await self._jobs.run("StartUnit", "ss", [unit, "replace"])
        if result != "done":
            raise HostError(f"{unit} did not start: job result {result!r}.", f"See: systemctl status {unit}")

    async def set_properties(self, slice_unit: str, properties: Sequence[Property]) -> None:
        await self.ensure_started(slice_unit)
        until_boot = True
        body = [slice_unit, until_boot, [_to_wire(p) for p in properties]]
        await self._manager("SetUnitProperties", "sba(sv)", body)

    async def freeze(self, unit: str) -> None:
        await self._manager("FreezeUnit", "s", [unit])

    async def thaw(self, unit: str) -> None:
        await self._manager("ThawUnit", "s", [unit])

    async def version(self) -> str:
        return await self._about("Version")

    async def release(self) -> int:
        """Return the number of systemd's release, once read for each connection: it only grows while a host runs."""
        if self._release is None or self._release[0] != self._connection.generation:
            generation, version = self._connection.generation, await self.version()
            self._release = generation, release_of(version)
        return self._release[1]

    async def is_shutting_down(self) -> bool:
        return await self._about("SystemState") == "stopping"

    async def _about(self, name: str) -> str:
        """A property of PID 1 itself."""
        with _translated():
            reply = await self._question(MANAGER_PATH, PROPERTIES, "Get", "ss", [MANAGER, name])
        return str(reply[0].value)

    async def is_running(self, task: TaskName) -> bool:
        states = (row.state() for row in await self._rows(task))
        return any(state is not None and not state.over for state in states)

    async def state(self, task: TaskName) -> UnitState | None:
        states = await self._read_all(await self._rows(task))
        return states[0] if states else None

    async def states(self, *, ended: bool = True) -> Sequence[UnitState]:
        rows = [row for row in await self._listing() if ended or not row.over]
        exported = await asyncio.to_thread(self._exported, rows)
        found = await asyncio.gather(*(self._timed(row, exported.get(row.unit)) for row in rows))
        return [state for state in found if state is not None]

    async def names(self, *, ended: bool = True) -> Sequence[TaskName]:
        states = (row.state() for row in await self._listing())
        return [state.task for state in states if state is not None and (ended or not state.over)]

    async def companion_units(self) -> tuple[frozenset[TaskName], frozenset[TaskName]]:
        (rows,) = await self._asked("ListUnitsByPatterns", "asas", [[], [network_service(_ANY), outcome_target(_ANY)]])
        standing = [row.unit for row in map(_Row._make, rows) if row.active not in ("inactive", "failed")]
        return _instances(network_service(_ANY), standing), _instances(outcome_target(_ANY), standing)

    async def running_states(self) -> Sequence[UnitState]:
        rows = [row for row in await self._listing() if not row.over]
        exported = await asyncio.to_thread(self._exported, rows)
        told = [self._told(row, exported[row.unit]) for row in rows if row.unit in exported]
        asked = await self._read_all(row for row in rows if row.unit not in exported)
        return [*filter(None, told), *asked]

    def changes(self, state: UnitState, *, seen: bool = False) -> AsyncGenerator[UnitState, None]:
        return self._watches.changes(state.unit, lambda: self._look_again(state), state if seen else None)

    async def _look_again(self, before: UnitState) -> UnitState | None:
        """The state anew; of a unit that lives no more is asked than whether it is the same run, and how far it is."""
        rows = await self._rows(before.task)
        now = rows[0].state() if rows else None
        if now is None or now.over:
            states = await self._read_all(rows)
            return states[0] if states else None
        properties = await self._properties(rows[0].path, [(UNIT, "InvocationID")])
        return replace(before, active=now.active, sub=now.sub, invocation=invocation_id(properties))

    async def _begun(self, unit: str) -> Invocation:
        kind = UnitKind(unit.rpartition(".")[2])
        wanted = [(UNIT, name) for name in UNIT_START_PROPERTIES]
        wanted += [(INTERFACES[kind], name) for name in TYPE_START_PROPERTIES[kind]]
        return invocation(await self._properties(unit_path(unit), wanted))

    async def _rows(self, task: TaskName) -> list["_Row"]:
        (rows,) = await self._asked("ListUnitsByNames", "as", [[task_service(task), task_scope(task)]])
        return [row for row in map(_Row._make, rows) if row.load == "loaded"]

    async def _listing(self) -> list["_Row"]:
        patterns = [f"{TASK_PREFIX}*.service", f"{TASK_PREFIX}*.scope"]
        (rows,) = await self._asked("ListUnitsByPatterns", "asas", [[], patterns])
        return [row for row in map(_Row._make, rows) if row.load == "loaded"]

    async def _glances(self) -> Mapping[str, Glance]:
        states = (row.state() for row in await self._listing())
        return {state.unit: (state.active, state.sub) for state in states if state is not None}

    def _exported(self, rows: Sequence["_Row"]) -> Mapping[str, Mapping[str, object]]:
        """The properties of the units that run, where files tell all but the time of the start."""
        control_groups = self._exports.control_groups()
        found: dict[str, Mapping[str, object]] = {}
        for row in rows:
            if not row.over and row.unit in control_groups:
                properties = self._exports.properties(row.unit, control_groups[row.unit])
                if {name for _, name in row.wanted()} - {STARTED, "LoadState"} <= properties.keys():
                    found[row.unit] = properties
        return found

    async def _timed(self, row: "_Row", exported: Mapping[str, object] | None) -> UnitState | None:
        """A unit with the time of its start, which is in no file."""
        if exported is None:
            return await self._read(row)
        if row.kind is UnitKind.SCOPE:
            return self._told(row, exported)
        started = await self._get(row.path, INTERFACES[row.kind], STARTED)
        return self._told(row, {**exported, STARTED: started}) if started else await self._read(row)

    async def _read_all(self, rows: Iterable["_Row"]) -> list[UnitState]:
        states = await asyncio.gather(*map(self._read, rows))
        return [state for state in states if state is not None]

    async def _read(self, row: "_Row") -> UnitState | None:
        """The properties that we use, one by one: GetAll would have PID 1 read every file of the cgroup as well.

        PID 1 answers in order, so whatever the listing says is over has its ending among the properties, and the
        last one says whether all of them were still those of this unit.
        """
        properties = await self._properties(row.path, row.wanted())
        if properties.pop("LoadState", None) != "loaded":
            return None  # unloaded meanwhile: systemd describes any name that it is asked for
        return self._told(row, properties)

    def _told(self, row: "_Row", properties: Mapping[str, object]) -> UnitState | None:
        """What was found out of a unit; of a scope, what it says of its task is not systemd's to tell."""
        state = unit_state(row.unit, {**properties, **row.properties()})
        if state is None or row.kind is not UnitKind.SCOPE or not state.control_group:
            return state
        return replace(state, log_fields=self._marks.read(state.control_group))

    async def _properties(self, path: str, wanted: Sequence[tuple[str, str]]) -> dict[str, object]:
        """Those of the wanted (interface, name) that there are."""
        values = await asyncio.gather(*(self._get(path, interface, name) for interface, name in wanted))
        return {name: value for (_, name), value in zip(wanted, values, strict=True) if value is not None}

    async def _get(self, path: str, interface: str, name: str) -> object:
        try:
            reply = await self._question(path, PROPERTIES, "Get", "ss", [interface, name])
        except RemoteError as error:
            if error.name.rpartition(".")[2] in _ABSENT:
                return None  # unloaded meanwhile, or a property that this systemd does not have yet
            raise HostError(f"systemd returned the D-Bus error {error.name}: {error.text}") from error
        return reply[0].value

    async def _asked(self, member: str, signature: str, body: Sequence[Any]) -> list[Any]:
        with _translated():
            return await self._question(MANAGER_PATH, MANAGER, member, signature, body)

    async def _question(self, path: str, interface: str, member: str, signature: str, body: Sequence[Any]) -> list[Any]:
        """What changes nothing and can be asked again: while PID 1 executes itself anew, it is off the bus."""
        return await _again(
            lambda: checked_call.call(self._connection, path, interface, member, signature, body), _AWAY, QUESTIONS
        )

    async def _manager(self, member: str, signature: str, body: Sequence[Any]) -> list[Any]:
        with _translated():
            return await checked_call.call(self._connection, MANAGER_PATH, MANAGER, member, signature, body)


class _Row(NamedTuple):
    """A unit as ListUnits has it: org.freedesktop.systemd1(5), the structure `ssssssouso`."""

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
        return UnitKind(self.unit.rpartition(".")[2])

    @property
    def over(self) -> bool:
        state = self.state()
        return state is None or state.over

    def wanted(self) -> list[tuple[str, str]]:
        """Interface and name of each property to read, LoadState last."""
        of_type = TYPE_PROPERTIES[self.kind] + (TYPE_END_PROPERTIES[self.kind] if self.over else ())
        of_unit = UNIT_PROPERTIES + (UNIT_END_PROPERTIES if self.over else ())
        return [(INTERFACES[self.kind], name) for name in of_type] + [(UNIT, name) for name in (*of_unit, "LoadState")]

    def state(self) -> UnitState | None:
        """As much as a listing tells."""
        return unit_state(self.unit, self.properties())

    def properties(self) -> Mapping[str, object]:
        return {
            "ActiveState": self.active,
            "SubState": self.sub,
            "Description": self.description,
            "JobType": self.job_type,
        }


def _instances(pattern: str, units: Iterable[str]) -> frozenset[TaskName]:
    """What stands in the place of a pattern's `*`."""
    start, _, end = pattern.partition(_ANY)
    found = (unit.removeprefix(start).removesuffix(end) for unit in units if unit.startswith(start))
    return frozenset(map(TaskName, found))


def _to_wire(item: Property) -> list[Any]:
    return [item.name, Variant(item.signature, _plain(item.value))]


def _plain(value: object) -> object:
    """Tuples are D-Bus structs, which dbus-next wants as lists."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


_AWAY = frozenset(
    f"org.freedesktop.DBus.Error.{word}"
    for word in ("NoReply", "NameHasNoOwner", "ServiceUnknown", "Disconnected", "Spawn.ChildExited", "Spawn.Failed")
)
"""What the bus answers in the place of a peer that left it, or that it tries to start in vain."""

_DESTRUCTIVE = frozenset({"org.freedesktop.systemd1.TransactionIsDestructive"})
"""What systemd answers to a start that would cancel a stop."""

_ABSENT = ("NoSuchUnit", "UnknownInterface", "UnknownMethod", "UnknownObject", "UnknownProperty")
"""The errors, by their last word, that say of a property that it is not there. Any other says nothing of the unit."""

_OURS: Mapping[str, type[Solo5Error]] = {
    "NoSuchUnit": NoSuchTaskError,
    "NoSuchProcess": NoSuchTaskError,
    "UnitExists": TakenError,
    "InvalidArgs": InvalidRequestError,
    "PropertyReadOnly": InvalidRequestError,
    "BadUnitSetting": InvalidRequestError,
}
"""systemd's error names, by their last word (org.freedesktop.systemd1 and org.freedesktop.DBus.Error)."""


async def _again(call: Callable[[], Awaitable[T]], passing: Collection[str], times: int) -> T:
    """What a call returns; it is made again, so many times, where it fails with an error that will pass.

    Raises:
        RemoteError: another one, or the last.
    """
    for _ in range(times):
        try:
            return await call()
        except RemoteError as error:
            if error.name not in passing:
                raise
        await asyncio.sleep(PAUSE)
    return await call()


@contextmanager
def _translated() -> Iterator[None]:
    """What systemd answers, in our words."""
    try:
        yield
    except RemoteError as error:
        ours = _OURS.get(error.name.rpartition(".")[2])
        if ours is not None:
            raise ours(f"systemd refuses: {error.text.rstrip('.')}.") from error
        raise HostError(f"systemd returned the D-Bus error {error.name}: {error.text}") from error
