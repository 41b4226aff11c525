"""Code that runs with or without an event loop; asyncio is not imported for it."""

import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def is_event_loop() -> bool:
    """Return whether an event loop runs in this thread."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None  # noqa: SLF001 - documented for other modules


async def off_the_loop(call: Callable[[], T]) -> T:
    """Call a function in a thread, or in this one where no event loop runs, as for `solo5ctl inspect`."""
    if not is_event_loop():
        return call()
    import asyncio  # a verb without an event loop does not import it

    return await asyncio.to_thread(call)


async def on_a_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine that needs an event loop, in one of its own where none runs."""
    if is_event_loop():
        return await coroutine
    import asyncio

    return asyncio.run(coroutine)


async def pause() -> None:
    """Let other tasks run; without effect where no event loop does."""
    if is_event_loop():
        import asyncio

        await asyncio.sleep(0)
