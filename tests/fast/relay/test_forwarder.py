import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.fakes.clock import passed
from tests.support.fakes.journal import Journal
from tests.support.fakes.kernel import failing

from solo5_systemd.base.errors import HostError
from solo5_systemd.base.names import TaskName
from solo5_systemd.journal.lines import Stream
from solo5_systemd.journal.reader import PollTimer
from solo5_systemd.relay import forwarder as module
from solo5_systemd.relay import task_console
from solo5_systemd.relay.fifo_writer import READER_RETRY_INTERVAL_S, open_staging_pipe
from solo5_systemd.relay.forwarder import Forwarder
from solo5_systemd.relay.state_files import StateFiles

pytestmark = pytest.mark.leaps

WEB, DB = TaskName("web"), TaskName("db")


class Fifo:
    """A pipe: its write end is passed to the forwarder, its read end is read by the test."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe2(os.O_NONBLOCK)

    def read(self) -> str:
        try:
            return os.read(self.read_end, 1 << 20).decode()
        except BlockingIOError:
            return ""

    def open(self, path: Path) -> None:
        """Be a FIFO that has a name."""
        self.close()
        self.read_end = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self.write_end = os.open(path, os.O_WRONLY | os.O_NONBLOCK)

    def close(self) -> None:
        for fd in (self.read_end, self.write_end):
            if fd >= 0:
                os.close(fd)

    def lose_reader(self) -> None:
        os.close(self.read_end)
        self.read_end = -1


class Relay:
    """A forwarder on a journal in memory, while it runs."""

    def __init__(self, journal: Journal, directory: Path, timer: PollTimer | None = None) -> None:
        self.journal = journal
        self.forwarder = Forwarder(StateFiles(directory), lambda *_: None, journal.open, timer)
        self.fifos: list[Fifo] = []

    def forward(self, task: TaskName = WEB, since: int = 0, namespace: str = "") -> tuple[Fifo, Fifo]:
        out, err = Fifo(), Fifo()
        self.fifos += [out, err]
        fds = {Stream.STDOUT: out.write_end, Stream.STDERR: err.write_end}
        self.forwarder.forward(task, f"solo5-task-{task}.service", since, fds, namespace)
        return out, err


@asynccontextmanager
async def running(journal: Journal, directory: Path, timer: PollTimer | None = None) -> AsyncIterator[Relay]:
    relay = Relay(journal, directory, timer)
    async with asyncio.TaskGroup() as tasks:
        run = tasks.create_task(relay.forwarder.run())
        yield relay
        run.cancel()
    relay.forwarder.close()
    for fifo in relay.fifos:
        fifo.close()
    assert all(reader.closed for reader in journal.readers)


async def until(text: Callable[[], str], wanted: str) -> None:
    """Read until the total is the expected text."""
    got = ""
    async with asyncio.timeout(30):
        while got != wanted:
            await asyncio.sleep(0.005)
            got += text()
            assert wanted.startswith(got), got


async def test_lines_come_from_the_journal_of_the_tasks_namespace_only(tmp_path: Path) -> None:
    """Lines of its unit in another journal are ignored; the namespace is kept over a restart."""
    journal = Journal()
    async with running(journal, tmp_path) as relay:
        web, _ = relay.forward(WEB, namespace="guests")
        db, _ = relay.forward(DB)
        guests = journal.others["guests"]
        guests.write("hello\n")
        journal.write("forged\n")
        guests.write("forged\n", unit="solo5-task-db.service")
        journal.write("tables\n", unit="solo5-task-db.service")
        await until(web.read, "hello\n")
        await until(db.read, "tables\n")
    async with running(journal, tmp_path) as relay:
        relay.forwarder.restore({})
        web, _ = relay.forward(WEB, namespace="guests")
        guests.write("again\n")
        await until(web.read, "again\n")
        assert await relay.forwarder.drain(WEB)


async def test_a_change_of_the_journals_files_does_not_wait_for_the_next_poll(tmp_path: Path) -> None:
    journal = Journal()
    async with running(journal, tmp_path, PollTimer(3600, 3600)) as relay:
        out, _ = relay.forward()
        await passed(1)
        journal.write("late\n")
        journal.notify()
        await until(out.read, "late\n")


async def test_a_console_that_begins_does_not_wait_for_the_poll_of_an_idle_journal(tmp_path: Path) -> None:
    journal = Journal()
    async with running(journal, tmp_path, PollTimer(0.001, 3600)) as relay:
        await passed(8000)
        journal.write("early\n")
        out, _ = relay.forward()
        async with asyncio.timeout(1):
            await until(out.read, "early\n")


async def test_lines_before_since_are_not_forwarded(tmp_path: Path) -> None:
    journal = Journal()
    for number in range(6):
        journal.write(f"{number}\n")
    async with running(journal, tmp_path) as relay:
        out, _ = relay.forward(since=1004)
        journal.write("6\n")
        await until(out.read, "4\n5\n6\n")


@pytest.mark.parametrize("later", [1_000, 9_000], ids=["back", "forward"])
async def test_no_line_is_lost_when_the_clock_is_set_while_a_task_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: int
) -> None:
    journal = Journal()
    journal.booted = 60
    async with running(journal, tmp_path) as relay:
        monkeypatch.setattr(task_console, "clock_times", lambda: (5_000, 70))
        journal.write("before\n")
        web, _ = relay.forward(WEB, since=4_990)
        monkeypatch.setattr(task_console, "clock_times", lambda: (later, 80))
        for number in range(3):
            journal.write(f"{number}\n")
        await until(web.read, "before\n0\n1\n2\n")


async def test_a_restarted_relay_continues_also_where_run_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal()
    async with running(journal, tmp_path) as relay:
        out, err = relay.forward()
        journal.write("1\n")
        await until(out.read, "1\n")
        newer = [os.dup(out.write_end), open_staging_pipe(), os.dup(err.write_end), open_staging_pipe()]
        kept = {"c1": newer, "c2": [os.dup(0) for _ in range(4)], "o3": [os.dup(0)]}
        rest = os.dup(out.read_end)
    journal.write("2\n")
    async with running(journal, tmp_path) as relay:
        with monkeypatch.context() as full:
            full.setattr(os, "replace", failing(errno.ENOSPC))
            relay.forwarder.restore(kept)
        for fd in (*kept["c2"], *kept["o3"]):
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(fd)
        journal.write("3\n")
        await until(lambda: _read(rest), "2\n3\n")
    os.close(rest)


def _read(fd: int) -> str:
    try:
        return os.read(fd, 1 << 16).decode()
    except BlockingIOError:
        return ""


async def test_consoles_that_are_behind_take_turns_and_leave_no_journal_open(tmp_path: Path) -> None:
    """An open journal takes a descriptor for each of its files: with those of many consoles, none would be left."""
    journal, opened, got = Journal(), set[int](), ["", ""]
    for task in [WEB, DB] * 900:
        journal.write("line\n", unit=f"solo5-task-{task}.service")
    async with running(journal, tmp_path) as relay:
        outs = [relay.forward(task)[0] for task in (WEB, DB)]
        while [text.count("line\n") for text in got] != [900, 900]:
            await asyncio.sleep(0)
            opened.add(sum(not reader.closed for reader in journal.readers))
            got = [text + out.read() for text, out in zip(got, outs, strict=True)]
    assert opened == {1}


async def test_a_reader_that_comes_back_gets_what_was_in_memory_when_it_left(tmp_path: Path) -> None:
    journal, path = Journal(), tmp_path / "fifo"
    os.mkfifo(path)
    lines = [f"{number:099}\n" for number in range(900)]
    async with running(journal, tmp_path) as relay:
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        out = Fifo()
        relay.fifos.append(out)
        out.open(path)
        relay.forwarder.forward(WEB, "solo5-task-web.service", 0, dict.fromkeys(Stream, out.write_end))
        for line in lines:
            journal.write(line)
        await passed(1)  # it is full
        os.close(reader)
        out.lose_reader()
        await passed(2 * READER_RETRY_INTERVAL_S)
        out.read_end = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        await until(out.read, "".join(lines))


async def test_an_ended_task_is_removed_when_its_fifo_is_unreachable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = Journal()
    async with running(journal, tmp_path / "..") as relay:
        path = tmp_path / "fifo"
        os.mkfifo(path)
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        writer = os.open(path, os.O_WRONLY)
        fds = dict.fromkeys(Stream, writer)
        relay.forwarder.forward(WEB, "solo5-task-web.service", 0, fds)
        os.close(writer)
        os.close(reader)
        journal.write("never read\n")
        assert not await relay.forwarder.drain(WEB)
        path.unlink()
        await passed(2 * READER_RETRY_INTERVAL_S)
        assert relay.forwarder.tasks == []
    assert "last lines of task web not delivered" in caplog.text


async def test_a_console_with_unlinked_fifos_is_removed_unless_they_have_a_reader(
    tmp_path: Path,
) -> None:
    async with running(Journal(), tmp_path) as relay:
        out, err = relay.forward()
        for name, fifo in (("out", out), ("err", err)):
            os.mkfifo(tmp_path / name)
            fifo.open(tmp_path / name)
        fds = {Stream.STDOUT: out.write_end, Stream.STDERR: err.write_end}
        relay.forwarder.forward(WEB, "solo5-task-web.service", 0, fds)
        for fifo in (out, err):
            os.close(fifo.write_end)
            fifo.write_end = -1
        err.lose_reader()
        await passed(2 * module.UNREACHABLE_CHECK_INTERVAL_S)
        (tmp_path / "out").unlink()
        (tmp_path / "err").unlink()
        await passed(2 * module.UNREACHABLE_CHECK_INTERVAL_S)
        assert relay.forwarder.tasks == [WEB]
        out.lose_reader()
        await passed(2 * module.UNREACHABLE_CHECK_INTERVAL_S)
        assert relay.forwarder.tasks == []
        assert list(tmp_path.iterdir()) == []


async def test_each_console_has_a_unique_number_also_after_a_restart(tmp_path: Path) -> None:
    async with running(Journal(), tmp_path) as relay:
        for name in ("a", "b", "c"):
            relay.forward(TaskName(name))
        await relay.forwarder.drain(TaskName("b"))
        relay.forward(TaskName("d"))
    assert numbers(tmp_path) == {"a": 1, "c": 3, "d": 2}
    async with running(Journal(), tmp_path) as relay:
        relay.forwarder.restore({})
    assert numbers(tmp_path) == {"a": 1, "c": 3, "d": 2}


def numbers(directory: Path) -> dict[str, int]:
    return {str(record.task): record.number for record in StateFiles(directory).load()}


async def test_a_console_whose_state_cannot_be_saved_is_removed_or_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal()
    async with running(journal, tmp_path) as relay:
        before = descriptors()
        with monkeypatch.context() as full:
            full.setattr(os, "replace", failing(errno.ENOSPC))
            with pytest.raises(HostError, match="No space left"):
                relay.forwarder.forward(WEB, "solo5-task-web.service", 0, dict.fromkeys(Stream, 0))
        assert descriptors() == before
        assert list(tmp_path.iterdir()) == []
        out, _ = relay.forward()
        with monkeypatch.context() as full:
            full.setattr(os, "pwrite", failing(errno.ENOSPC))
            with pytest.raises(HostError, match="No space left"):
                relay.forward()
        journal.write("1\n")
        await until(out.read, "1\n")


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
