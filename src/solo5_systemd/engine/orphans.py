"""Orphans: resources that belong to no task, with the reason. Pure; derived from a snapshot of the host.

A task of `solo5ctl` is not an orphan: `solo5ctl rm` removes it. Nor is a task of Nomad while its allocation directory
exists, since its agent may recover it.
"""

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
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
    """An orphan.

    Attributes:
        subject: a task's name; of a STRAY its description, such as `tap s5-x`.
    """

    kind: Kind
    subject: str
    reason: str

    def __str__(self) -> str:
        return f"{self.kind} {self.subject}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The inputs of `orphans`, read from the host.

    Attributes:
        outcomes: tasks with an active outcome target.
        expired: leases and reservations that are older than a start may take.
        strays: taps and firewall elements without a lease, as lines.
        consoles: tasks with a record of the relay, each with the seconds since its last change.
        missing_directories: allocation directories that do not exist.
        users: tasks that have a user and no start in progress.
    """

    units: Sequence[UnitState]
    outcomes: frozenset[TaskName]
    expired: Sequence[LeaseRecord]
    strays: Sequence[str]
    consoles: Mapping[TaskName, float]
    missing_directories: frozenset[str]
    users: frozenset[TaskName] = frozenset()


def alloc_dir(unit: UnitState) -> str:
    """Return the allocation directory of a Nomad task; empty for other tasks."""
    shared = unit.log_fields.get("NOMAD_ALLOC_DIR", "")  # <alloc_dir of the agent>/<allocation ID>/alloc
    return posixpath.dirname(shared)


def orphans(snapshot: Snapshot) -> Iterator[Orphan]:
    """Yield all orphans."""
    loaded = frozenset(unit.task for unit in snapshot.units)
    for unit in snapshot.units:
        directory = alloc_dir(unit)
        # Nomad removes the directory with the allocation; only then the task cannot be recovered any more.
        if directory and directory in snapshot.missing_directories:
            yield Orphan(Kind.TASK, unit.task, f"Nomad has removed its allocation ({directory})")
    for task in sorted(snapshot.outcomes - loaded):
        yield Orphan(Kind.OUTCOME, task, "its unit is not loaded")
    yield from _leases(snapshot)
    for stray in snapshot.strays:
        yield Orphan(Kind.STRAY, stray, "no matching lease")
    for task, silence in sorted(snapshot.consoles.items()):
        if silence > RECORD_MAX_AGE_S and task not in loaded:
            yield Orphan(Kind.CONSOLE, task, "its unit is not loaded, and its FIFOs are not read")
    for task in sorted(snapshot.users - loaded):
        yield Orphan(Kind.USER, task, "its unit is not loaded")


def _leases(snapshot: Snapshot) -> Iterator[Orphan]:
    running = {unit.task for unit in snapshot.units if not unit.over}
    for record in snapshot.expired:
        task = record.reservation.task
        if task in running:
            continue  # solo5-networkd releases it at its end
        match record.state:
            case LeaseState.RESERVED:
                yield Orphan(Kind.LEASE, task, "its reservation has expired")
            case LeaseState.ATTACHED:
                yield Orphan(Kind.LEASE, task, "its unit is not running")
            case LeaseState.RELEASING | LeaseState.WAITING:
                pass  # solo5-networkd is releasing it, or its first packet will start it
