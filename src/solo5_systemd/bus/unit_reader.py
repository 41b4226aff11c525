"""The states of tasks' units, read from PID 1."""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from solo5_systemd.base.declared_units import declared_service, declared_tasks, units_of
from solo5_systemd.base.errors import HostError
from solo5_systemd.base.event_loop import off_the_loop
from solo5_systemd.base.names import TaskName, UnitKind, unit_path
from solo5_systemd.bus.peers import (
    CALL_RETRIES,
    INTERFACES,
    MANAGER,
    MANAGER_PATH,
    PEER_LOST,
    PROPERTIES,
    RETRY_INTERVAL_S,
    SYSTEMD,
    TASK_PATTERNS,
    UNIT,
    Call,
    ListedUnit,
    RemoteError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from solo5_systemd.bus.blocking import BlockingBus
    from solo5_systemd.bus.unit_states import UnitStates
    from solo5_systemd.unit.state import UnitState

_ABSENT = ("NoSuchUnit", "UnknownInterface", "UnknownMethod", "UnknownObject", "UnknownProperty")


class UnitReader(ABC):
    """The units of tasks, read from PID 1.

    It awaits `_call_all` only where no event loop runs. The modules of a unit's state are imported once there is a
    unit: they are half of the imports of `solo5ctl ps`.
    """

    @abstractmethod
    async def _call_all(self, calls: Sequence[Call]) -> Sequence[Any]:
        """Call methods of PID 1 that only read, in this order, and again while it is off the bus.

        Returns:
            the value of each reply, or a `RemoteError`.
        """

    @cached_property
    def _states(self) -> "UnitStates":
        from solo5_systemd.bus.unit_states import UnitStates

        return UnitStates()

    async def is_shutting_down(self) -> bool:
        """Return whether SystemState is `stopping`."""
        return await self._manager_property("SystemState") == "stopping"

    async def _manager_property(self, name: str) -> str:
        return str((await self._properties(MANAGER_PATH, [(MANAGER, name)])).get(name))

    async def was_refused(self, unit: str) -> bool:
        """Return whether the last start of a service failed an assertion, or before its main process, by D-Bus.

        Its outcome is of the run before then.
        """
        from solo5_systemd.unit.state import ActiveState

        names = ["AssertResult", "AssertTimestampMonotonic", "ActiveState", "InactiveExitTimestampMonotonic"]
        end = "ExecMainExitTimestampMonotonic"
        found = await self._read_unit(unit, names, [end])
        refuted = bool(found.get("AssertTimestampMonotonic")) and not found.get("AssertResult")
        # Where a run ends, its main process does after the start has left `inactive`.
        begun, ended = found.get("InactiveExitTimestampMonotonic"), found.get(end)
        failed = found.get("ActiveState") == ActiveState.FAILED
        return refuted or (failed and isinstance(begun, int) and isinstance(ended, int) and begun > ended)

    async def names(self, *, ended: bool = True) -> Sequence[TaskName]:
        """Return the names of tasks with a loaded unit; without `ended`, of those that are not over."""
        return [task for row in await self._listing() if (ended or not row.over) and (task := row.task) is not None]

    async def state(self, task: TaskName) -> "UnitState | None":
        """Return the state of a task's service or scope; None if neither is loaded."""
        states = await self._read_all(await self._rows(task))
        return states[0] if states else None

    async def states(self, *, ended: bool = True) -> "Sequence[UnitState]":
        """Return the states of all tasks' units; without `ended`, of those that are not over."""
        rows = [row for row in await self._listing() if ended or not row.over]
        if not rows:
            return ()
        from solo5_systemd.bus.unit_states import STARTED

        exported = await off_the_loop(lambda: self._states.exported(rows))
        services = [row for row in rows if row.unit in exported and row.kind is not UnitKind.SCOPE]  # a scope has none
        unknown = [row for row in services if STARTED not in exported[row.unit]]
        times = await self._read([(row.path, INTERFACES[row.kind], STARTED) for row in unknown])
        for row, started in zip(unknown, times, strict=True):
            if started:
                exported[row.unit][STARTED] = started
            else:
                del exported[row.unit]  # the unit has ended meanwhile
        from_files = (self._states.state(row, exported[row.unit]) for row in rows if row.unit in exported)
        from_bus = await self._read_all([row for row in rows if row.unit not in exported])
        return [*filter(None, from_files), *from_bus]

    async def _listing(self) -> list[ListedUnit]:
        declared = [declared_service(task) for task in declared_tasks()]
        return await self._list("ListUnitsByPatterns", (), [*TASK_PATTERNS, *declared])

    async def _rows(self, task: TaskName) -> list[ListedUnit]:
        # One after the other: PID 1 looks for the files of a unit that is not loaded, and reports its removal.
        own, *other = units_of(task)
        rows = await self._list("ListUnitsByNames", (own,))
        if rows and not (other[1:] and rows[0].over):  # else one that was there before its name was declared
            return rows
        for unit in other:
            if found := await self._list("ListUnitsByNames", (unit,)):
                return found
        return rows

    async def _list(self, member: str, *body: Sequence[str]) -> list[ListedUnit]:
        """Return the loaded units of tasks of a listing."""
        return [row for row in await self._list_all(member, *body) if row.load == "loaded" and row.task is not None]

    async def _list_all(self, member: str, *body: Sequence[str]) -> list[ListedUnit]:
        [reply] = await self._call_all([Call(MANAGER_PATH, MANAGER, member, body)])
        return list(map(ListedUnit._make, _value(reply)))

    async def _read_all(self, rows: Sequence[ListedUnit]) -> "list[UnitState]":
        """Read the properties of units one by one: for GetAll, PID 1 reads every file of the cgroup.

        PID 1 replies in order: a unit that is over in the listing has its exit status among the properties, and
        LoadState, read last, shows whether the unit was loaded during all of the reads.
        """
        if not rows:
            return []
        from solo5_systemd.bus.unit_states import wanted

        properties_of = [(row, wanted(row.kind, over=row.over)) for row in rows]
        values = iter(await self._read([(row.path, *each) for row, names in properties_of for each in names]))
        states = []
        for row, names in properties_of:
            found = {name: value for _, name in names if (value := next(values)) is not None}
            if found.get("LoadState") == "loaded":  # PID 1 has properties for any unit name
                states.append(self._states.state(row, found))
        return [state for state in states if state is not None]

    async def _read_unit(
        self, unit: str, of_unit: Sequence[str], of_type: Sequence[str] = (), kind: UnitKind = UnitKind.SERVICE
    ) -> dict[str, object]:
        """Return the properties of a unit that exist, by name. PID 1 reads those of its type first, and in order."""
        names = [(INTERFACES[kind], name) for name in of_type] + [(UNIT, name) for name in of_unit]
        return await self._properties(unit_path(unit), names)

    async def _properties(self, path: str, names: Sequence[tuple[str, str]]) -> dict[str, object]:
        """Return the properties (interface, name) that exist, by name."""
        values = await self._read([(path, *each) for each in names])
        return {name: value for (_, name), value in zip(names, values, strict=True) if value is not None}

    async def _read(self, wanted: Sequence[tuple[str, str, str]]) -> list[Any]:
        """Return the values of properties (path, interface, name).

        None for one that does not exist: its unit was unloaded meanwhile, or it is of a later systemd.
        """
        replies = await self._call_all([Call(path, PROPERTIES, "Get", names) for path, *names in wanted])
        return [
            None if isinstance(each, RemoteError) and each.name.rpartition(".")[2] in _ABSENT else _value(each)
            for each in replies
        ]


class BlockingReader(UnitReader):
    """The units of tasks, read without an event loop."""

    def __init__(self, bus: "Callable[[], BlockingBus]") -> None:
        self._bus = bus

    async def _call_all(self, calls: Sequence[Call]) -> Sequence[Any]:
        return [self._call(call) for call in calls]

    def _call(self, call: Call) -> Any:
        remaining = CALL_RETRIES
        while True:
            try:
                return self._bus().call(SYSTEMD, call)
            except RemoteError as error:
                if error.name not in PEER_LOST or not remaining:
                    return error
            remaining -= 1
            time.sleep(RETRY_INTERVAL_S)  # nothing else runs meanwhile


def _value(reply: Any) -> Any:
    if isinstance(reply, RemoteError):
        raise HostError(f"systemd returned the D-Bus error {reply.name}: {reply.text}") from reply
    return reply
