"""Consoles, on a journal in memory; the real one is read in a machine."""

import asyncio
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace

import pytest
from tests.support.fakes.background import Background, yields

from solo5_systemd.base.errors import HostError
from solo5_systemd.base.names import TaskName
from solo5_systemd.base.paths import boot_id
from solo5_systemd.journal import console, reader
from solo5_systemd.journal.console import Journal
from solo5_systemd.journal.lines import JournalPosition, Line, Stream
from solo5_systemd.journal.reader import JournalReader
from solo5_systemd.unit.exit_messages import GENERIC_MESSAGE_IDS
from solo5_systemd.unit.state import ActiveState, UnitState

JOURNAL = Journal(lambda: "of-new-tasks")
STATE = UnitState(
    task=TaskName("web"),
    unit="solo5-task-web.service",
    active=ActiveState.ACTIVE,
    invocation="0123456789abcdef" * 2,
    started=100,
    log_fields={},
)


class Files:
    """The files of a journal.

    Attributes:
        lines: what is written.
        new: lines in a file that a reader opens at its next refresh.
        readable: a reader may open them.
        readers: all readers.
    """

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.new: list[Line] = []
        self.readable = True
        self.readers: list[Reader] = []

    def write(self, text: str, realtime: int = 100, stream: Stream = Stream.STDOUT) -> Line:
        position = JournalPosition(cursor=f"c{len(self.lines)}", monotonic=0)
        line = Line(unit=STATE.unit, stream=stream, data=text.encode() + b"\n", position=position, realtime=realtime)
        self.lines.append(line)
        return line

    def open(self, matches: Sequence[str], namespace: str = "") -> JournalReader:
        self.readers.append(Reader(self, matches, namespace))
        return self.readers[-1]


class Reader(JournalReader):
    def __init__(self, files: Files, matches: Sequence[str], namespace: str) -> None:
        self.files, self.matches, self.namespace = files, tuple(matches), namespace
        self.watched = -1
        self.sought: tuple[str, int] | None = None
        self.closed = False
        self._next = 0

    @property
    def has_files(self) -> bool:
        return self.files.readable

    def watch(self) -> int:
        if self.watched < 0:
            self.watched = os.eventfd(0)
        return self.watched

    def refresh(self) -> None:
        self.files.lines += self.files.new
        self.files.new = []

    def seek_realtime(self, realtime: int) -> None:
        self.sought = ("realtime", realtime)

    def seek_last(self, count: int) -> None:
        self.sought = ("last", count)
        self._next = max(0, len(self.files.lines) - count)

    def next(self) -> Line | None:
        if self._next >= len(self.files.lines):
            return None
        self._next += 1
        return self.files.lines[self._next - 1]

    def last(self, count: int) -> list[tuple[Line, str]]:
        generic, lines = min(GENERIC_MESSAGE_IDS), self.files.lines[: -count - 1 : -1]
        return [(line, generic if line.data.startswith(b"Starting") else "") for line in lines]

    def close(self) -> None:
        if self.watched >= 0:
            os.close(self.watched)
        self.closed = True


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Iterator[Files]:
    files = Files()
    monkeypatch.setattr(reader, "JournalReader", files.open)
    yield files
    assert [each for each in files.readers if not each.closed] == []


async def read(last: int | None = None, state: UnitState = STATE) -> list[bytes]:
    return [line.message async for line in JOURNAL.lines(state, last=last)]


async def test_the_lines_of_one_run_are_read_to_the_end(files: Files) -> None:
    written = [files.write("hello"), files.write("solo5-hvt: no ", stream=Stream.STDERR)]
    assert [line async for line in JOURNAL.lines(STATE)] == written
    [journal] = files.readers
    assert journal.matches == (f"_SYSTEMD_UNIT={STATE.unit}", "_TRANSPORT=stdout")
    assert (journal.sought, journal.watched) == (("realtime", 100), -1)


async def test_lines_of_an_earlier_task_of_this_name_are_not_read(files: Files) -> None:
    files.write("earlier", realtime=99)
    files.write("this")
    assert await read() == await read(last=2) == [b"this"]


async def test_reading_starts_with_the_last_lines(files: Files) -> None:
    for text in "abc":
        files.write(text)
    assert await read(last=2) == [b"b", b"c"]
    assert files.readers[-1].sought == ("last", 2)


async def test_new_lines_are_followed_until_all_are_written(files: Files) -> None:
    is_written = False
    files.write("a")
    async with aclosing(JOURNAL.lines(STATE, until=lambda: is_written)) as lines:
        assert (await anext(lines)).message == b"a"
        following = asyncio.ensure_future(anext(lines))
        await yields()
        assert not following.done()
        files.write("b")
        assert (await following).message == b"b"
        is_written = True
        files.new = [replace(files.lines[0], data=b"c\n")]
        assert [line.message async for line in lines] == [b"c"]


