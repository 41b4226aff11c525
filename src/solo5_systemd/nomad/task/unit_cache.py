"""One look at all tasks that run, for an agent that comes back and recovers them one after the other.

What was seen may be some seconds old: it proves which run a unit is, and that does not change. Whether the task still
runs is found out by who watches it from then on. Only a task that was destroyed meanwhile must not be taken up again.
"""

import asyncio
from contextlib import suppress

from solo5_systemd.engine.task import Task
from solo5_systemd.errors import NoSuchTaskError, Solo5Error
from solo5_systemd.names import TaskName
from solo5_systemd.nomad.engine import Session

FRESH = 10.0
"""Seconds for which a look holds."""

PATIENCE = 60.0
"""Seconds that PID 1 or the bus may be away. A recovery that fails is the end of a task that runs: Nomad ends it."""

PAUSE = 0.2
"""Seconds between two attempts."""


class Listing:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._look: asyncio.Future[dict[TaskName, Task]] | None = None
        self._stale = 0.0
        self._away: float | None = None

    async def task(self, name: TaskName) -> Task | None:
        """The task of this name, None where there is none.

        Raises:
            Solo5Error: PID 1 cannot be asked, and could not for so long that it is not worth waiting.
        """
        now = asyncio.get_running_loop().time
        while True:
            try:
                found = await self._find(name)
            except Solo5Error:
                self._away = now() if self._away is None else self._away
                if now() >= self._away + PATIENCE:
                    raise
            else:
                self._away = None
                return found
            await asyncio.sleep(PAUSE)

    async def _find(self, name: TaskName) -> Task | None:
        found = (await self._tasks()).get(name)
        if found is not None:
            return found
        with suppress(NoSuchTaskError):  # it has ended, or is younger than the look
            return await (await self._session.engine()).task(name)
        return None

    def outdate(self) -> None:
        """Something was destroyed: what was seen before does not hold any more."""
        self._stale = 0.0

    async def _tasks(self) -> dict[TaskName, Task]:
        now = asyncio.get_running_loop().time()
        if self._look is None or now >= self._stale or _failed(self._look):
            self._look, self._stale = asyncio.ensure_future(self._all()), now + FRESH
        return await asyncio.shield(self._look)

    async def _all(self) -> dict[TaskName, Task]:
        return await (await self._session.engine()).running()


def _failed(look: "asyncio.Future[dict[TaskName, Task]]") -> bool:
    return look.done() and (look.cancelled() or look.exception() is not None)
