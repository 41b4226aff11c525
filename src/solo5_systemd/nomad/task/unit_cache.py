"""A short-lived cache of all running tasks, for an agent that comes back and recovers them one after the other.

An entry may be some seconds old. It proves the unit's invocation, which does not change. Whether the task still runs is
found out by the wait for its end. A destroyed task invalidates the cache, so that it cannot be recovered from it.
"""

import asyncio
from contextlib import suppress

from solo5_systemd.base.concurrency import retry
from solo5_systemd.base.errors import NoSuchTaskError, Solo5Error
from solo5_systemd.base.names import TaskName
from solo5_systemd.bus.peers import RETRY_INTERVAL_S
from solo5_systemd.engine.task import Task
from solo5_systemd.nomad.engine import EngineSession

CACHE_TIMEOUT_S = 10.0
"""Seconds until the cache expires."""

RECOVER_TIMEOUT_S = 60.0
"""Seconds that PID 1 or the bus may be unreachable. If RecoverTask fails, Nomad ends a task that runs."""


class UnitCache:
    """The cached tasks."""

    def __init__(self, session: EngineSession) -> None:
        self._session = session
        self._running: asyncio.Future[dict[TaskName, Task]] | None = None
        self._expires = 0.0
        self._failing_since: float | None = None

    async def task(self, name: TaskName) -> Task | None:
        """Return a task by name, running or ended; None: PID 1 has no such unit.

        Raises:
            Solo5Error: PID 1 has not been reachable for `RECOVER_TIMEOUT_S`.
        """
        found = await retry(
            lambda: self._find(name), Solo5Error, interval_s=RETRY_INTERVAL_S, transient=self._is_short_outage
        )
        self._failing_since = None
        return found

    def _is_short_outage(self, _: Solo5Error) -> bool:
        """Return whether the outage has not reached its limit, which is one for all callers: Nomad recovers in turn."""
        now = asyncio.get_running_loop().time()
        if self._failing_since is None:
            self._failing_since = now
        return now < self._failing_since + RECOVER_TIMEOUT_S

    async def _find(self, name: TaskName) -> Task | None:
        found = (await self._tasks()).get(name)
        if found is not None:
            return found
        with suppress(NoSuchTaskError):  # a task that has ended, or is younger than the cache
            return await (await self._session.engine()).task(name)
        return None

    def invalidate(self) -> None:
        """Expire the cache, since a task was destroyed."""
        self._expires = 0.0

    async def _tasks(self) -> dict[TaskName, Task]:
        now = asyncio.get_running_loop().time()
        if self._running is None or now >= self._expires or _failed(self._running):
            self._running, self._expires = asyncio.ensure_future(self._list()), now + CACHE_TIMEOUT_S
            asyncio.get_running_loop().call_at(self._expires, self._drop, self._running)
        # Shared by all callers: a cancelled one must not cancel the query.
        return await asyncio.shield(self._running)

    def _drop(self, expired: "asyncio.Future[dict[TaskName, Task]]") -> None:
        """Free the memory of a listing."""
        if self._running is expired:
            self._running = None

    async def _list(self) -> dict[TaskName, Task]:
        return await (await self._session.engine()).running()


def _failed(future: "asyncio.Future[dict[TaskName, Task]]") -> bool:
    return future.done() and (future.cancelled() or future.exception() is not None)
