"""D-Bus calls without a D-Bus library: names of PID 1, calls, rows of its list of units, errors of a peer and of jobs.

Completion needs the names of tasks only: so nothing here imports the modules that the state of a unit takes.
"""

from collections.abc import Sequence
from typing import NamedTuple

from solo5_systemd.base.errors import BY_DBUS_NAME, HostError
from solo5_systemd.base.names import TASK_PREFIX, TaskName, UnitKind, declared_task_of_unit, kind_of_unit, task_of_unit

SYSTEMD = "org.freedesktop.systemd1"
MANAGER_PATH = "/org/freedesktop/systemd1"
MANAGER = f"{SYSTEMD}.Manager"
UNIT = f"{SYSTEMD}.Unit"
INTERFACES = {UnitKind.SERVICE: f"{SYSTEMD}.Service", UnitKind.SCOPE: f"{SYSTEMD}.Scope"}
PROPERTIES = "org.freedesktop.DBus.Properties"

TASK_PATTERNS = (f"{TASK_PREFIX}*.service", f"{TASK_PREFIX}*.scope")
"""The units of tasks, as patterns of ListUnitsByPatterns."""

_DENIED = (
    "org.freedesktop.DBus.Error.AccessDenied",
    "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired",
)

PEER_LOST = frozenset(
    f"org.freedesktop.DBus.Error.{word}"
    for word in ("NoReply", "NameHasNoOwner", "ServiceUnknown", "Disconnected", "Spawn.ChildExited", "Spawn.Failed")
)
"""The bus's errors if a peer has left, or its activation failed."""

RETRY_INTERVAL_S = 0.2
"""Seconds between two attempts of a call whose caller waits, while PID 1, a service or the bus is not reachable."""

CALL_RETRIES = 25
"""Retries of a call while PID 1 is off the bus."""

WATCH_INTERVAL_S = 1.0
"""The same of what is watched in the background: a subscription, the end of a unit."""


class Call(NamedTuple):
    """A method call; its arguments are strings (`s`) and lists of strings (`as`)."""

    path: str
    interface: str
    member: str
    body: Sequence[str | Sequence[str]] = ()

    @property
    def signature(self) -> str:
        """Return the D-Bus type string of the arguments."""
        return "".join("s" if isinstance(argument, str) else "as" for argument in self.body)


class RemoteError(Exception):
    """A D-Bus error that has no class in `errors`."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name
        self.text = text


def remote_error(name: str, text: str) -> Exception:
    """Return the exception for a peer's error: one of `errors` where it has a class there, else `RemoteError`."""
    error_class = BY_DBUS_NAME.get(name)
    if error_class is not None:
        sentence, _, hint = text.partition("\n")  # as dbus/service.py joins them
        return error_class(sentence, hint)
    if name in _DENIED:
        return HostError(f"the system bus refuses: {text.rstrip('.')}.", "Run it as root.")
    return RemoteError(name, text)


class JobCanceledError(HostError):
    """Another job of the unit took the place of this one, such as a stop by the operator."""


class JobConflictError(JobCanceledError):
    """A job would cancel another one, such as a stop by the operator; it was not enqueued."""


class JobAssertError(HostError):
    """A unit was not started, since an assertion of it failed: AssertPathExists= of what its preparation makes."""


class JobFailedError(Exception):
    """A job of systemd ended with another result than `done`."""

    def __init__(self, unit: str, result: str) -> None:
        super().__init__(f"{unit}: {result}")
        self.unit = unit
        self.result = result


class ListedUnit(NamedTuple):
    """A unit in the reply of ListUnits: org.freedesktop.systemd1(5), the structure `ssssssouso`.

    The lists are of units of tasks only: by `TASK_PATTERNS`, and by the names of declared tasks.
    """

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
    def task(self) -> TaskName | None:
        """Return the task; None if it is not a task's unit. A service of another name is a declared task's."""
        return task_of_unit(self.unit) or declared_task_of_unit(self.unit)

    @property
    def kind(self) -> UnitKind:
        """Return the type of the unit."""
        return kind_of_unit(self.unit)

    @property
    def over(self) -> bool:
        """Return whether the unit is over, as in `UnitState.over`."""
        return self.active in ("inactive", "failed") and self.job_type not in ("start", "restart")