async def test_a_console_of_any_length_leaves_other_tasks_their_turn(files: Files) -> None:
    for number in range(10 * reader.BATCH_LINES):
        files.write(str(number))
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with Background(others()):
        turns = 0
        await read()
    assert turns >= 9


async def test_a_cancelled_follower_closes_its_journal(files: Files) -> None:
    async def following() -> None:
        async with aclosing(JOURNAL.lines(STATE, until=lambda: False)) as lines:
            async for _ in lines:
                pass

    async with Background(following()):
        pass
    assert files.readers[0].closed


@pytest.mark.parametrize("readable, user, ends", [(False, 1000, True), (True, 1000, False), (False, 0, False)])
async def test_a_follower_without_permission_ends_at_once(
    files: Files, monkeypatch: pytest.MonkeyPatch, readable: bool, user: int, ends: bool
) -> None:
    """Root waits, for a namespace that has no file yet."""
    monkeypatch.setattr(os, "geteuid", lambda: user)
    files.readable = readable
    async with aclosing(JOURNAL.lines(STATE, until=lambda: False)) as lines:
        done = asyncio.ensure_future(anext(lines, None))
        await yields()
        assert done.done() is ends
        done.cancel()
        await asyncio.gather(done, return_exceptions=True)


async def test_failure_messages_are_those_of_systemd_and_then_the_units_lines(files: Files) -> None:
    for text in ("Starting", "Failed to attach ", "solo5-hvt: no"):
        files.write(text)
    found = console.read_failure_messages("solo5-network@web.service", "guests")
    assert found == ["Failed to attach", "solo5-hvt: no", "Starting", "Failed to attach", "solo5-hvt: no"]
    by_systemd, by_processes = files.readers
    assert {"UNIT=solo5-network@web.service", "_PID=1"} < set(by_systemd.matches)
    assert all(re.match("_BOOT_ID=[0-9a-f]{32}$", each.matches[-1]) for each in files.readers)
    assert {"_SYSTEMD_UNIT=solo5-network@web.service", "_TRANSPORT=stdout"} < set(by_processes.matches)
    assert (by_systemd.namespace, by_processes.namespace) == ("", "guests")


async def test_a_missing_library_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    reader._library.cache_clear()
    monkeypatch.setattr(reader, "LIBRARY", "libnothing.so.0")
    with pytest.raises(HostError, match="library libnothing.so.0 is missing"):
        await read()


def line(text: str, realtime: int, since_boot: int) -> Line:
    position = JournalPosition(cursor=text, monotonic=since_boot)
    return Line(unit=STATE.unit, stream=Stream.STDOUT, data=text.encode(), position=position, realtime=realtime)


class SetBack:
    """Journals whose clock was set back during the run of `web` that began at 5000, or 70 since boot: the host's, and
    the namespace of its console."""

    asked: Sequence[str] = ()

    def __init__(self, matches: Sequence[str], namespace: str = "") -> None:
        SetBack.asked = matches
        self.is_of_consoles = namespace == "guests"

    def last(self, count: int) -> list[tuple[Line, str]]:
        if f"_SYSTEMD_UNIT={STATE.unit}" in self.asked and self.is_of_consoles:
            lines = [line("set back", 1000, 90), line("run", 5010, 80), line("before", 4990, 60)]
            return [(each, "") for each in lines[:count]]
        remarks = [(line("set back", 1000, 90), "4f"), (line("before", 4990, 60), "")]
        of_pid_1 = {f"UNIT={STATE.unit}", "_PID=1"} < set(self.asked) and not self.is_of_consoles
        return remarks[:count] if of_pid_1 else []

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize(
    ("main_start", "said"), [(70, ["run", "set back"]), (0, ["run"])], ids=["a service", "of which nobody says more"]
)
def test_a_run_has_its_exit_messages_after_the_clock_was_set_back(
    monkeypatch: pytest.MonkeyPatch, main_start: int, said: list[str]
) -> None:
    monkeypatch.setattr(reader, "JournalReader", SetBack)
    state = replace(STATE, started=5000, main_start=main_start, log_fields={"SOLO5_LOG_NAMESPACE": "guests"})
    words = console.read_exit_messages(state)
    assert words.guest == said
    assert [text for text, _ in words.systemd] == said[1:], "PID 1 writes to the host's journal"
    assert f"_BOOT_ID={boot_id().replace('-', '')}" in SetBack.asked
