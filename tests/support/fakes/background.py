"""Concurrent work of a test."""

import asyncio
from collections.abc import Coroutine
from typing import Generic, TypeVar

Result = TypeVar("Result")


async def yields(times: int = 50) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


class Background(Generic[Result]):
    """A task that is cancelled at the end of the block."""

    def __init__(self, work: Coroutine[object, object, Result]) -> None:
        self.task = asyncio.ensure_future(work)

    async def __aenter__(self) -> "asyncio.Future[Result]":
        await yields()
        return self.task

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
