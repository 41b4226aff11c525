from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from solo5_systemd.base.errors import HostError
from solo5_systemd.base.names import TaskName
from solo5_systemd.journal.lines import Stream
from solo5_systemd.relay.line_queue import StreamPosition
from solo5_systemd.relay.state_files import PAGE_SIZE, ConsoleState, Delivery, StateFiles

RECORD = ConsoleState(
    task=TaskName("web"),
    unit="solo5-task-web.service",
    since=1_700_000_000_000_000,
    began=5_000_000,
    progress={
        Stream.STDOUT: Delivery(cursor="s=1;i=2", written=3, staged=StreamPosition(cursor="s=1;i=9")),
        Stream.STDERR: Delivery(),
    },
    number=7,
    ended=True,
)


def test_saved_state_is_loaded(tmp_path: Path) -> None:
    with closing(StateFiles(tmp_path)) as records:
        records.save(RECORD)
    assert list(StateFiles(tmp_path).load()) == [RECORD]
    assert [path.name for path in tmp_path.iterdir()] == ["web.json"]


def test_a_second_save_overwrites_the_file_in_place(tmp_path: Path) -> None:
    shorter = replace(RECORD, progress=dict.fromkeys(Stream, Delivery()), ended=False)
    with closing(StateFiles(tmp_path)) as records:
        records.save(RECORD)
        before = (tmp_path / "web.json").stat()
        records.save(shorter)
        after = (tmp_path / "web.json").stat()
    assert list(StateFiles(tmp_path).load()) == [shorter]
    assert (after.st_ino, after.st_size) == (before.st_ino, PAGE_SIZE)


def test_remove_deletes_the_file(tmp_path: Path) -> None:
    with closing(StateFiles(tmp_path)) as records:
        records.save(RECORD)
        records.remove(TaskName("web"))
        records.remove(TaskName("web"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{", "{}", '{"task": "../x", "unit": "u", "since": 0, "began": 0, "progress": {}}'),
        '{"task": "x", "unit": "u", "since": 0, "began": 0, "number": 1, "progress": {"stdout": {}}}',
    ],
)
def test_an_unreadable_file_is_removed_and_the_others_are_loaded(tmp_path: Path, text: str) -> None:
    with closing(StateFiles(tmp_path)) as records:
        records.save(RECORD)
    (tmp_path / "bad.json").write_text(text)
    assert list(StateFiles(tmp_path).load()) == [RECORD]
    assert [path.name for path in tmp_path.iterdir()] == ["web.json"]


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"web.json cannot be written: No such file"):
        StateFiles(tmp_path / "gone").save(RECORD)
