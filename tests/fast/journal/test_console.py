"""Consoles, on a journal in memory; the real one is read in a machine."""

import asyncio
import os
import re
from collections.abc import Iterator
from contextlib import aclosing

import pytest
from tests.support.fakes.background import Background, yields
from tests.support.fakes.journal import Journal as Files

from solo5_systemd.base.names import TaskName
from solo5_systemd.base.paths import boot_id
from solo5_systemd.journal import console, reader, sync
from solo5_systemd.journal.console import Journal
from solo5_systemd.journal.lines import JournalPosition, Line, Stream
from solo5_systemd.unit.failure_messages import GENERIC_MESSAGE_IDS
from solo5_systemd.unit.state import ActiveState, UnitState

JOURNAL = Journal(lambda: "of-new-tasks")
STATE = UnitState(
    task=TaskName("web"),
    unit="solo5-task-web.service",
    active=ActiveState.ACTIVE,
    invocation="0123456789abcdef" * 2,
    started=1000,
    log_fields={},
)


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Iterator[Files]:
    files = Files()
    monkeypatch.setattr(reader, "JournalReader", files.open)
    yield files
    assert all(each.closed for of in (files, *files.others.values()) for each in of.readers)


async def read(last: int | None = None, state: UnitState = STATE) -> list[bytes]:
    return [line.message async for line in JOURNAL.lines(state, last=last)]


async def test_lines_of_an_earlier_task_of_this_name_are_not_read(files: Files) -> None:
    for text in ("earlier", "this"):
        files.write(text)
    files.earlier = 1
    state = STATE._replace(started=1001)
    assert await read(state=state) == await read(last=2, state=state) == [b"this"]


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


async def test_failure_messages_are_those_of_systemd_and_then_the_units_lines(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def synchronize(task: TaskName, namespace: str) -> None:
        assert namespace == "guests"

    monkeypatch.setattr(sync, "synchronize", synchronize)
    guests = files.others["guests"] = Files("guests")
    guests.write("solo5-hvt: no\n")
    files.message_ids[files.write("Starting").position.cursor] = min(GENERIC_MESSAGE_IDS)
    files.write("Failed to attach ")
    found = await JOURNAL.failure_messages("solo5-network@web.service", "guests")
    assert found == ["Failed to attach", "solo5-hvt: no"]
    [by_systemd], [by_processes] = files.readers, guests.readers
    assert {"UNIT=solo5-network@web.service", "_PID=1"} < set(by_systemd.matches)
    assert {"_SYSTEMD_UNIT=solo5-network@web.service", "_TRANSPORT=stdout"} < set(by_processes.matches)
    assert all(re.match("_BOOT_ID=[0-9a-f]{32}$", each.matches[-1]) for each in (by_systemd, by_processes))


def line(text: str, realtime: int, since_boot: int) -> Line:
    position = JournalPosition(cursor=text, monotonic=since_boot)
    return Line(unit=STATE.unit, stream=Stream.STDOUT, data=text.encode(), position=position, realtime=realtime)


@pytest.mark.parametrize(
    ("main_start", "said"), [(70, ["run", "set back"]), (0, ["run"])], ids=["a service", "of which nobody says more"]
)
def test_a_run_has_its_exit_messages_after_the_clock_was_set_back(
    files: Files, main_start: int, said: list[str]
) -> None:
    """That of `web`, which began at 5000, or 70 since boot."""
    guests = files.others["guests"] = Files("guests")
    files.lines = [line("before", 4990, 60), line("set back", 1000, 90)]
    guests.lines = [line("before", 4990, 60), line("run", 5010, 80), line("set back", 1000, 90)]
    state = STATE._replace(started=5000, main_start=main_start, log_fields={"SOLO5_LOG_NAMESPACE": "guests"})
    words = console.read_exit_messages(state)
    assert words.guest == said
    assert [text for text, _ in words.systemd] == said[1:], "PID 1 writes to the host's journal"
    assert f"_SYSTEMD_UNIT={STATE.unit}" in guests.readers[0].matches
    assert {f"UNIT={STATE.unit}", "_PID=1"} < set(files.readers[0].matches)
    assert f"_BOOT_ID={boot_id().replace('-', '')}" in files.readers[0].matches
