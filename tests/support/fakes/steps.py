"""Calls of fakes as steps, which are counted, recorded, and fail or hang on request."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any


class Steps:
    """The steps of one test, and their faults."""

    def __init__(self) -> None:
        self.taken: list[str] = []  # names of all steps, in order
        self.errors: dict[str, Exception] = {}  # the error of a step, by name, raised before its effect
        self.hang_at: int | None = None  # number of the step that hangs; None: none
        self.hang_on = ""  # name of the step that hangs the next time; empty: none
        self.late = False  # a step hangs after its effect instead of before: its reply is lost
        self.hanging = asyncio.Event()  # set when a step hangs
        self.go_on = asyncio.Event()  # set it to let the hanging step return

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

    async def take(self, name: str) -> None:
        """Take a step without an effect."""
        async with self.step(name):
            pass

    async def _hang(self) -> None:
        self.hanging.set()
        await self.go_on.wait()


def step(name: str, attribute: str = "", *, result: object = None) -> Any:
    """Return a method of a fake that takes a step, named after its arguments, and returns an attribute or a result."""

    async def call(fake: Any, *arguments: object, **_: object) -> Any:
        async with fake._steps.step(name.format(*arguments)):
            return getattr(fake, attribute) if attribute else result

    return call
