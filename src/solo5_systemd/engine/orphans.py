"""What belongs to nobody, and why that is certain.

Judged by one look at the machine. Whatever somebody may still own is no orphan: a task of `solo5ctl` is a person's, and
one of Nomad's is its agent's for as long as the allocation's directory is there.
"""

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from solo5_systemd.names import TaskName
from solo5_systemd.network.model import LeaseRecord, LeaseState
from solo5_systemd.unit.state import UnitState

RECORD_MAX_AGE_S = 300.0
"""Seconds after which a console's record without a task is nobody's: a start takes less, and so do last lines."""


class Kind(StrEnum):
    """Who takes it away: whoever ended the task, systemd, the network service, the relay."""

    TASK = "task"
    OUTCOME = "outcome of task"
    LEASE = "network lease of task"
    STRAY = "network leftover"
    CONSOLE = "console of task"
    USER = "user of task"


@dataclass(frozen=True, kw_only=True)
class Orphan:
    """One; `subject` is a task's name, or what a stray is."""

    kind: Kind
    subject: str
    reason: str

    def __str__(self) -> str:
        return f"{self.kind} {self.subject}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """One look at the machine.

    Attributes:
        units: every task's.
        networks: the tasks whose network's unit stands.
        outcomes: the tasks whose outcome is kept.
        overdue: the leases and reservations that are older than a start may take.
        strays: what the kernel has of ours and no lease speaks of.
        consoles: the tasks that the relay has a record of, and for how many seconds it has not changed.
        missing_directories: the allocations' directories that are no more.
        users: the tasks that have a user which no start holds.
    """

    units: Sequence[UnitState]
    networks: frozenset[TaskName]
    outcomes: frozenset[TaskName]
    overdue: Sequence[LeaseRecord]
    strays: Sequence[str]
    consoles: Mapping[TaskName, float]
    missing_directories: frozenset[str]
    users: frozenset[TaskName] = frozenset()


def alloc_dir(unit: UnitState) -> str:
    """The directory of the allocation that a task was started for; empty for a task that is not Nomad's."""
    shared = unit.log_fields.get("NOMAD_ALLOC_DIR", "")  # <agent's>/<allocation>/alloc, as in the task's environment
    return posixpath.dirname(shared)


def orphans(snapshot: Snapshot) -> tuple[Orphan, ...]:
    """All that belongs to nobody."""
    return (
        *_tasks(snapshot),
        *_outcomes(snapshot),
        *_leases(snapshot),
        *_strays(snapshot),
        *_consoles(snapshot),
        *_users(snapshot),
    )


def _tasks(snapshot: Snapshot) -> Iterator[Orphan]:
    for unit in snapshot.units:
        directory = alloc_dir(unit)
        if directory and directory in snapshot.missing_directories:
            yield Orphan(kind=Kind.TASK, subject=unit.task, reason=f"Nomad has removed its allocation ({directory})")


def _outcomes(snapshot: Snapshot) -> Iterator[Orphan]:
    for task in sorted(snapshot.outcomes - _loaded(snapshot)):
        yield Orphan(kind=Kind.OUTCOME, subject=task, reason="its unit is not loaded")


def _leases(snapshot: Snapshot) -> Iterator[Orphan]:
    for record in snapshot.overdue:
        task = record.reservation.task
        if task in snapshot.networks:
            continue
        match record.state:
            case LeaseState.RESERVED:
                yield Orphan(kind=Kind.LEASE, subject=task, reason="its reservation has expired")
            case LeaseState.ATTACHED:
                yield Orphan(kind=Kind.LEASE, subject=task, reason="its network unit is not active")
            case LeaseState.RELEASING:
                pass  # it is being given back


def _strays(snapshot: Snapshot) -> Iterator[Orphan]:
    for stray in snapshot.strays:
        yield Orphan(kind=Kind.STRAY, subject=stray, reason="no matching lease")


def _consoles(snapshot: Snapshot) -> Iterator[Orphan]:
    for task, silence in sorted(snapshot.consoles.items()):
        if silence > RECORD_MAX_AGE_S and task not in _loaded(snapshot):
            yield Orphan(kind=Kind.CONSOLE, subject=task, reason="its unit is not loaded, and its FIFOs are not read")


def _users(snapshot: Snapshot) -> Iterator[Orphan]:
    for task in sorted(snapshot.users - _loaded(snapshot)):
        yield Orphan(kind=Kind.USER, subject=task, reason="its unit is not loaded")


def _loaded(snapshot: Snapshot) -> frozenset[TaskName]:
    return frozenset(unit.task for unit in snapshot.units)
