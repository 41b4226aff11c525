"""A ticker: callbacks of one interval run together, on one timer."""

import asyncio
import math
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")

_Waiting: TypeAlias = tuple["asyncio.Future[Any]", Callable[[], Any]]


class Ticker:
    """Ticks at the whole multiples of each interval, on the event loop's clock."""

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
