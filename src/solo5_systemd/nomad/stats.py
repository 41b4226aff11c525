"""The statistics stream of each task (TaskStats), until the task has ended.

All tasks are sampled at the same tick, one after the other. gRPC writes many messages in a row at half the cost of the
same messages with other work in between.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from solo5_systemd.nomad import stats_messages
from solo5_systemd.nomad.engine import EngineSession
from solo5_systemd.nomad.start import TaskEntry

if TYPE_CHECKING:
    from solo5_systemd.cgroup.usage import Usage

T = TypeVar("T")

_Waiting: TypeAlias = tuple["asyncio.Future[Any]", Callable[[], Any]]


async def samples(
    session: EngineSession, ticker: "Ticker", entry: TaskEntry, interval: float, mhz: float
) -> AsyncIterator[bytes]:
    """Yield a sample at once, and one for each interval until the tick after the task's end.

    Each is a serialised TaskStatsResponse. `mhz`: of one core; 0: unknown.
    """
    with closing(session.engine.backends.usages.meter(entry.state.run.control_group)) as meter:
        before: Usage | None = None
        head, memory, cpu = stats_messages.head(entry.config.id), b"", b""
        is_idle = False

        def sample() -> bytes | None:
            """Return the current values; None if the cgroup does not exist any more."""
            nonlocal before, memory, cpu, is_idle
            now = meter.sample()
            if now is None:
                return None
            # The meter returns the same object while nothing changes.
            if before is None or now.memory is not before.memory:
                memory = stats_messages.memory_part(now.memory)
            was_idle, is_idle = is_idle, before is not None and now.cpu is before.cpu
            if not (was_idle and is_idle):  # otherwise the shares are 0 again
                cpu = stats_messages.cpu_part(before, now, mhz)
            before = now
            return b"".join((head, stats_messages.timestamp(time.time_ns() // 1_000_000), memory, cpu))

        taken = sample()
        while not entry.end.done():
            if taken is not None:  # the cgroup is gone before the driver has the outcome
                yield taken
            taken = await ticker.next(interval, sample)


class Ticker:
    """Runs the callbacks of one interval together, at its whole multiples on the event loop's clock."""

    def __init__(self) -> None:
        self._due: dict[float, list[_Waiting]] = {}

    async def next(self, interval: float, callback: Callable[[], T]) -> T:
        """Return the result of a callback at the next tick of an interval, or at the one after if that is very near.

        All callbacks of a tick run before any caller resumes. A caller that comes from a tick waits for one interval,
        any other for half an interval to one and a half. An exception of the callback is raised here.
        """
        loop = asyncio.get_running_loop()
        # Rounded, so that a caller shortly before a tick does not get two results in a row.
        when = (math.floor(loop.time() / interval + 0.5) + 1) * interval
        due = self._due.get(when)
        if due is None:
            due = self._due[when] = []
            loop.call_at(when, self._tick, when)
        result: asyncio.Future[T] = loop.create_future()
        due.append((result, callback))
        return await result

    def _tick(self, when: float) -> None:
        for result, callback in self._due.pop(when):
            if result.cancelled():  # the agent has closed this stream meanwhile
                continue
            try:
                result.set_result(callback())
            except Exception as error:  # noqa: BLE001 - it is raised in the caller of `next`
                result.set_exception(error)
