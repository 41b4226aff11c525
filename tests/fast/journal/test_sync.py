import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.fakes.clock import taken
from tests.support.fakes.kernel import failing

from solo5_systemd.base.names import TaskName
from solo5_systemd.journal import sync
from solo5_systemd.journal.sync import synchronize

TASK = TaskName("web")

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


async def done(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b'{"parameters":{}}\0')
    writer.close()


async def test_the_call_is_repeated_when_journald_restarts(place: str) -> None:
    """The connection breaks during the call, then the socket refuses connections, then the next journald replies."""
    asked = asyncio.Event()

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\0")
        asked.set()
        writer.close()

    async with journald(place, hang_up):
        waiting = asyncio.ensure_future(synchronize(TASK))
        await asyncio.wait_for(asked.wait(), 30)
    with socket.socket(socket.AF_UNIX) as dead:
        Path(place).unlink(missing_ok=True)
        dead.bind(place)
    over, _ = await asyncio.wait((waiting,), timeout=0.2)
    assert not over
    Path(place).unlink()
    async with journald(place, done):
        await asyncio.wait_for(waiting, 30)


@pytest.mark.leaps
async def test_a_missing_or_inaccessible_journald_is_not_waited_for(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await taken(synchronize(TASK)) == 0
    monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", failing(errno.EACCES))
    assert await taken(synchronize(TASK)) == 0


@pytest.mark.leaps
async def test_a_hung_journald_is_a_timeout(place: str) -> None:
    async def stuck(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        await writer.wait_closed()
        ended.set()

    ended = asyncio.Event()
    async with journald(place, stuck):
        assert await taken(synchronize(TASK)) == pytest.approx(sync.SYNC_TIMEOUT_S)
        await ended.wait()
