"""The polls of a journal that is followed."""

from typing import TYPE_CHECKING, cast

import pytest

from solo5_systemd.journal import follow
from solo5_systemd.journal.follow import IDLE_INTERVAL_S, POLL_INTERVAL_S, batches
from solo5_systemd.journal.lines import Line

if TYPE_CHECKING:
    from solo5_systemd.journal.reader import JournalReader


class FakeReader:
    """A journal whose polls return these numbers of lines."""

    def __init__(self, *polls: int) -> None:
        self._polls = list(polls)

    def watch(self) -> int:
        return -1

    def read_batch(self, size: int) -> list[Line]:
        return cast("list[Line]", [None] * min(self._polls.pop(0), size))

    def is_read(self) -> bool:
        return len(self._polls) == 1


async def intervals(monkeypatch: pytest.MonkeyPatch, *polls: int, **limits: float) -> list[float]:
    """Return the seconds between the polls of a journal."""
    found: list[float] = []

    async def changed(_fds: object, timeout_s: float) -> None:
        found.append(timeout_s)

    monkeypatch.setattr(follow, "changed", changed)
    journal = FakeReader(*polls)
    sizes = [len(lines) async for lines in batches(cast("JournalReader", journal), 5, journal.is_read, **limits)]
    assert sizes == list(polls)
    return found


async def test_an_idle_journal_is_polled_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await intervals(monkeypatch, *[0] * 8)
    assert found[:3] == [POLL_INTERVAL_S, POLL_INTERVAL_S * 2, POLL_INTERVAL_S * 4]
    assert set(found[4:]) == {IDLE_INTERVAL_S}


async def test_a_line_makes_the_polls_frequent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await intervals(monkeypatch, *[0] * 8, 1, 0, 0))[-2:] == [POLL_INTERVAL_S, POLL_INTERVAL_S * 2]


async def test_a_full_batch_is_followed_by_the_next_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await intervals(monkeypatch, 5, 5, 1, 0) == [POLL_INTERVAL_S]


async def test_polls_can_be_of_one_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await intervals(monkeypatch, *[0] * 8, poll_interval_s=0.05, idle_interval_s=0.05)
    assert set(found) == {0.05}
