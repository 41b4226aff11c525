"""An event loop with a virtual clock: if no event is ready, time advances to the next timer.

Fast tests with the mark `leaps` use it. Time stands still while a thread of the loop's executor runs. Such a test must
not wait for another process, whose run time the clock does not have.
"""

import asyncio
import selectors
from collections.abc import Awaitable
from typing import Any


class _Selector(selectors.DefaultSelector):
    """A selector that blocks for threads only, and otherwise adds up its timeouts.

    Attributes:
        waited: seconds of virtual time.
        threads: number of running executor threads.
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
    """Return the virtual seconds that `work` takes."""
    loop = _of_this_test()
    began = loop.time()
    await work
    return loop.time() - began


async def passed(seconds: float) -> None:
    """Let this virtual time pass, with all timers that are due in it."""
    _of_this_test()
    await asyncio.sleep(seconds)
