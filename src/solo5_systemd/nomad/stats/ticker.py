"""Do what recurs at one interval at the same moments for all who want it, by one timer."""

import asyncio
import math
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")

_Due: TypeAlias = tuple["asyncio.Future[Any]", Callable[[], Any]]


class Beats:
    """The whole numbers of each interval, on the loop's clock."""

    def __init__(self) -> None:
        self._coming: dict[float, list[_Due]] = {}

    async def next(self, interval: float, deed: Callable[[], T]) -> T:
        """What a deed returns on the next beat of an interval (seconds), or on the one after where that is very near.

        All deeds of a beat are done before anybody who waits for one goes on. Whoever comes from a beat waits for an
        interval, whoever comes first for half of one to one and a half.
        """
        loop = asyncio.get_running_loop()
        when = (math.floor(loop.time() / interval + 0.5) + 1) * interval
        due = self._coming.get(when)
        if due is None:
            due = self._coming[when] = []
            loop.call_at(when, self._ring, when)
        done: asyncio.Future[T] = loop.create_future()
        due.append((done, deed))
        return await done

    def _ring(self, when: float) -> None:
        for done, deed in self._coming.pop(when):
            if done.cancelled():
                continue
            try:
                done.set_result(deed())
            except Exception as error:  # noqa: BLE001 - it is raised where it is waited for
                done.set_exception(error)
