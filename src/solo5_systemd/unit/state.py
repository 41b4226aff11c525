"""What PID 1 says of a task's unit, read once into a value.

Property names are those of org.freedesktop.systemd1(5). systemd may know states that we do not: an unknown word
becomes `ActiveState.UNKNOWN`, never an exception.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from solo5_systemd.errors import InvalidRequestError
from solo5_systemd.names import TaskName, task_of_unit, task_scope
from solo5_systemd.unit.log_fields import LOG_NAMESPACE, log_fields
from solo5_systemd.workload import UnitKind


class ActiveState(StrEnum):
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
    """How the main process ended: the CLD_* codes of sigaction(2), as ExecMainCode has them."""

    NONE = 0
    EXITED = 1
    KILLED = 2
    DUMPED = 3


EXEC_FAILURES = range(200, 246)
"""What PID 1 reports where it could not execute the tender (systemd.exec(5), "Process exit codes"). A guest may exit
with the same; its unit, of Type=exec, was active then."""

UNIT_PROPERTIES = ("InvocationID", "FreezerState")
TYPE_PROPERTIES = {
    UnitKind.SERVICE: ("MainPID", "ExecMainStartTimestamp", "ControlGroup", "LogExtraFields"),
    UnitKind.SCOPE: ("ControlGroup",),
}
"""What is read of every unit, besides what a listing gives for nothing: states, description, type of a pending job."""

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
"""What is read of a unit that is over; of those that run it would double what a listing costs."""


UNIT_START_PROPERTIES = ("InvocationID",)
TYPE_START_PROPERTIES = {
    UnitKind.SERVICE: ("MainPID", "ExecMainStartTimestamp", "ControlGroup"),
    UnitKind.SCOPE: ("ControlGroup",),
}
"""What is read of a unit that has just been started."""


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """One run of a unit that has just begun: what its starter needs, at the price of few questions.

    Attributes:
        invocation: systemd's InvocationID, in hexadecimal digits.
        main_pid: of the tender; zero where it has ended already.
        started: microseconds since the epoch.
        control_group: below the root of the hierarchy; empty where it is gone already.
    """

    invocation: str
    main_pid: int
    started: int
    control_group: str


@dataclass(frozen=True, kw_only=True)
class UnitState:
    """One task's unit.

    Times are microseconds, zero for "never"; `started` and `ended` since the epoch, the others on the monotonic clock.
    `memory_peak` and `memory_max` are bytes, None where systemd does not say (of a unit that is over: before 256), or
    where there is no limit.
    """

    task: TaskName
    unit: str
    active: ActiveState
    sub: str = ""
    invocation: str = ""
    frozen: bool = False
    description: str = ""
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
    log_fields: Mapping[str, str]

    @property
    def kind(self) -> UnitKind:
        return UnitKind(self.unit.rpartition(".")[2])

    @property
    def over(self) -> bool:
        """Nothing of it runs any more."""
        return self.active in OVER

    @property
    def tender(self) -> str:
        """`hvt` or `spt`; empty for a scope that is over, of which nothing is kept."""
        return self.log_fields.get("SOLO5_TENDER", "")

    @property
    def log_namespace(self) -> str:
        """The journal namespace of its console; empty: the host's journal."""
        return self.log_fields.get(LOG_NAMESPACE, "")

    @property
    def executed(self) -> bool:
        """Its tender was executed, however early it ended; a process that only prepared for that is not the tender."""
        failed = self.main_code == MainCode.EXITED and self.main_status in EXEC_FAILURES
        was_active = self.active_exit and self.active_exit >= self.main_start  # before, it was an earlier run's end
        return self.main_code != MainCode.NONE and not (failed and not was_active)

    @property
    def asked_to_stop(self) -> bool:
        """Its stop was requested (by us, by systemctl, by a shutdown) before its main process ended.

        A unit leaves `active` when a stop job begins, or when its main process has ended: which came first is
        on record in PID 1, and nobody else has to remember it.
        """
        return 0 < self.active_exit < self.main_exit


