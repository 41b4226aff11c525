"""The ticker: callbacks of one interval run together."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial

from solo5_systemd.nomad.stats import Ticker


class Clock(asyncio.SelectorEventLoop):
    """An event loop whose clock is set by the test."""

    now = 100.0

    def time(self) -> float:
        return self.now


def on_clock(story: Callable[[Clock], Coroutine[None, None, None]]) -> Callable[[], None]:
    def test() -> None:
        loop = Clock()
        try:
            loop.run_until_complete(story(loop))
        finally:
            loop.close()

    return test


async def waiting(
    beats: Ticker, loop: Clock, *comings: float, interval: float = 1.0
) -> dict[float, asyncio.Task[None]]:
    tasks = {}
    for loop.now in comings:
        tasks[loop.now] = loop.create_task(beats.next(interval, lambda: None))
        await asyncio.sleep(0)
    return tasks


async def woken(loop: Clock, tasks: dict[float, asyncio.Task[None]], now: float) -> set[float]:
    loop.now = now
    for _ in range(4):
        await asyncio.sleep(0)
    return {coming for coming, task in tasks.items() if task.done()}


@on_clock
async def test_all_who_wait_are_woken_on_the_same_beat_unless_it_is_very_near(loop: Clock) -> None:
    beats = Ticker()
    tasks = await waiting(beats, loop, 100.0, 100.1, 100.4, 100.6)
    assert await woken(loop, tasks, 100.9) == set()
    assert await woken(loop, tasks, 101.0) == {100.0, 100.1, 100.4}
    assert await woken(loop, tasks, 101.9) == {100.0, 100.1, 100.4}
    assert await woken(loop, tasks, 102.0) == set(tasks)


@on_clock
async def test_a_deed_that_fails_fails_for_who_waits_for_it(loop: Clock) -> None:
    beats = Ticker()
    tasks = [loop.create_task(beats.next(1.0, deed)) for deed in (lambda: 1 // 0, lambda: 7)]
    await asyncio.sleep(0)
    loop.now = 101.0
    failure, fine = await asyncio.gather(*tasks, return_exceptions=True)
    assert (type(failure), fine) == (ZeroDivisionError, 7)


@on_clock
async def test_each_interval_has_beats_of_its_own(loop: Clock) -> None:
    beats = Ticker()
    seconds, minutes = await waiting(beats, loop, 119.0), await waiting(beats, loop, 119.0, interval=60.0)
    assert (await woken(loop, seconds, 120.0), await woken(loop, minutes, 120.0)) == ({119.0}, set())
    assert await woken(loop, minutes, 180.0) == {119.0}


@on_clock
async def test_one_who_goes_leaves_the_others_waiting(loop: Clock) -> None:
    tasks = await waiting(Ticker(), loop, 100.0, 100.1)
    tasks[100.0].cancel()
    assert await woken(loop, tasks, 101.0) == {100.0, 100.1}
    assert not tasks[100.1].cancelled()


@on_clock
async def test_the_deed_of_one_who_has_gone_is_not_done(loop: Clock) -> None:
    beats, seen = Ticker(), list[str]()
    gone, there = (loop.create_task(beats.next(1.0, partial(seen.append, name))) for name in ("gone", "there"))
    await asyncio.sleep(0)
    gone.cancel()
    loop.now = 101.0
    await there
    assert seen == ["there"]
