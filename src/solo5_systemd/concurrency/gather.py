"""Concurrent reads that end together."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def gather(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Await all coroutines concurrently and return their results in order.

    Unlike `asyncio.gather`, no other one is running any more when the first error is raised; unlike
    `asyncio.TaskGroup`, that error is raised itself, not in a group.

    Raises:
        Exception: the first error, after the others were cancelled and have ended.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in coroutines]
    except BaseExceptionGroup as errors:
        first = errors.exceptions[0]
    else:
        return [task.result() for task in tasks]
    raise first  # here, so that its own cause and context stay