def unit_state(unit: str, properties: Mapping[str, object]) -> UnitState | None:
    """Read D-Bus properties; those that a kind of unit lacks are absent. None: not a task's unit.

    A unit that waits for its network is inactive, with a start job: that is a beginning, not an end.
    """
    task = task_of_unit(unit)
    if task is None:
        return None
    active = ActiveState(_text(properties, "ActiveState"))
    if active in OVER and _text(properties, "JobType") in ("start", "restart"):
        active = ActiveState.ACTIVATING
    assignments = properties.get("LogExtraFields")
    return UnitState(
        task=task,
        unit=unit,
        active=active,
        sub=_text(properties, "SubState"),
        invocation=invocation_id(properties),
        frozen=_text(properties, "FreezerState") in ("frozen", "freezing"),
        description=_text(properties, "Description"),
        result=_text(properties, "Result") or "success",
        main_pid=_integer(properties, "MainPID"),
        main_code=_integer(properties, "ExecMainCode"),
        main_status=_integer(properties, "ExecMainStatus"),
        started=_integer(properties, "ExecMainStartTimestamp"),
        ended=_integer(properties, "ExecMainExitTimestamp"),
        main_start=_integer(properties, "ExecMainStartTimestampMonotonic"),
        main_exit=_integer(properties, "ExecMainExitTimestampMonotonic"),
        active_exit=_integer(properties, "ActiveExitTimestampMonotonic"),
        memory_peak=_amount(properties, "MemoryPeak"),
        memory_max=_amount(properties, "MemoryMax"),
        control_group=_text(properties, "ControlGroup"),
        log_fields=log_fields(assignments) if isinstance(assignments, list) else {},
    )


def invocation(properties: Mapping[str, object]) -> Invocation:
    """Read the D-Bus properties of a unit that has just been started."""
    return Invocation(
        invocation=invocation_id(properties),
        main_pid=_integer(properties, "MainPID"),
        started=_integer(properties, "ExecMainStartTimestamp"),
        control_group=_text(properties, "ControlGroup"),
    )


def invocation_id(properties: Mapping[str, object]) -> str:
    """In hexadecimal digits, as systemd prints it; empty where there is none."""
    return _bytes(properties, "InvocationID").hex()


def _text(properties: Mapping[str, object], key: str) -> str:
    value = properties.get(key)
    return value if isinstance(value, str) else ""


def _integer(properties: Mapping[str, object], key: str) -> int:
    value = properties.get(key)
    return value if isinstance(value, int) else 0


def _amount(properties: Mapping[str, object], key: str) -> int | None:
    """Of what systemd does not know, and of what is not limited, it says the largest number there is."""
    value = properties.get(key)
    return value if isinstance(value, int) and value < 1 << 63 else None


def _bytes(properties: Mapping[str, object], key: str) -> bytes:
    value = properties.get(key)
    return bytes(value) if isinstance(value, bytes | bytearray | list) else b""


def known_run(unit: str, invocation: str, pid: int) -> UnitState:
    """As much of a task's unit as its starter remembers: enough to watch it by.

    Raises:
        InvalidRequestError: it is no task's unit.
    """
    task = task_of_unit(unit)
    if task is None:
        raise InvalidRequestError(f"{unit!r} is no task's unit: expected solo5-task-NAME.service or .scope.")
    return UnitState(
        task=task, unit=unit, active=ActiveState.ACTIVE, invocation=invocation, main_pid=pid, log_fields={}
    )


def child_state(name: TaskName, since: int, status: int, *, asked: bool, found: UnitState | None) -> UnitState:
    """A scope that is over, completed by what its tender's parent knows: systemd has no main process there.

    Args:
        name: the task's.
        since: microseconds since the epoch, when the tender started.
        status: as `subprocess` has it, negative for a signal.
        asked: somebody requested the stop before.
        found: the scope, None where systemd has unloaded it.
    """
    return UnitState(
        task=name,
        unit=task_scope(name),
        active=ActiveState.INACTIVE,
        result=found.result if found else "success",
        main_code=MainCode.EXITED if status >= 0 else MainCode.KILLED,
        main_status=abs(status),
        started=since,
        active_exit=1 if asked else 2,
        main_exit=2 if asked else 1,
        log_fields=found.log_fields if found else {},
    )
