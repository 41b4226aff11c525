"""Calls of fakes as steps, which are counted, recorded, and fail or hang on request."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Steps:
    """The steps of one test, and their faults.

    Attributes:
        taken: names of all steps, in order.
        errors: the error of a step, by name, raised before its effect.
        hang_at: number of the step that hangs; None: none.
        hang_on: name of the step that hangs the next time; empty: none.
        late: a step hangs after its effect instead of before: its reply is lost.
        hanging: set when a step hangs.
        go_on: set it to let the hanging step return.
    """

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.errors: dict[str, Exception] = {}
        self.hang_at: int | None = None
        self.hang_on = ""
        self.late = False
        self.hanging = asyncio.Event()
        self.go_on = asyncio.Event()

    @asynccontextmanager
    async def step(self, name: str) -> AsyncGenerator[None, None]:
        """Take a step; its effect is the body of the block."""
        number = len(self.taken)
        self.taken.append(name)
        hangs = number == self.hang_at or name == self.hang_on
        self.hang_on = "" if name == self.hang_on else self.hang_on
        if hangs and not self.late:
            await self._hang()
        await asyncio.sleep(0)
        if name in self.errors:
            raise self.errors[name]
        yield
        if hangs and self.late:
            await self._hang()

    async def _hang(self) -> None:
        self.hanging.set()
        await self.go_on.wait()
