"""When the network of a task without a run is looked at again."""

import asyncio

import pytest

from solo5_systemd.base.names import TaskName
from solo5_systemd.networkd.releases import Releases

A = TaskName("a")


async def test_what_happens_during_a_release_is_looked_at_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the end of a socket unit while its task begins to wait."""
    releases, news = Releases.__new__(Releases), asyncio.Event()
    releases._without_run, releases._stopping = {A: news}, False
    looks: list[bool] = []

    async def is_settled(task: TaskName) -> bool:
        looks.append(news.is_set())
        if len(looks) == 1:
            releases._release_after_run(task)
        return True

    monkeypatch.setattr(releases, "_is_settled", is_settled)
    await releases._wait_and_release(A, news)
    assert looks == [False, False]
    assert releases._without_run == {}
