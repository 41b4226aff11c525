"""Which units of Nomad's tasks this agent has forgotten: pure, judged by one look, confirmed by a later one.

A plugin that is killed between a unit's start and its answer leaves a unit that Nomad never hears of. Such a unit says
for which allocation it was started, and by which agent. It is this agent's to judge only if the agent's process is the
same, or its allocations are in the same place: another agent's task, or one of `solo5ctl`, is none of its business.
"""

import posixpath
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from solo5_systemd.engine.orphans import alloc_dir
from solo5_systemd.names import TaskName
from solo5_systemd.unit.state import UnitState


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """One.

    Attributes:
        task: whose unit it is.
        invocation: which run.
        reason: what speaks against it.
        certain: that is a proof; else it may be a task that is about to be recovered.
    """

    task: TaskName
    invocation: str
    reason: str
    certain: bool


@dataclass(frozen=True, kw_only=True)
class Claims:
    """What the driver answers for.

    Attributes:
        names: its tasks, and those that are being started, recovered or destroyed.
        current: its tasks by allocation (id) and task (name, as the unit has it).
        directories: where its agent keeps allocations, as far as its tasks have told.
        agent: the agent's process; empty where that is not known.
    """

    names: Collection[TaskName]
    current: Mapping[tuple[str, str], TaskName]
    directories: Collection[str]
    agent: str = ""


def unclaimed(units: Iterable[UnitState], claims: Claims) -> tuple[Suspect, ...]:
    """The units of this agent's that the driver does not answer for."""
    strangers = (unit for unit in units if unit.task not in claims.names)
    return tuple(_suspect(unit, claims) for unit in strangers if _is_this_agents(unit, claims))


def _is_this_agents(unit: UnitState, claims: Claims) -> bool:
    return _home(unit) in claims.directories or unit.log_fields.get("SOLO5_AGENT", "") == claims.agent != ""


def _home(unit: UnitState) -> str:
    """Where the agent that started it keeps its allocations; of a task that is not Nomad's, nobody's place."""
    return posixpath.dirname(alloc_dir(unit)) or "."


def _suspect(unit: UnitState, claims: Claims) -> Suspect:
    of = (unit.log_fields.get("NOMAD_ALLOC_ID", ""), unit.log_fields.get("NOMAD_TASK_NAME", ""))
    successor = claims.current.get(of)
    reason = f"Nomad runs {successor} in its place" if successor else "Nomad's agent does not know it"
    return Suspect(task=unit.task, invocation=unit.invocation, reason=reason, certain=successor is not None)
