"""Wake all who wait for the same moment together, by one timer."""

import asyncio
import math


class Beats:
    """The whole numbers of each interval, on the loop's clock."""

    def __init__(self) -> None:
        self._coming: dict[float, asyncio.Event] = {}

    async def next(self, interval: float) -> None:
        """Wait for the next beat of an interval (seconds), or for the one after it where the next is very near.

        Whoever comes from a beat waits for an interval, whoever comes first for half of one to one and a half.
        """
        loop = asyncio.get_running_loop()
        when = (math.floor(loop.time() / interval + 0.5) + 1) * interval
        if when not in self._coming:
            self._coming[when] = asyncio.Event()
            loop.call_at(when, self._ring, when)
        await self._coming[when].wait()

    def _ring(self, when: float) -> None:
        self._coming.pop(when).set()
