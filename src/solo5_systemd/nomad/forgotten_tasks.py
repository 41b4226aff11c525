"""Which running units are forgotten tasks: tasks that this agent started and no longer has.

A plugin that is killed between a unit's start and its answer to StartTask leaves a unit without a handle in Nomad. Such
a unit has the allocation and the agent in its log fields. A unit belongs to this agent only if the agent's process is
the same, or the allocation directory is; tasks of another agent and of `solo5ctl` are left alone. One observation is no
proof: the caller waits for the grace period, unless the task has a successor.
"""

import posixpath
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from solo5_systemd.base.names import TaskName
from solo5_systemd.engine.orphans import alloc_dir
from solo5_systemd.unit.state import UnitState


@dataclass(frozen=True, kw_only=True)
class ForgottenTask:
    """A unit of this agent that the driver has no claim to.

    Attributes:
        certain: True: it has a successor, which proves it; False: it may still be recovered.
    """

    task: TaskName
    invocation: str
    reason: str
    certain: bool


@dataclass(frozen=True, kw_only=True)
class Claims:
    """The tasks of this driver.

    Attributes:
        names: its tasks, and those that are being started, recovered or destroyed.
        current: its tasks by allocation ID and task name, the latter as in the unit's log fields.
        directories: the agent's allocation directories, as known from its tasks.
        agent: the agent's process, as of `start.agent_id`; empty: unknown.
    """

    names: Collection[TaskName]
    current: Mapping[tuple[str, str], TaskName]
    directories: Collection[str]
    agent: str = ""


def forgotten_tasks(units: Iterable[UnitState], claims: Claims) -> tuple[ForgottenTask, ...]:
    """Return the units of this agent that the driver does not claim."""
    others = (unit for unit in units if unit.task not in claims.names)
    return tuple(_forgotten(unit, claims) for unit in others if _is_this_agents(unit, claims))


def _is_this_agents(unit: UnitState, claims: Claims) -> bool:
    directory = posixpath.dirname(alloc_dir(unit)) or "."  # which no agent has, of a unit that is not Nomad's
    return directory in claims.directories or unit.log_fields.get("SOLO5_AGENT", "") == claims.agent != ""


def _forgotten(unit: UnitState, claims: Claims) -> ForgottenTask:
    key = (unit.log_fields.get("NOMAD_ALLOC_ID", ""), unit.log_fields.get("NOMAD_TASK_NAME", ""))
    successor = claims.current.get(key)
    reason = f"Nomad runs task {successor} instead" if successor else "Nomad's agent has no such task"
    return ForgottenTask(task=unit.task, invocation=unit.invocation, reason=reason, certain=successor is not None)
