"""End what this agent started and has forgotten, once it has been so for long enough."""

import asyncio
import logging
from collections.abc import Sequence

from solo5_systemd.nomad.config.plugin import Dangling
from solo5_systemd.nomad.engine import Session
from solo5_systemd.nomad.task.claims import Suspect, unclaimed
from solo5_systemd.nomad.task.registry import Tasks
from solo5_systemd.unit.state import UnitState

_log = logging.getLogger(__name__)


class DanglingTasks:
    """Looks, and looks again.

    Args:
        session: the engine.
        tasks: what the driver answers for.
    """

    def __init__(self, session: Session, tasks: Tasks) -> None:
        self._session = session
        self._tasks = tasks
        self._since: dict[str, float] = {}
        self._told: set[str] = set()

    def pause(self) -> None:
        """What was seen so far does not count: no agent is there to know anything."""
        self._since.clear()

    async def sweep(self, wanted: Dangling, *, keep_ended: bool = False) -> None:
        """End those that are forgotten by proof, or have been unclaimed for the whole grace period.

        Args:
            wanted: the operator's choice.
            keep_ended: tasks that have ended are kept for their outcome.

        Raises:
            HostError: PID 1 cannot be asked.
        """
        suspects = unclaimed(await self._strangers(keep_ended=keep_ended), self._tasks.claims())
        now = asyncio.get_running_loop().time()
        self._since = {each.invocation: self._since.get(each.invocation, now) for each in suspects}
        self._told &= self._since.keys()
        for each in suspects:
            if each.certain or now - self._since[each.invocation] >= wanted.creation_grace:
                await self._end(each, dry_run=wanted.dry_run)

    async def _strangers(self, *, keep_ended: bool) -> Sequence[UnitState]:
        """Units are read only where there are others than the driver's own: mostly there are none."""
        engine = await self._session.engine()
        if set(await engine.names(ended=not keep_ended)) <= set(self._tasks.claims().names):
            return ()
        return [unit for unit in await engine.units() if not (keep_ended and unit.over)]

    async def _end(self, suspect: Suspect, *, dry_run: bool) -> None:
        if suspect.task in self._tasks.claims().names:  # somebody has claimed it while another was being ended
            return
        if suspect.invocation not in self._told:
            self._told.add(suspect.invocation)
            done = "would be ended" if dry_run else "is ended"
            _log.warning("Task %s %s: %s.", suspect.task, done, suspect.reason)
        if not dry_run:
            await self._tasks.discard(suspect.task)
