import asyncio
import os
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from solo5_systemd.errors import HostError
from solo5_systemd.journal import journalctl
from solo5_systemd.journal.export import Stream
from solo5_systemd.journal.journalctl import Journal
from solo5_systemd.names import TaskName
from solo5_systemd.unit.state import ActiveState, UnitState

JOURNAL = Journal(lambda: "of-new-tasks")
STATE = UnitState(
    task=TaskName("web"),
    unit="solo5-task-web.service",
    active=ActiveState.ACTIVE,
    invocation="0123456789abcdef" * 2,
    log_fields={},
)
LINES = r"printf '__CURSOR=c1\nPRIORITY=6\nMESSAGE=hello\n\n__CURSOR=c2\nPRIORITY=4\nMESSAGE=solo5-hvt: no \n\n'"
LEAVE_PID = 'echo $$ >"$0.pid"'


Program = Callable[[str], Path]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Replace journalctl by a shell script that saves its arguments."""

    def make(script: str) -> Path:
        path = tmp_path / "journalctl"
        path.write_text(f'#!/bin/sh\necho "$*" >"$0.arguments"\n{script}\n')
        path.chmod(0o755)
        monkeypatch.setattr(journalctl, "JOURNALCTL", str(path))
        return path

    return make


def arguments(program: Path) -> list[str]:
    return Path(f"{program}.arguments").read_text().split()


def is_gone(program: Path) -> bool:
    pid = int(Path(f"{program}.pid").read_text())
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_the_lines_of_one_invocation_are_read(program: Program) -> None:
    path = program(LINES)
    entries = [entry async for entry in JOURNAL.entries(STATE, follow=False)]
    assert [(it.cursor, it.stream, it.message) for it in entries] == [
        ("c1", Stream.STDOUT, b"hello"),
        ("c2", Stream.STDERR, b"solo5-hvt: no "),
    ]
    assert {f"_SYSTEMD_UNIT={STATE.unit}", "_TRANSPORT=stdout", "--lines=all", "--since=@0"} <= set(arguments(path))
    assert "--follow" not in arguments(path)


async def test_lines_of_an_earlier_task_of_this_name_are_not_read(program: Program) -> None:
    path = program(LINES)
    state = replace(STATE, started=2_000_000_000_000_000)
    assert [entry async for entry in JOURNAL.entries(state, follow=False)] == []
    assert "--since=@2000000000" in arguments(path)


async def test_reading_starts_after_a_cursor_or_with_the_last_lines(program: Program) -> None:
    path = program(LINES)
    assert [entry async for entry in JOURNAL.entries(STATE, follow=False, last=7, after="c0")]
    assert {"--lines=7", "--after-cursor=c0"} <= set(arguments(path))


async def test_a_closed_reader_terminates_its_journalctl(program: Program) -> None:
    path = program(f"{LEAVE_PID}\n{LINES}\nexec sleep 60")
    async with aclosing(JOURNAL.entries(STATE, follow=True)) as entries:
        assert (await anext(entries)).message == b"hello"
        assert "--follow" in arguments(path)
        assert not is_gone(path)
    assert is_gone(path)


async def test_a_cancelled_reader_terminates_its_journalctl(program: Program) -> None:
    path = program(f"{LINES}\n{LEAVE_PID}\nexec sleep 60")

    async def follow() -> None:
        async with aclosing(JOURNAL.entries(STATE, follow=True)) as entries:
            async for _ in entries:
                pass

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(follow(), 0.5)
    assert is_gone(path)


SYSTEMD = "printf 'MESSAGE=Failed to attach\nMESSAGE_ID=%s\n\nMESSAGE=Starting\nMESSAGE_ID=%s\n\n'"


async def test_failure_messages_are_those_of_systemd_and_then_the_units_lines(program: Program) -> None:
    nothing = min(journalctl.GENERIC_MESSAGE_IDS)
    systemd = SYSTEMD % ("0" * 32, nothing)
    path = program(f'case "$*" in *_PID=1*) {systemd} ;; *) {LINES} ;; esac')
    assert list(await JOURNAL.failure_messages("solo5-network@web.service", "")) == [
        "Failed to attach",
        "hello",
        "solo5-hvt: no",
    ]
    assert "_SYSTEMD_UNIT=solo5-network@web.service" in arguments(path)


async def test_a_missing_journalctl_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journalctl, "JOURNALCTL", str(tmp_path / "journalctl"))
    with pytest.raises(HostError, match="the journal cannot be read: .*: No such file or directory"):
        await JOURNAL.failure_messages("solo5-network@web.service", "")


async def test_invalid_output_of_journalctl_is_an_error(program: Program) -> None:
    program(r"printf '__REALTIME_TIMESTAMP=soon\n\n'")
    with pytest.raises(HostError, match="the journal cannot be read: .* printed an invalid timestamp b'soon'"):
        [entry async for entry in JOURNAL.entries(STATE, follow=False)]


async def test_stderr_is_a_stream_under_the_tasks_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = {("web", "solo5-task-web.service", 4, ""): 7, ("web", "solo5-task-web.service", 4, "guests"): 8}
    monkeypatch.setattr(journalctl, "open_stream", lambda *header: streams[header])
    assert await JOURNAL.open_stderr("solo5-task-web.service", "") == 7
    assert await JOURNAL.open_stderr("solo5-task-web.service", "guests") == 8


async def test_the_lines_of_a_task_are_read_in_its_own_namespace(program: Program) -> None:
    """Also if new tasks have another namespace meanwhile."""
    path = program("true")
    state = replace(STATE, log_fields={"SOLO5_LOG_NAMESPACE": "guests"})
    assert [entry async for entry in JOURNAL.entries(state, follow=False)] == []
    assert "--namespace=guests" in arguments(path)
    assert [entry async for entry in JOURNAL.entries(STATE, follow=False)] == []
    assert not any(word.startswith("--namespace") for word in arguments(path))
