"""The driver's state in a task handle, which proves that a unit is the one that the driver started.

Nomad stores it once, in its client's database, and passes it to RecoverTask after a crash. It has no arguments and no
environment, which may hold secrets.
"""

import json
from dataclasses import dataclass, replace

from solo5_systemd.base.decode import Fields, json_document
from solo5_systemd.base.errors import InvalidRequestError, NoSuchTaskError
from solo5_systemd.nomad.option_values import Logging
from solo5_systemd.nomad.task_options import ReadinessProbe
from solo5_systemd.settings.records import document, record
from solo5_systemd.unit.state import ActiveState, UnitState

VERSION = 1
"""Raised by a release whose states this one cannot read; `decode` reads those of all releases before."""


@dataclass(frozen=True, kw_only=True)
class DriverState:
    """The driver's part of a task handle.

    Attributes:
        run: the unit as it was started; of its log fields, only the tender and the console's journal namespace.
        boot: the kernel's boot ID; a unit does not outlive its boot.
    """

    run: UnitState
    boot: str
    logging: Logging
    ready: ReadinessProbe | None = None


def encode(state: DriverState) -> bytes:
    """Return the state as JSON, with its version."""
    return json.dumps({"version": VERSION, **document(state)}, separators=(",", ":")).encode()


def decode(data: bytes) -> DriverState:
    """Parse the result of `encode`; raises InvalidRequestError if it is damaged, or of a later version."""
    fields = Fields(json_document(data, "the task's stored state"), "driver_state")
    version = fields.integer("version", low=1, high=1 << 31)
    if version > VERSION:
        raise InvalidRequestError(
            f"the task's stored state has version {version}: expected at most {VERSION}.",
            "A later release of the driver started the task: install it again to recover the task, or let Nomad start "
            "the task once more.",
        )
    state = record(DriverState, fields)
    return replace(state, run=state.run._replace(active=ActiveState.ACTIVE))


def verify(stored: DriverState, boot: str, found: UnitState | None) -> UnitState:
    """Return what PID 1 has for the name of a handle's unit, running or over, if its invocation is the stored one.

    Raises:
        NoSuchTaskError: it is another one, or there is none. Nomad then starts the task again.
    """
    run = stored.run
    if stored.boot != boot:
        raise NoSuchTaskError(f"task {run.task} ended with the previous boot of the host.")
    if found is None or not run.invocation or found.invocation != run.invocation:
        raise NoSuchTaskError(
            f"task {run.task} does not exist: systemd has no unit {run.unit} of invocation {run.invocation}."
        )
    return found
