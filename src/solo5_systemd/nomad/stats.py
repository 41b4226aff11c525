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
from solo5_systemd.nomad.tasks import TaskEntry

if TYPE_CHECKING:
    from solo5_systemd.cgroup.meter import Meter
    from solo5_systemd.cgroup.usage import Usage

T = TypeVar("T")

TIMESTAMP_STEP_NS = 10_000_000
"""Nanoseconds of a step of the samples' timestamps."""

_Waiting: TypeAlias = tuple["asyncio.Future[Any]", Callable[[], Any]]


class StatsStreams:
    """The streams of all tasks."""

    def __init__(self, session: EngineSession) -> None:
        self._session = session
        self._ticker = Ticker()
        self._step, self._stamp = 0, b""

    async def samples(self, entry: TaskEntry, interval: float, mhz: float) -> AsyncIterator[bytes]:
        """Yield a sample at once, and one for each interval until the tick after the task's end.

        A sample reads files of the cgroup, and calls no service. Each is a serialised TaskStatsResponse.

        Args:
            mhz: of one core; 0: unknown.
        """
        with closing(self._session.engine.backends.usages.meter(entry.run.control_group)) as meter:
            stats = _TaskStats(entry.config.id, meter, mhz, self._timestamp)
            sample = stats.sample()
            while not entry.end.done():
                if sample is not None:
                    yield sample
                sample = await self._ticker.next(interval, stats.sample)

    def _timestamp(self) -> bytes:
        """Return the part of a sample with the time, which the samples of one tick share."""
        step = time.time_ns() // TIMESTAMP_STEP_NS
        if step != self._step:
            self._step, self._stamp = step, stats_messages.timestamp(step * TIMESTAMP_STEP_NS)
        return self._stamp


class _TaskStats:
    """The parts of one task's samples."""

    __slots__ = ("_before", "_cpu", "_head", "_is_idle", "_memory", "_meter", "_mhz", "_timestamp")

    def __init__(self, task_id: str, meter: "Meter", mhz: float, timestamp: Callable[[], bytes]) -> None:
        self._head = stats_messages.head(task_id)
        self._meter = meter
        self._mhz = mhz
        self._timestamp = timestamp
        self._before: Usage | None = None
        self._memory = self._cpu = b""
        self._is_idle = False

    def sample(self) -> bytes | None:
        """Return the current values; None if the cgroup does not exist any more."""
        now = self._meter.sample()
        if now is None:
            return None
        before, self._before = self._before, now
        if before is None or now.memory is not before.memory:
            self._memory = stats_messages.memory_part(now.memory)
        was_idle, self._is_idle = self._is_idle, before is not None and now.cpu is before.cpu
        if not (was_idle and self._is_idle):  # otherwise the shares are 0 again
            self._cpu = stats_messages.cpu_part(before, now, self._mhz)
        return b"".join((self._head, self._timestamp(), self._memory, self._cpu))


class Ticker:
    """Runs the callbacks of one interval together, at its whole multiples on the event loop's clock."""

    def __init__(self) -> None:
        self._due: dict[float, list[_Waiting]] = {}

    async def next(self, interval: float, callback: Callable[[], T]) -> T:
        """Return the result of a callback at the next tick of an interval, or at the one after if that is very near.

        All callbacks of a tick run before any caller resumes. A caller that comes from a tick waits for one interval,
        any other for half an interval to one and a half.

        Args:
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
