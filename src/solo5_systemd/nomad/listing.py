"""One look at all tasks for many who ask at once: an agent that comes back recovers all of its tasks together."""

import asyncio

from solo5_systemd.names import TaskName
from solo5_systemd.nomad.session import Session
from solo5_systemd.task import Task

GATHERING = 0.01
"""Seconds for which those who ask are collected before the look; none is answered from a look before its question."""


class Listing:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._next: asyncio.Task[dict[TaskName, Task]] | None = None

    async def task(self, name: TaskName) -> Task | None:
        """The task of this name, None where there is none.

        Raises:
            Solo5Error: PID 1 cannot be asked.
        """
        if self._next is None:
            self._next = asyncio.ensure_future(self._look())
        return (await asyncio.shield(self._next)).get(name)

    async def _look(self) -> dict[TaskName, Task]:
        await asyncio.sleep(GATHERING)
        self._next = None  # whoever asks from now on wants a later look
        return {task.name: task for task in await (await self._session.engine()).tasks()}
