"""Undo the steps of a start, last first, also if it is cancelled meanwhile."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from typing import TypeVar

from solo5_systemd.base.errors import Solo5Error, TakenError

T = TypeVar("T")
Undoing = Callable[[], Coroutine[object, object, None]]

_LATER: set[asyncio.Future[None]] = set()
"""What is undone in the background: asyncio itself keeps no reference."""


class NameTakenError(TakenError):
    """A concurrent start of the same name has made its unit: its resources must not be undone by this start."""


class Undo(AsyncExitStack):
    """What undoes the steps of a start. Errors of it are dropped: the first error is reported."""

    def on_failure(self, undoing: Undoing) -> None:
        """Undo a step by its task's name if the start fails, unless another start has the name."""
        self._push(undoing, lambda error: not isinstance(error, NameTakenError))

    def on_any_failure(self, undoing: Undoing) -> None:
        """Undo a step if the start fails."""
        self._push(undoing, lambda _: True)

    def close_on_failure(self, held: list[int]) -> None:
        """Close descriptors if the start fails, also those that are added to the list later."""

        def leave(_type: object, error: BaseException | None, _traceback: object) -> None:
            for fd in held if error is not None else ():
                os.close(fd)

        self.push(leave)

    def _push(self, undoing: Undoing, applies: Callable[[BaseException], bool]) -> None:
        async def leave(_type: object, error: BaseException | None, _traceback: object) -> None:
            if error is not None and applies(error):
                await undo(undoing())

        self.push_async_exit(leave)


async def undo(undoing: Coroutine[object, object, None]) -> None:
    """Undo a step, also during a second cancellation. An error of it is dropped: the first error is reported."""
    with suppress(Solo5Error):
        await asyncio.shield(undoing)


async def completed(doing: Awaitable[T], undoing: Callable[[T], Coroutine[object, object, None]]) -> T:
    """Wait for a step in a thread, and return its result.

    If the start is cancelled, the thread goes on, and may hang in a file system: the step is undone when it returns.
    """
    done = asyncio.ensure_future(doing)
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:

        async def undo_result() -> None:
            await undoing(await done)

        later = asyncio.ensure_future(undo(undo_result()))
        _LATER.add(later)
        later.add_done_callback(_LATER.discard)
        raise
