"""Every call of a fake part is a step: counted, recorded, and made to fail or to hang where a test says so."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Steps:
    """What was asked of the machine, and what is to go wrong.

    Attributes:
        taken: the names of all steps, in order.
        errors: raised by the step of that name, before anything has happened.
        hang_at: the number of the step that hangs; None: none does.
        hang_on: the name of a step that hangs when it is taken next; empty: none does.
        late: it hangs after its effect instead of before: the answer is lost.
        hanging: set when it hangs.
        go_on: set to have it end after all.
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
        """One call; its effect is the body of the block."""
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
