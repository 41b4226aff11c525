"""The driver's state in a task handle, which proves that a unit is the one that the driver started.

Nomad stores it once, in its client's database, and passes it to RecoverTask after a crash. It has no arguments and no
environment, which may hold secrets.
"""

import json
from dataclasses import dataclass
from typing import Annotated

from solo5_systemd.base.decode import Fields, json_document
from solo5_systemd.base.errors import InvalidRequestError, NoSuchTaskError
from solo5_systemd.base.names import TaskName
from solo5_systemd.nomad.option_values import Logging
from solo5_systemd.nomad.task_options import ReadinessProbe
from solo5_systemd.settings.records import document, integer, record
from solo5_systemd.settings.solo5_toml import LOG_NAMESPACE
from solo5_systemd.unit.state import ActiveState, UnitState

VERSION = 1
"""Raised by a release whose states this one cannot read; `decode` reads those of all releases before."""


@dataclass(frozen=True, kw_only=True)
class DriverState:
    """The driver's part of a task handle.

    Attributes:
        boot: the kernel's boot ID; a unit does not outlive its boot.
        started: microseconds since the epoch.
        control_group: empty, as `pid` is 0, of a unit that has ended at once.
    """

    ready: ReadinessProbe | None = None
    log_namespace: LOG_NAMESPACE = ""
    task: TaskName
    unit: str
    invocation: str
    boot: str
    started: Annotated[int, integer(0, 1 << 62)]
    logging: Logging
    control_group: str = ""
    pid: int = 0

    @property
    def run(self) -> UnitState:
        """Return the state of the unit as it was started."""
        return UnitState(
            task=self.task,
            unit=self.unit,
            active=ActiveState.ACTIVE,
            invocation=self.invocation,
            main_pid=self.pid,
            started=self.started,
            control_group=self.control_group,
            log_fields={},
        )


def encode(state: DriverState) -> bytes:
    """Return the state as JSON, with its version."""
    return json.dumps({"version": VERSION, **document(state)}, separators=(",", ":")).encode()


def decode(data: bytes) -> DriverState:
    """Parse the result of `encode`.

    Raises:
        InvalidRequestError: it is damaged, or of a later version.
    """
    fields = Fields(json_document(data, "the task's stored state"), "driver_state")
    version = fields.integer("version", low=1, high=1 << 31)
    if version > VERSION:
        raise InvalidRequestError(
            f"the task's stored state has version {version}: expected at most {VERSION}.",
            "A later release of the driver started the task: install it again to recover the task, or let Nomad start "
            "the task once more.",
        )
    return record(DriverState, fields)


def verify(stored: DriverState, boot: str, found: UnitState | None) -> UnitState:
    """Return the unit of a handle, running or over, if its invocation is the stored one; the name alone is no proof.

    Args:
        found: the unit that PID 1 has for the name; None: none.

    Raises:
        NoSuchTaskError: it does not exist any more, or is another invocation. Nomad then starts the task again.
    """
    if stored.boot != boot:
        raise NoSuchTaskError(f"task {stored.task} ended with the previous boot of the host.")
    if found is None or found.invocation != stored.invocation:
        raise NoSuchTaskError(
            f"task {stored.task} does not exist: systemd has no unit {stored.unit} of invocation {stored.invocation}."
        )
    return found
