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

CONSOLE_SILENCE = 300.0
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
class Scene:
    """One look at the machine.

    Attributes:
        units: every task's.
        networks: the tasks whose network's unit stands.
        outcomes: the tasks whose outcome is kept.
        overdue: the leases and reservations that are older than a start may take.
        strays: what the kernel has of ours and no lease speaks of.
        consoles: the tasks that the relay has a record of, and for how many seconds it has not changed.
        gone: the allocations' directories that are no more.
        users: the tasks that have a user which no start holds.
    """

    units: Sequence[UnitState]
    networks: frozenset[TaskName]
    outcomes: frozenset[TaskName]
    overdue: Sequence[LeaseRecord]
    strays: Sequence[str]
    consoles: Mapping[TaskName, float]
    gone: frozenset[str]
    users: frozenset[TaskName] = frozenset()


def allocation(unit: UnitState) -> str:
    """The directory of the allocation that a task was started for; empty for a task that is not Nomad's."""
    shared = unit.log_fields.get("NOMAD_ALLOC_DIR", "")  # <agent's>/<allocation>/alloc, as in the task's environment
    return posixpath.dirname(shared)


def orphans(scene: Scene) -> tuple[Orphan, ...]:
    """All that belongs to nobody."""
    return (*_tasks(scene), *_outcomes(scene), *_leases(scene), *_strays(scene), *_consoles(scene), *_users(scene))


def _tasks(scene: Scene) -> Iterator[Orphan]:
    for unit in scene.units:
        directory = allocation(unit)
        if directory and directory in scene.gone:
            yield Orphan(kind=Kind.TASK, subject=unit.task, reason=f"Nomad has removed its allocation ({directory})")


def _outcomes(scene: Scene) -> Iterator[Orphan]:
    for task in sorted(scene.outcomes - _loaded(scene)):
        yield Orphan(kind=Kind.OUTCOME, subject=task, reason="its unit is not loaded")


def _leases(scene: Scene) -> Iterator[Orphan]:
    for record in scene.overdue:
        task = record.reservation.task
        if task in scene.networks:
            continue
        match record.state:
            case LeaseState.RESERVED:
                yield Orphan(kind=Kind.LEASE, subject=task, reason="its reservation has expired")
            case LeaseState.ATTACHED:
                yield Orphan(kind=Kind.LEASE, subject=task, reason="its network unit is not active")
            case LeaseState.RELEASING:
                pass  # it is being given back


def _strays(scene: Scene) -> Iterator[Orphan]:
    for stray in scene.strays:
        yield Orphan(kind=Kind.STRAY, subject=stray, reason="no matching lease")


def _consoles(scene: Scene) -> Iterator[Orphan]:
    for task, silence in sorted(scene.consoles.items()):
        if silence > CONSOLE_SILENCE and task not in _loaded(scene):
            yield Orphan(kind=Kind.CONSOLE, subject=task, reason="its unit is not loaded, and its FIFOs are not read")


def _users(scene: Scene) -> Iterator[Orphan]:
    for task in sorted(scene.users - _loaded(scene)):
        yield Orphan(kind=Kind.USER, subject=task, reason="its unit is not loaded")


def _loaded(scene: Scene) -> frozenset[TaskName]:
    return frozenset(unit.task for unit in scene.units)
