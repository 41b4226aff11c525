"""What is sent to journald: streams of consoles, and entries of its native protocol."""

from pathlib import Path

import pytest

from solo5_systemd.base import journal_entry
from solo5_systemd.base.errors import HostError
from solo5_systemd.base.names import TaskName
from solo5_systemd.journal import console
from solo5_systemd.journal.console import Journal
from solo5_systemd.unit.state import ActiveState, UnitState

STATE = UnitState(
    task=TaskName("web"),
    unit="solo5-task-web.service",
    active=ActiveState.ACTIVE,
    invocation="1" * 32,
    main_pid=4711,
    log_fields={},
)


@pytest.fixture(autouse=True)
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    path = str(tmp_path / "journald")
    monkeypatch.setattr(console, "STDOUT_SOCKET", path)
    monkeypatch.setattr(journal_entry, "NATIVE_SOCKET", path)
    return path


async def test_a_namespace_has_a_journald_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "STDOUT_SOCKET", "/run/systemd/journal/stdout")
    with pytest.raises(HostError, match=r"/run/systemd/journal\.guests/stdout: No such file.*journald@guests\.service"):
        await Journal(str).open_stream("solo5-task-web.service", 4, "guests")


async def test_a_missing_journald_is_one_sentence() -> None:
    journal = Journal(str)
    for sent in (journal.open_stream(STATE.unit, 4, ""), journal.log_hung(STATE)):
        with pytest.raises(HostError, match="journald cannot be reached at .*: No such file or directory"):
            await sent
