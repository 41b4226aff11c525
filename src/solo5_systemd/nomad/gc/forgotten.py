"""Stop forgotten tasks after their grace period."""

import asyncio
import logging
from collections.abc import Sequence

from solo5_systemd.nomad.config.plugin import ForgottenTasksConfig
from solo5_systemd.nomad.engine import EngineSession
from solo5_systemd.nomad.task.forgotten_tasks import ForgottenTask, forgotten_tasks
from solo5_systemd.nomad.task.registry import TaskRegistry
from solo5_systemd.unit.state import UnitState

_log = logging.getLogger(__name__)


class ForgottenTasks:
    """The forgotten tasks found so far, by invocation, and since when.

    Args:
        session: the engine.
        tasks: the driver's tasks.
    """

    def __init__(self, session: EngineSession, tasks: TaskRegistry) -> None:
        self._session = session
        self._tasks = tasks
        self._since: dict[str, float] = {}
        self._logged: set[str] = set()

    def reset(self) -> None:
        """Restart all grace periods: no agent is connected, so nothing can be concluded."""
        self._since.clear()

    async def sweep(self, config: ForgottenTasksConfig, *, keep_ended: bool = False) -> None:
        """Stop the tasks that have a successor, or have been forgotten for the whole grace period.

        Args:
            config: the operator's settings.
            keep_ended: leave ended tasks, which are retained for their outcome.

        Raises:
            HostError: PID 1 is not reachable.
        """
        found = forgotten_tasks(await self._others(keep_ended=keep_ended), self._tasks.claims())
        now = asyncio.get_running_loop().time()
        # Only what is still forgotten: a task that was claimed in between starts its grace period again.
        self._since = {each.invocation: self._since.get(each.invocation, now) for each in found}
        self._logged &= self._since.keys()
        for each in found:
            if each.certain or now - self._since[each.invocation] >= config.creation_grace:
                await self._stop(each, dry_run=config.dry_run)

    async def _others(self, *, keep_ended: bool) -> Sequence[UnitState]:
        # Names are one cheap call, and mostly all are the driver's own: only otherwise are the units read.
        engine = await self._session.engine()
        if set(await engine.names(ended=not keep_ended)) <= set(self._tasks.claims().names):
            return ()
        return [unit for unit in await engine.backends.units.states() if not (keep_ended and unit.over)]

    async def _stop(self, forgotten: ForgottenTask, *, dry_run: bool) -> None:
        if forgotten.task in self._tasks.claims().names:  # claimed while another one was being stopped
            return
        if forgotten.invocation not in self._logged:
            self._logged.add(forgotten.invocation)
            action = "would be stopped" if dry_run else "stopped"
            _log.warning("forgotten task %s %s: %s", forgotten.task, action, forgotten.reason)
        if not dry_run:
            await self._tasks.remove_forgotten(forgotten.task)
