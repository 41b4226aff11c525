"""The state of a task's unit, read from D-Bus properties into a value.

Property names are those of org.freedesktop.systemd1(5). An ActiveState= that this package does not have becomes
`ActiveState.UNKNOWN`, never an exception.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from solo5_systemd.base.names import TaskName, UnitKind, kind_of_unit, task_of_unit, task_scope, task_service
from solo5_systemd.task.log_fields import LOG_NAMESPACE, TENDER, log_fields


class ActiveState(StrEnum):
    """ActiveState= of a unit."""

    ACTIVE = "active"
    RELOADING = "reloading"
    INACTIVE = "inactive"
    FAILED = "failed"
    ACTIVATING = "activating"
    DEACTIVATING = "deactivating"
    MAINTENANCE = "maintenance"
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, _value: object) -> "ActiveState":
        return cls.UNKNOWN


OVER = (ActiveState.INACTIVE, ActiveState.FAILED)


class MainCode:
    """ExecMainCode=: how the main process ended, as a CLD_* code of sigaction(2)."""

    NONE = 0
    EXITED = 1
    KILLED = 2
    DUMPED = 3


EXEC_FAILURES = range(200, 246)
"""Exit statuses of a service that PID 1 could not execute (systemd.exec(5), "Process exit codes"). A guest may exit
with the same statuses; its unit, of Type=exec, was active before."""

UNIT_PROPERTIES = ("InvocationID", "FreezerState")
TYPE_PROPERTIES = {
    UnitKind.SERVICE: ("MainPID", "ExecMainStartTimestamp", "ControlGroup", "LogExtraFields"),
    UnitKind.SCOPE: ("ControlGroup",),
}
"""Properties to read of every unit. ListUnits already returns its state and pending job type."""

UNIT_END_PROPERTIES = ("ActiveExitTimestampMonotonic",)
TYPE_END_PROPERTIES = {
    UnitKind.SERVICE: (
        "Result",
        "ExecMainCode",
        "ExecMainStatus",
        "ExecMainStartTimestampMonotonic",
        "ExecMainExitTimestamp",
        "ExecMainExitTimestampMonotonic",
        "MemoryPeak",
        "MemoryMax",
    ),
    UnitKind.SCOPE: ("Result",),
}
"""Properties to read of a unit that is over only: for running units they would double the cost of a listing."""


class UnitState(NamedTuple):  # as a dataclass, `ps` of 500 tasks takes 3 ms longer
    """The state of one task's unit.

    Times are in microseconds, 0 for "never": `started` and `ended` since the epoch, `main_start`, `main_exit` and
    `active_exit` on CLOCK_MONOTONIC. `memory_peak` and `memory_max` are bytes; None without a limit, or without a value
    from systemd (before 256: of every unit that is over). The last three are of `Manager.ended_run`: Restart=, whether
    a start is queued, and whether there is OnFailure=, which systemd follows when it gives up.
    """

    task: TaskName
    unit: str
    active: ActiveState
    log_fields: Mapping[str, str]
    invocation: str = ""
    frozen: bool = False
    result: str = "success"
    main_pid: int = 0
    main_code: int = MainCode.NONE
    main_status: int = 0
    started: int = 0
    ended: int = 0
    main_start: int = 0
    main_exit: int = 0
    active_exit: int = 0
    memory_peak: int | None = None
    memory_max: int | None = None
    control_group: str = ""
    restart: str = "no"
    queued: bool = False
    on_failure: bool = False

    @property
    def kind(self) -> UnitKind:
        """Return the type of the unit, from its name."""
        return kind_of_unit(self.unit)

    @property
    def over(self) -> bool:
        """Return whether the unit is inactive or failed: no process of it runs."""
        return self.active in OVER

    @property
    def is_untried(self) -> bool:
        """Return whether the service of a declared task has had no process since PID 1 has loaded it."""
        if not self.over or self.result != "success" or self.started:
            return False
        return self.kind is UnitKind.SERVICE and self.unit != task_service(self.task)

    @property
    def tender(self) -> str:
        """Return `hvt` or `spt`; empty for a scope that is over, since its fields are removed with its cgroup."""
        return self.log_fields.get(TENDER, "")

    @property
    def log_namespace(self) -> str:
        """Return the journal namespace of the console; empty: the host's journal."""
        return self.log_fields.get(LOG_NAMESPACE, "")

    @property
    def executed(self) -> bool:
        """Return whether the tender was executed. A process that failed before execve(2) is not the tender."""
        failed = self.main_code == MainCode.EXITED and self.main_status in EXEC_FAILURES
        was_active = self.active_exit and self.active_exit >= self.main_start  # earlier: of the previous run
        return self.main_code != MainCode.NONE and not (failed and not was_active)

    @property
    def stop_requested(self) -> bool:
        """Return whether a stop was requested (by solo5ctl, systemctl, a shutdown) before the main process ended.

        A unit leaves `active` when a stop job begins or when its main process ends; PID 1 keeps both timestamps.
        """
        return 0 < self.active_exit < self.main_exit


