"""The polls of a journal that is followed, on a clock that jumps."""

import asyncio
import os
from typing import TYPE_CHECKING, cast

import pytest
from tests.support.fakes.background import yields

from solo5_systemd.journal.lines import Line
from solo5_systemd.journal.reader import BUSY_INTERVAL_S, IDLE_INTERVAL_S, SILENT_AFTER_POLLS, PollTimer, batches

if TYPE_CHECKING:
    from solo5_systemd.journal.reader import JournalReader

pytestmark = pytest.mark.leaps


class FakeReader:
    """A journal whose polls return these numbers of lines."""

    def __init__(self, *polls: int) -> None:
        self._polls = list(polls)
        self.times: list[float] = []
        self.fd = os.eventfd(0)

    def watch(self) -> int:
        return self.fd

    def read_batch(self, size: int) -> list[Line]:
        self.times.append(asyncio.get_running_loop().time())
        return cast("list[Line]", [None] * min(self._polls.pop(0), size))

    def is_read(self) -> bool:
        return len(self._polls) == 1


async def intervals(*polls: int, timer: PollTimer | None = None) -> list[float]:
    """Return the seconds between the polls of a journal, without those that followed at once."""
    journal = FakeReader(*polls)
    found = batches(cast("JournalReader", journal), 5, journal.is_read, timer)
    assert [len(lines) async for lines in found] == list(polls)
    os.close(journal.fd)
    waits = [after - before for before, after in zip(journal.times, journal.times[1:], strict=False)]
    return [round(wait, 6) for wait in waits if wait]


async def test_an_idle_journal_is_polled_less_and_less_often() -> None:
    found = await intervals(*[0] * 8)
    assert found[:3] == [BUSY_INTERVAL_S, BUSY_INTERVAL_S * 2, BUSY_INTERVAL_S * 4]
    assert found[4:] == [IDLE_INTERVAL_S] * 3


async def test_a_line_makes_the_polls_frequent_again() -> None:
    assert (await intervals(*[0] * 8, 1, 0, 0))[-2:] == [BUSY_INTERVAL_S, BUSY_INTERVAL_S * 2]


async def test_a_full_batch_is_followed_by_the_next_at_once() -> None:
    assert await intervals(5, 5, 1, 0) == [BUSY_INTERVAL_S]


async def test_after_a_while_without_lines_only_the_signal_is_waited_for() -> None:
    timer = PollTimer(silent_interval_s=2)
    found = await intervals(*[0] * (SILENT_AFTER_POLLS + 4), 1, 0, 0, timer=timer)
    assert found[SILENT_AFTER_POLLS - 2 :] == [IDLE_INTERVAL_S] * 2 + [2] * 4 + [BUSY_INTERVAL_S, BUSY_INTERVAL_S * 2]
    assert 5 < sum(found[:SILENT_AFTER_POLLS]) < 15


async def test_the_signal_ends_a_silent_wait() -> None:
    loop, journal = asyncio.get_running_loop(), FakeReader()
    timer = PollTimer(silent_interval_s=3600)
    for _ in range(SILENT_AFTER_POLLS):
        await timer.wait(())
    before = loop.time()
    os.eventfd_write(journal.fd, 1)
    await timer.wait((journal.fd,))
    os.close(journal.fd)
    assert loop.time() == before


async def test_a_restart_ends_a_long_wait_and_no_short_one() -> None:
    loop = asyncio.get_running_loop()
    timer = PollTimer()
    for _ in range(6):
        await timer.wait(())
    for seconds in (0, BUSY_INTERVAL_S):
        before = loop.time()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(timer.wait(()))
            await yields()
            timer.restart()
        assert loop.time() - before == pytest.approx(seconds)
