import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from solo5_systemd.journal import sync
from solo5_systemd.journal.sync import synchronize

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    address = str(tmp_path / "varlink")
    monkeypatch.setattr(sync, "SOCKET", address)
    return address


@asynccontextmanager
async def journald(place: str, answer: Answer) -> AsyncIterator[None]:
    async with await asyncio.start_unix_server(answer, place):
        yield


async def test_it_returns_when_journald_has_written_all(place: str) -> None:
    asked: list[bytes] = []
    written = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\0"))
        await written.wait()
        writer.write(b'{"parameters":{}}\0')
        writer.close()

    async with journald(place, answer):
        waiting = asyncio.ensure_future(synchronize())
        done, _ = await asyncio.wait((waiting,), timeout=0.1)
        assert not done
        written.set()
        await waiting
    assert asked == [b'{"method":"io.systemd.Journal.Synchronize"}\0']


async def test_a_journald_that_hangs_up_or_is_not_there_is_not_waited_for(place: str) -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    await asyncio.wait_for(synchronize(), 1)
    async with journald(place, hang_up):
        await asyncio.wait_for(synchronize(), 1)


async def test_a_journald_that_is_stuck_delays_only_for_so_long(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "PATIENCE", 0.05)

    async def stuck(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with journald(place, stuck):
        await asyncio.wait_for(synchronize(), 1)
