"""Moments that many wait for together."""

import asyncio
from collections.abc import Callable, Coroutine

from solo5_systemd.nomad.beats import Beats


class Clock(asyncio.SelectorEventLoop):
    """A loop whose clock is moved by hand, and stands still for those who wait."""

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


async def waiting(beats: Beats, loop: Clock, *comings: float, interval: float = 1.0) -> dict[float, asyncio.Task[None]]:
    tasks = {}
    for loop.now in comings:
        tasks[loop.now] = loop.create_task(beats.next(interval))
        await asyncio.sleep(0)
    return tasks


async def woken(loop: Clock, tasks: dict[float, asyncio.Task[None]], now: float) -> set[float]:
    loop.now = now
    for _ in range(4):
        await asyncio.sleep(0)
    return {coming for coming, task in tasks.items() if task.done()}


@on_clock
async def test_all_who_wait_are_woken_on_the_same_beat_unless_it_is_very_near(loop: Clock) -> None:
    beats = Beats()
    tasks = await waiting(beats, loop, 100.0, 100.1, 100.4, 100.6)
    assert await woken(loop, tasks, 100.9) == set()
    assert await woken(loop, tasks, 101.0) == {100.0, 100.1, 100.4}
    assert await woken(loop, tasks, 101.9) == {100.0, 100.1, 100.4}
    assert await woken(loop, tasks, 102.0) == set(tasks)


@on_clock
async def test_each_interval_has_beats_of_its_own(loop: Clock) -> None:
    beats = Beats()
    seconds, minutes = await waiting(beats, loop, 119.0), await waiting(beats, loop, 119.0, interval=60.0)
    assert (await woken(loop, seconds, 120.0), await woken(loop, minutes, 120.0)) == ({119.0}, set())
    assert await woken(loop, minutes, 180.0) == {119.0}


@on_clock
async def test_one_who_goes_leaves_the_others_waiting(loop: Clock) -> None:
    tasks = await waiting(Beats(), loop, 100.0, 100.1)
    tasks[100.0].cancel()
    assert await woken(loop, tasks, 101.0) == {100.0, 100.1}
    assert not tasks[100.1].cancelled()
