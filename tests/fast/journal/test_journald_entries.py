"""Entries sent to journald's native socket."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from solo5_systemd.base.errors import HostError
from solo5_systemd.base.names import TaskName
from solo5_systemd.journal import journald as module
from solo5_systemd.unit.state import ActiveState, UnitState

STATE = UnitState(
    task=TaskName("web"),
    unit="solo5-task-web.service",
    active=ActiveState.ACTIVE,
    invocation="1" * 32,
    main_pid=4711,
    log_fields={},
)


@pytest.fixture
def journald(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    monkeypatch.setattr(module, "NATIVE_SOCKET", str(tmp_path / "socket"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journald:
        journald.bind(str(tmp_path / "socket"))
        journald.settimeout(5)
        yield journald


def test_a_hung_tender_is_logged_with_its_task_and_pid(journald: socket.socket) -> None:
    module.log_hung(STATE)
    fields = dict(line.split("=", 1) for line in journald.recv(4096).decode().splitlines())
    assert fields["SOLO5_TASK"] == TaskName("web")
    assert fields["OBJECT_PID"] == "4711"
    assert fields["MESSAGE_ID"] == module.HUNG_MESSAGE_ID
    assert fields["MESSAGE"].startswith("solo5-task-web.service: Killing hung tender: main thread exited")


def test_a_missing_journald_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NATIVE_SOCKET", str(tmp_path / "nothing"))
    with pytest.raises(HostError, match="journald cannot be reached at .*nothing: No such file or directory"):
        module.log_hung(STATE)
