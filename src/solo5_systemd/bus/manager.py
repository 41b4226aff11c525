"""The client of PID 1: org.freedesktop.systemd1.Manager, for the units of tasks."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from solo5_systemd.base.concurrency import gather, retry
from solo5_systemd.base.declared_units import declared_service
from solo5_systemd.base.errors import HostError, InvalidRequestError, NoSuchTaskError, Solo5Error, TakenError
from solo5_systemd.base.inotify import Removals
from solo5_systemd.base.names import (
    DECLARED_OUTCOME,
    OUTCOME,
    TaskName,
    UnitKind,
    is_instance,
    journald_of,
    task_scope,
    task_service,
    unit_path,
)
from solo5_systemd.bus.connection import Connection
from solo5_systemd.bus.jobs import Jobs
from solo5_systemd.bus.peers import (
    MANAGER,
    MANAGER_PATH,
    RETRY_INTERVAL_S,
    Call,
    JobAssertError,
    JobCanceledError,
    JobConflictError,
    JobFailedError,
    RemoteError,
)
from solo5_systemd.bus.unit_reader import UnitReader
from solo5_systemd.bus.unit_states import wanted
from solo5_systemd.bus.unit_watch import changed
from solo5_systemd.cgroup.hierarchy import control_group
from solo5_systemd.dbus.messages import Variant
from solo5_systemd.task.properties import Property, TransientUnit, release_of
from solo5_systemd.task.property_types import INFINITY
from solo5_systemd.unit.state import (
    TYPE_END_PROPERTIES,
    UNIT_END_PROPERTIES,
    ActiveState,
    MainCode,
    UnitState,
    after_run,
    unit_state,
)

START_RETRIES = 10
"""Number of retries of a start while a dependency of the unit is being stopped. Bounded: at a shutdown it stays so."""

OUTCOME_PATTERNS = (f"{OUTCOME}@*.target", f"{DECLARED_OUTCOME}@*.target")


_RESTARTED_WITH = ("RequiredBy", "RequisiteOf", "BoundBy", "ConsistsOf", "PropagatesStopTo")
"""Properties with the units to which PID 1 propagates a restart (systemd.unit(5), "Mapping of unit properties")."""

_OWN = ("solo5-", "solo5.")


class Manager(UnitReader):
    """systemd's Manager over one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._jobs = Jobs(connection)
        self._removals = Removals()
        self._release: int | None = None

    async def start(self, unit: TransientUnit, stdin: int | None = None, stderr: int | None = None) -> UnitState:
        """Call StartTransientUnit, wait for the job, and return the new run, with what of it is read at once.

        Args:
            stdin: its file descriptor; the caller closes its own copies after the start.
            stderr: the same.

        Raises:
            TakenError: a unit of this name is loaded.
            JobFailedError: the job's result is not `done`.
        """
        fds: list[int] = []
        properties = [_to_wire(each) for each in unit.properties]
        for name, fd in (("StandardInputFileDescriptor", stdin), ("StandardErrorFileDescriptor", stderr)):
            if fd is not None:
                properties.append([name, Variant("h", len(fds))])
                fds.append(fd)
        # "fail" never cancels a job that is queued for a dependency, such as a stop of the slice.
        body = [unit.name, "fail", properties, []]
        with _translated():
            result = await retry(  # while it would cancel a queued stop job, such as a slice's
                lambda: self._jobs.run("StartTransientUnit", "ssa(sv)a(sa(sv))", body, fds),
                RemoteError,
                interval_s=RETRY_INTERVAL_S,
                attempts=1 + START_RETRIES,
                transient=lambda error: error.name == _DESTRUCTIVE,
            )
        if result != "done":
            raise JobFailedError(unit.name, result)
        begun = await self._new_run(unit)
        self._states.record_start(begun, unit.marks)  # only now, since the start job creates the cgroup
        return begun

    async def stop(self, unit: str) -> None:
        """Stop a unit, and wait for the job. Without effect if the unit is not loaded."""
        # "replace" cancels a start job that is still queued.
        with suppress(NoSuchTaskError), _translated():
            await self._jobs.run("StopUnit", "ss", [unit, "replace"])

    async def kill(self, unit: str, number: int, *, everyone: bool) -> None:
        """Send a signal; without effect if the processes have ended."""
        with suppress(NoSuchTaskError):
            await self._manager_call("KillUnit", "ssi", [unit, "all" if everyone else "main", number])

    async def reset_failed(self, units: Sequence[str]) -> None:
        """Reset the failed state of units, so that systemd can unload them."""

        async def reset(unit: str) -> None:
            with suppress(NoSuchTaskError):
                await self._manager_call("ResetFailedUnit", "s", [unit])

        await gather(map(reset, units))

    async def ensure_started(self, unit: str) -> None:
        """Start an installed unit unless it is active, and wait for the job."""
        with _translated():
            _check_started(unit, await self._jobs.run("StartUnit", "ss", [unit, "replace"]))

    async def start_journald(self, namespace: str) -> None:
        """Start the journald of a namespace: streams are opened before LogNamespace= would start it."""
        if namespace:
            await self.ensure_started(journald_of(namespace))

    async def begin(self, unit: str) -> None:
        """Start an installed unit, without waiting for the job."""
        await self._manager_call("StartUnit", "ss", [unit, "replace"])

    async def restart(self, unit: str, *, running: bool = False) -> None:
        """Stop and start a unit, and wait for the job.

        Args:
            running: leave it alone if it is inactive or failed when PID 1 handles the call.

        Raises:
            JobCanceledError: another job took the place of this one: a stop.
            JobConflictError: it would cancel another one, of the unit or of one that it needs.
            HostError: it did not start.
        """
        # "fail" never cancels a stop job.
        with _translated():
            try:
                result = await self._jobs.run("TryRestartUnit" if running else "RestartUnit", "ss", [unit, "fail"])
                _check_started(unit, result)
            except RemoteError as error:
                if error.name != _DESTRUCTIVE:
                    raise
                raise JobConflictError(f"{unit} is not started again: {error.text.rstrip('.')}.") from error

    async def dependents(self, unit: str) -> Sequence[str]:
        """Return the active units of others that PID 1 stops and starts with a unit, such as by Requires=, in order."""
        found = await self._read_unit(unit, _RESTARTED_WITH)
        named = sorted({str(name) for names in found.values() if isinstance(names, list) for name in names})
        rows = await self._list_all("ListUnitsByNames", named) if named else []
        return [row.unit for row in rows if row.active not in ("inactive", "failed") and not row.unit.startswith(_OWN)]

    async def reload(self) -> None:
        """Have PID 1 read all unit files again (`systemctl daemon-reload`)."""
        await self._manager_call("Reload", "", [])

    async def set_properties(self, slice_unit: str, properties: Sequence[Property]) -> None:
        """Start a slice unless it is active, and set runtime properties of it (until the next boot)."""
        await self.ensure_started(slice_unit)
        await self._manager_call("SetUnitProperties", "sba(sv)", [slice_unit, True, [_to_wire(p) for p in properties]])

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
        """Return systemd's release, which is read once; an upgrade of systemd can only raise it."""
        if self._release is None:
            self._release = release_of(await self.version())
        return self._release

    async def is_taken(self, task: TaskName) -> bool:
        """Return whether the task has a loaded unit; not of a declared task's, since PID 1 has that alone."""
        if is_instance(task):  # systemd has no instances of scopes
            return False
        return bool(await self._list("ListUnitsByNames", (task_service(task), task_scope(task))))

    async def is_running(self, task: TaskName) -> bool:
        """Return whether the task has a unit that is not over, with one D-Bus call."""
        return any(not row.over for row in await self._rows(task))

    async def outcome_targets(self) -> frozenset[TaskName]:
        """Return the tasks with an active outcome target."""
        rows = await self._list_all("ListUnitsByPatterns", (), OUTCOME_PATTERNS)
        # Activating and deactivating units count: their task may be starting or stopping.
        active = [row.unit for row in rows if row.active not in ("inactive", "failed")]
        return frozenset(TaskName(unit.partition("@")[2].removesuffix(".target")) for unit in active)

    async def changed(self, run: UnitState, timeout_s: float | None = None) -> UnitState | None:
        """Return a run once it may be over, or as it was after `timeout_s`; without a D-Bus call until then.

        An outage of PID 1 or the bus is not an end: the run is returned as it was.

        Args:
            run: as it was last read.

        Returns:
            None: its unit is not loaded, or has another run.
        """
        return await changed(run, self._states, self._removals, self._after_run, timeout_s)

    async def current(self, state: UnitState) -> UnitState | None:
        """Return the state of a run now, or of its unit if it is over; without a D-Bus call while the run goes on."""
        if not state.over and state.control_group and self._states.has_run(state):
            frozen = self._states.frozen(state.control_group)
            if frozen is not None:
                return state._replace(frozen=frozen)
        return await self.state(state.task)

    async def active_state(self, unit: str) -> ActiveState:
        """Return ActiveState= of a unit, with one D-Bus call."""
        return ActiveState(str((await self._read_unit(unit, ["ActiveState"])).get("ActiveState")))

    async def ended_run(self, task: TaskName) -> UnitState | None:
        """Return the last run of a declared task's service; None if it has not run, or runs."""
        unit = declared_service(task)
        of_service = (*TYPE_END_PROPERTIES[UnitKind.SERVICE], "LogExtraFields", "Restart")
        of_unit = ("ActiveState", "SubState", *UNIT_END_PROPERTIES, "InvocationID", "Job", "OnFailure")
        found = await self._read_unit(unit, of_unit, of_service)
        state = unit_state(unit, found, task)
        # Since systemd 254 it is not over between an end and the start that follows.
        restarts = str(found.get("SubState")).startswith("auto-restart")
        if state is None or state.main_code == MainCode.NONE or not (state.over or restarts):
            return None
        job = found.get("Job")
        queued = restarts or (isinstance(job, list) and bool(job[0]))
        return state._replace(restart=str(found.get("Restart")), queued=queued, on_failure=bool(found.get("OnFailure")))

    async def reload_time_left(self, unit: str) -> float | None:
        """Return in how many seconds PID 1 ends the reload of a service; None: never, or it is not being reloaded."""
        found = await self._read_unit(unit, ["ActiveState", "StateChangeTimestampMonotonic"], ["TimeoutStartUSec"])
        begun, limit = found.get("StateChangeTimestampMonotonic"), found.get("TimeoutStartUSec")
        if found.get("ActiveState") != "reloading" or not isinstance(begun, int) or not isinstance(limit, int):
            return None
        return None if limit == INFINITY else (begun + limit) / 10**6 - time.monotonic()

    async def _after_run(self, run: UnitState) -> UnitState | None:
        """Read the end of a run. PID 1 replies in order: if InvocationID=, the last one, is the run's, all are."""
        of_unit = ("ActiveState", *UNIT_END_PROPERTIES, "InvocationID")
        return after_run(run, await self._read_unit(run.unit, of_unit, TYPE_END_PROPERTIES[run.kind], run.kind))

    async def _new_run(self, unit: TransientUnit) -> UnitState:
        """Read what a new run has, beside what it was started with, from files as far as these have it."""
        kind = UnitKind(unit.name.rpartition(".")[2])
        found: dict[str, object] = {"LoadState": "loaded", "ActiveState": ActiveState.ACTIVE, "FreezerState": "running"}
        found["LogExtraFields"] = unit.value("LogExtraFields") or ()
        if (slice_unit := unit.value("Slice")) is not None:
            found |= self._states.properties(unit.name, control_group(str(slice_unit), unit.name))
        missing = [each for each in wanted(kind, over=False) if each[1] not in found]
        begun = unit_state(unit.name, found | await self._properties(unit_path(unit.name), missing))
        assert begun is not None  # noqa: S101 - the unit of a task
        return begun._replace(log_fields=unit.marks) if unit.marks else begun

    async def _call_all(self, calls: Sequence[Call]) -> Sequence[Any]:
        if len(calls) == 1:  # without a task of its own, which takes a tenth of the time of a call
            return [await self._reply(calls[0])]
        return await gather(map(self._reply, calls))

    async def _reply(self, call: Call) -> Any:
        names = call.path, call.interface, call.member, call.signature
        try:
            [value] = await self._connection.call_systemd(*names, _plain(call.body))
        except RemoteError as error:
            return error
        return value.value if isinstance(value, Variant) else value

    async def _manager_call(self, member: str, signature: str, body: Sequence[Any]) -> None:
        with _translated():
            await self._connection.call_systemd(MANAGER_PATH, MANAGER, member, signature, body)


def _check_started(unit: str, result: str) -> None:
    if result == "canceled":
        raise JobCanceledError(f"{unit} was stopped before it was started.")
    if result == "assert":
        sentence = f"{unit} did not start: its preparation has failed, or was being stopped."
        raise JobAssertError(sentence, f"See: systemctl status {unit}")
    if result != "done":
        raise HostError(f"{unit} did not start: job result {result!r}.", f"See: systemctl status {unit}")


def _to_wire(item: Property) -> list[Any]:
    return [item.name, Variant(item.signature, _plain(item.value))]


def _plain(value: object) -> Any:
    """Return a value with lists for tuples: the D-Bus libraries marshal structs from lists."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


_DESTRUCTIVE = "org.freedesktop.systemd1.TransactionIsDestructive"
"""systemd's error if a start would cancel a stop job."""

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
    try:
        yield
    except RemoteError as error:
        error_class = _ERROR_CLASSES.get(error.name.rpartition(".")[2])
        if error_class is not None:
            raise error_class(f"systemd refuses: {error.text.rstrip('.')}.") from error
        raise HostError(f"systemd returned the D-Bus error {error.name}: {error.text}") from error
