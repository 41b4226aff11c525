"""Concurrent coroutines: results in order, and none left running after an error."""

import asyncio

import pytest

from solo5_systemd.concurrency.gather import gather


async def wait(ended: list[str]) -> None:
    """Wait until cancelled, and record the end."""
    try:
        await asyncio.Event().wait()
    finally:
        ended.append("wait")


async def test_results_are_in_order() -> None:
    async def after(turns: int) -> int:
        for _ in range(turns):
            await asyncio.sleep(0)
        return turns

    assert await gather(map(after, (3, 1, 2))) == [3, 1, 2]
    assert await gather(map(after, ())) == []


async def test_no_coroutine_runs_on_after_an_error() -> None:
    ended: list[str] = []

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("first")

    with pytest.raises(ValueError, match="first"):
        await gather((wait(ended), fail(), wait(ended)))
    assert ended == ["wait", "wait"]


async def test_a_cancellation_ends_all() -> None:
    ended: list[str] = []

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await gather(wait(ended) for _ in range(2))
    assert ended == ["wait", "wait"]