_AS_THEY_ARE = {
    "Result": "result",
    "MainPID": "main_pid",
    "ExecMainCode": "main_code",
    "ExecMainStatus": "main_status",
    "ExecMainStartTimestamp": "started",
    "ExecMainExitTimestamp": "ended",
    "ExecMainStartTimestampMonotonic": "main_start",
    "ExecMainExitTimestampMonotonic": "main_exit",
    "ActiveExitTimestampMonotonic": "active_exit",
    "ControlGroup": "control_group",
}
"""The field of `UnitState` for each property whose value is that of the field."""


def unit_state(unit: str, properties: Mapping[str, Any], task: TaskName | None = None) -> UnitState | None:
    """Return the state of a unit from its D-Bus properties, or None if it is not a task's unit.

    Properties that the unit's type lacks are absent. An inactive unit with a start job waits for its network: its state
    is ACTIVATING.

    Args:
        properties: LogExtraFields also as the fields by name, since a list would parse them twice.
        task: a declared task, whose name is not in that of its unit in a way of its own; None: derived from the name.
    """
    task = task or task_of_unit(unit)
    if task is None:
        return None
    active, fields = ActiveState(properties.get("ActiveState", "")), properties.get("LogExtraFields", ())
    if active in OVER and properties.get("JobType") in ("start", "restart"):
        active = ActiveState.ACTIVATING
    return UnitState(
        task=task,
        unit=unit,
        active=active,
        invocation=bytes(properties.get("InvocationID", b"")).hex(),  # as systemd prints it
        frozen=properties.get("FreezerState") in ("frozen", "freezing"),
        memory_peak=_amount(properties.get("MemoryPeak")),
        memory_max=_amount(properties.get("MemoryMax")),
        log_fields=fields if isinstance(fields, dict) else log_fields(fields),
        **{_AS_THEY_ARE[name]: value for name, value in properties.items() if value and name in _AS_THEY_ARE},
    )


def after_run(run: UnitState, properties: Mapping[str, Any]) -> UnitState | None:
    """Return the state of a known run from properties of its unit; None if that has another run or none."""
    now = unit_state(run.unit, properties, run.task)
    if now is None or not run.invocation or now.invocation != run.invocation:
        return None
    if now.active is ActiveState.ACTIVATING and now.main_exit:  # it has ended, and Restart= will start another one
        now = now._replace(active=ActiveState.INACTIVE if now.result == "success" else ActiveState.FAILED)
    if not now.over:
        return run._replace(active=now.active)
    return now._replace(started=run.started, log_fields=run.log_fields)


def _amount(found: int | None) -> int | None:
    """Return a number of bytes, or None: systemd uses UINT64_MAX for "unknown" and "unlimited"."""
    return found if found is not None and found < 1 << 63 else None


def child_state(name: TaskName, since: int, status: int, *, stop_requested: bool, found: UnitState | None) -> UnitState:
    """Return the state of a scope that is over, with the exit status that the tender's parent has reaped.

    Args:
        found: the scope, which has no main process for systemd; None if that has unloaded it.
    """
    return UnitState(
        task=name,
        unit=task_scope(name),
        active=ActiveState.INACTIVE,
        result=found.result if found else "success",
        main_code=MainCode.EXITED if status >= 0 else MainCode.KILLED,
        main_status=abs(status),
        started=since,
        active_exit=1 if stop_requested else 2,  # only their order counts: see `UnitState.stop_requested`
        main_exit=2 if stop_requested else 1,
        log_fields=found.log_fields if found else {},
    )
