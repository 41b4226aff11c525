"""`solo5ctl` called as a function, with an engine in memory."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from io import BytesIO

import pytest
from tests.support.fakes.engine import FakeRuntime

from solo5_systemd.cli import context
from solo5_systemd.cli.context import CommandContext
from solo5_systemd.cli.main import run
from solo5_systemd.cli.terminal import Screen
from solo5_systemd.engine import queries


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
        status = run(words, CommandContext(Screen(out, err, environment or {}), root=root))
        return Result(status, out.getvalue().decode(), err.getvalue().decode())


@asynccontextmanager
async def connected(engine: FakeRuntime) -> AsyncGenerator[FakeRuntime, None]:
    yield engine


@pytest.fixture
def engine() -> FakeRuntime:
    return FakeRuntime()


@pytest.fixture
def solo5ctl(engine: FakeRuntime, monkeypatch: pytest.MonkeyPatch) -> Solo5ctl:
    monkeypatch.setattr(context, "connect", lambda: connected(engine))
    monkeypatch.setattr(context, "finished", asyncio.run)  # steps of fakes yield to an event loop
    monkeypatch.setattr(queries, "queries", lambda: nullcontext(engine))
    return Solo5ctl(engine)
