"""`solo5ctl` called as a function, with an engine in memory."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import BytesIO

import pytest
from tests.support.fakes.engine import FakeRuntime

from solo5_systemd.cli.context import CommandContext
from solo5_systemd.cli.main import run
from solo5_systemd.cli.screen import Screen


class Stream(BytesIO):
    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@dataclass(frozen=True)
class Result:
    status: int
    out: str
    err: str


class Solo5ctl:
    def __init__(self, engine: FakeRuntime) -> None:
        self.engine = engine

    def __call__(
        self, *words: str, terminal: bool = False, root: bool = True, environment: dict[str, str] | None = None
    ) -> Result:
        out, err = Stream(terminal=terminal), Stream(terminal=terminal)
        screen = Screen(out, err, environment or {})
        status = run(words, CommandContext(screen, connect=self._connect, root=root))
        return Result(status, out.getvalue().decode(), err.getvalue().decode())

    @asynccontextmanager
    async def _connect(self) -> AsyncGenerator[FakeRuntime, None]:
        yield self.engine


@pytest.fixture
def engine() -> FakeRuntime:
    return FakeRuntime()


@pytest.fixture
def solo5ctl(engine: FakeRuntime) -> Solo5ctl:
    return Solo5ctl(engine)
