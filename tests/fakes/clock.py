"""An event loop whose time passes at once: where nothing is left to do before a timer, that timer is due.

A fast test has it that is marked `leaps`. It stands still while a thread works for the loop; other processes take time
that it leaps over, so that no such test may wait for one.
"""

import asyncio
import selectors
from collections.abc import Awaitable
from typing import Any


class _Selector(selectors.DefaultSelector):
    """Waits for nothing but threads: the time that it would have waited is added up.

    Attributes:
        waited: seconds.
        threads: how many are at work.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waited = 0.0
        self.threads = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or (timeout > 0 and self.threads):
            return super().select()  # they wake it
        ready = super().select(0)
        if not ready and timeout > 0:
            self.waited += timeout
        return ready


class LeapingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._waits = _Selector()
        super().__init__(self._waits)

    def time(self) -> float:
        return self._waits.waited

    def run_in_executor(self, *call: Any) -> "asyncio.Future[Any]":  # type: ignore[override]  # as it comes
        working: asyncio.Future[Any] = super().run_in_executor(*call)
        self._waits.threads += 1
        working.add_done_callback(self._has_worked)
        return working

    def _has_worked(self, _: object) -> None:
        self._waits.threads -= 1


class LeapingPolicy(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return LeapingLoop()


def _of_this_test() -> LeapingLoop:
    loop = asyncio.get_running_loop()
    if not isinstance(loop, LeapingLoop):
        raise TypeError("the test is not marked `leaps`")
    return loop


async def taken(work: Awaitable[object]) -> float:
    """Return the seconds that this takes."""
    loop = _of_this_test()
    began = loop.time()
    await work
    return loop.time() - began


async def passed(seconds: float) -> None:
    """Return when this time has passed, and all that was due until then is done."""
    _of_this_test()
    await asyncio.sleep(seconds)
