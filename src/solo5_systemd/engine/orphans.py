"""Orphans: resources that belong to no task, with the reason. Pure; derived from what was read of the host.

A task of `solo5ctl` is not an orphan: `solo5ctl rm` removes it. Nor is a task of Nomad while its allocation directory
exists, since its agent may recover it.
"""

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from solo5_systemd.base.names import TaskName
from solo5_systemd.network.model import LeaseRecord, LeaseState
from solo5_systemd.unit.state import UnitState

RECORD_MAX_AGE_S = 300.0
"""Age of a relay's record without a task from which on it is an orphan: a start and a drain take less."""


class Kind(StrEnum):
    """The kind of an orphan; its value is the first word of the line that `solo5ctl gc` prints."""

    TASK = "task"
    OUTCOME = "outcome of task"
    LEASE = "network lease of task"
    STRAY = "network leftover"
    CONSOLE = "console of task"
    USER = "user of task"


class Orphan(NamedTuple):
    """An orphan; its subject is a task's name, or the description of a STRAY, such as `tap s5-x`."""

    kind: Kind
    subject: str
    reason: str

    def __str__(self) -> str:
        return f"{self.kind} {self.subject}: {self.reason}"


_OVERDUE: Mapping[LeaseState, str] = {
    LeaseState.RESERVED: "its reservation has expired",
    LeaseState.ATTACHED: "its unit is not running",
}
"""Of other leases, solo5-networkd is releasing one, or its first packet will start the task."""


def alloc_dir(unit: UnitState) -> str:
    """Return the allocation directory of a Nomad task; empty for other tasks."""
    shared = unit.log_fields.get("NOMAD_ALLOC_DIR", "")  # <alloc_dir of the agent>/<allocation ID>/alloc
    return posixpath.dirname(shared)


def orphans(
    *,
    units: Sequence[UnitState] = (),
    outcomes: frozenset[TaskName] = frozenset(),
    expired: Sequence[LeaseRecord] = (),
    strays: Sequence[str] = (),
    consoles: Mapping[TaskName, float] = MappingProxyType({}),
    missing_directories: frozenset[str] = frozenset(),
    users: frozenset[TaskName] = frozenset(),
) -> Iterator[Orphan]:
    """Yield all orphans.

    Args:
        outcomes: tasks with an active outcome target.
        expired: leases and reservations that are older than a start may take.
        strays: taps and firewall elements without a lease, as lines.
        consoles: tasks with a record of the relay, each with the seconds since its last change.
        users: tasks that have a user and no start in progress.
    """
    loaded = frozenset(unit.task for unit in units)
    for unit in units:
        directory = alloc_dir(unit)
        # Nomad removes the directory with the allocation; only then the task cannot be recovered any more.
        if directory and directory in missing_directories:
            yield Orphan(Kind.TASK, unit.task, f"Nomad has removed its allocation ({directory})")
    for task in sorted(outcomes - loaded):
        yield Orphan(Kind.OUTCOME, task, "its unit is not loaded")
    running = {unit.task for unit in units if not unit.over}
    for record in expired:  # solo5-networkd releases the lease of a running one at its end
        if record.reservation.task not in running and (reason := _OVERDUE.get(record.state)):
            yield Orphan(Kind.LEASE, record.reservation.task, reason)
    for stray in strays:
        yield Orphan(Kind.STRAY, stray, "no matching lease")
    for task, silence in sorted(consoles.items()):
        if silence > RECORD_MAX_AGE_S and task not in loaded:
            yield Orphan(Kind.CONSOLE, task, "its unit is not loaded, and its FIFOs are not read")
    for task in sorted(users - loaded):
        yield Orphan(Kind.USER, task, "its unit is not loaded")
