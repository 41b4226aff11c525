"""Forgotten tasks: units that this agent started and no longer has; they are stopped after their grace period.

A plugin that is killed between a unit's start and its answer to StartTask leaves a unit without a handle in Nomad. Such
a unit has the allocation and the agent in its log fields. A unit belongs to this agent only if the agent's process is
the same, or the allocation directory is; tasks of another agent and of `solo5ctl` are left alone. One observation is no
proof, hence the grace period, unless the task has a successor.
"""

import asyncio
import logging
import posixpath
from collections.abc import Container, Iterable, Iterator, Sequence

from solo5_systemd.base.errors import Solo5Error
from solo5_systemd.base.names import TaskName
from solo5_systemd.base.sanitize import name_for_unit
from solo5_systemd.engine.orphans import alloc_dir
from solo5_systemd.nomad import logs
from solo5_systemd.nomad.engine import EngineSession
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.start import agent_id
from solo5_systemd.nomad.tasks import TaskRegistry
from solo5_systemd.nomad.workload import name_of
from solo5_systemd.unit.state import UnitState

_log = logging.getLogger(__name__)


def forgotten_tasks(
    units: Iterable[UnitState], claimed: Container[TaskName], configs: Sequence[wire.TaskConfig], agent: str
) -> Iterator[tuple[UnitState, TaskName | None]]:
    """Yield the units of this agent that the driver does not claim, each with the task that runs in its place.

    Args:
        configs: of the claimed tasks; the directories of their allocations are the agent's.
        agent: as of `start.agent_id`; empty: unknown.
    """
    directories = {posixpath.dirname(each.alloc_dir) for each in configs}
    current = {(each.alloc_id, name_for_unit(each.name)): name_of(each.id) for each in configs}
    for unit in units:
        fields = unit.log_fields
        directory = posixpath.dirname(alloc_dir(unit)) or "."  # which no agent has, of a unit that is not Nomad's
        is_own = directory in directories or fields.get("SOLO5_AGENT", "") == agent != ""
        if is_own and unit.task not in claimed:
            yield unit, current.get((fields.get("NOMAD_ALLOC_ID", ""), fields.get("NOMAD_TASK_NAME", "")))


class ForgottenTasks:
    """The forgotten tasks found so far, by invocation, and since when."""

    def __init__(self, session: EngineSession, tasks: TaskRegistry) -> None:
        self._session = session
        self._tasks = tasks
        self._since: dict[str, float] = {}
        self._logged: set[str] = set()

    def begin_again(self) -> None:
        """Begin each grace period again: while no agent listens, another plugin may have started tasks."""
        self._since.clear()

    async def sweep(self) -> None:
        """Stop the tasks that have a successor, or have been forgotten for the full grace period.

        Where ended tasks are retained for their outcome (`gc { tasks = false }`), these are left alone. Raises
        HostError while PID 1 is not reachable.
        """
        gc, engine = self._session.config.gc, self._session.engine
        # Names are one cheap call, and mostly all are the driver's own: only otherwise are the units read.
        names = set(await engine.names(ended=gc.tasks))
        units = await engine.backends.units.states() if names - self._tasks.claimed() else ()
        kept = [unit for unit in units if gc.tasks or not unit.over]
        found = tuple(forgotten_tasks(kept, self._tasks.claimed(), self._tasks.configs(), agent_id()))
        now = asyncio.get_running_loop().time()
        # Only what is still forgotten: a task that was claimed in between starts its grace period again.
        self._since = {unit.invocation: self._since.get(unit.invocation, now) for unit, _ in found}
        self._logged &= self._since.keys()
        for unit, successor in found:
            is_over = now - self._since[unit.invocation] >= gc.dangling_tasks.creation_grace
            if (successor or is_over) and unit.task not in self._tasks.claimed():  # claimed meanwhile
                try:
                    await self._stop(unit, successor, dry_run=gc.dangling_tasks.dry_run)
                except Solo5Error as error:  # such as a tender that hangs in the kernel: the others are stopped
                    _log.warning("forgotten task %s not stopped: %s", unit.task, error)

    async def _stop(self, unit: UnitState, successor: TaskName | None, *, dry_run: bool) -> None:
        if unit.invocation not in self._logged:
            self._logged.add(unit.invocation)
            action = "would be stopped" if dry_run else "stopped"
            reason = f"Nomad runs task {successor} instead" if successor else "Nomad's agent has no such task"
            _log.warning("forgotten task %s %s: %s", unit.task, action, reason)
        if not dry_run:
            await self._session.engine.discard(unit.task)
            await logs.drain(self._session, unit.task)
