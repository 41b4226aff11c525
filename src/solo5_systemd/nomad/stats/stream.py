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

from solo5_systemd.nomad.engine import EngineSession
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.stats.message import fill_usage
from solo5_systemd.nomad.task.registry import TaskEntry

if TYPE_CHECKING:
    from solo5_systemd.cgroup.usage import Usage
    from solo5_systemd.engine.backends import Meter

T = TypeVar("T")

_Waiting: TypeAlias = tuple["asyncio.Future[Any]", Callable[[], Any]]


class StatsStreams:
    """The streams of all tasks.

    Args:
        session: the engine.
    """

    def __init__(self, session: EngineSession) -> None:
        self._session = session
        self._ticker = Ticker()

    async def samples(self, entry: TaskEntry, interval: float, mhz: float) -> AsyncIterator[wire.TaskStatsResponse]:
        """Yield a sample at once, and one for each interval until the tick after the task's end.

        A sample reads files of the cgroup, and calls no service. All samples are the same message, filled again: gRPC
        has serialised it before it takes the next.

        Args:
            entry: the task.
            interval: seconds between two samples.
            mhz: of one core; 0: unknown.
        """
        engine = await self._session.engine()
        with closing(engine.backends.usages.meter(entry.control_group)) as meter:
            stats = _TaskStats(entry.config.id, meter, mhz)
            sample = stats.sample()
            while not entry.end.done():
                if sample is not None:
                    yield sample
                sample = await self._ticker.next(interval, stats.sample)


class _TaskStats:
    """One task's message, and the previous sample."""

    def __init__(self, task_id: str, meter: "Meter", mhz: float) -> None:
        self._message = wire.TaskStatsResponse(stats=wire.TaskStats(id=task_id))
        self._meter = meter
        self._mhz = mhz
        self._before: Usage | None = None

    def sample(self) -> wire.TaskStatsResponse | None:
        """Return the message with the current values; None if the cgroup does not exist any more."""
        now = self._meter.sample()
        if now is None:
            return None
        stats = self._message.stats
        stats.timestamp.seconds, stats.timestamp.nanos = divmod(time.time_ns(), 1_000_000_000)
        fill_usage(stats.agg_resource_usage, self._before, now, self._mhz)
        self._before = now
        return self._message


class Ticker:
    """Runs the callbacks of one interval together, at its whole multiples on the event loop's clock."""

    def __init__(self) -> None:
        self._due: dict[float, list[_Waiting]] = {}

    async def next(self, interval: float, callback: Callable[[], T]) -> T:
        """Return the result of a callback at the next tick of an interval, or at the one after if that is very near.

        All callbacks of a tick run before any caller resumes. A caller that comes from a tick waits for one interval,
        any other for half an interval to one and a half.

        Args:
            interval: seconds.
            callback: runs in the event loop; its exception is raised here.
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
            if result.cancelled():
                continue
            try:
                result.set_result(callback())
            except Exception as error:  # noqa: BLE001 - it is raised in the caller of `next`
                result.set_exception(error)
