import json
from pathlib import Path

import pytest

from solo5_systemd.errors import HostError
from solo5_systemd.journal.export import Stream
from solo5_systemd.names import TaskName
from solo5_systemd.relay.record import Progress, Record
from solo5_systemd.relay.records import Records

RECORD = Record(
    task=TaskName("web"),
    unit="solo5-task-web.service",
    since=1_700_000_000_000_000,
    progress={Stream.STDOUT: Progress(cursor="s=1;i=2", written=3), Stream.STDERR: Progress()},
)


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    Records(tmp_path).save(RECORD)
    assert list(Records(tmp_path).load()) == [RECORD]
    assert [path.name for path in tmp_path.iterdir()] == ["web.json"]


def test_what_was_removed_is_gone(tmp_path: Path) -> None:
    Records(tmp_path).save(RECORD)
    Records(tmp_path).remove(TaskName("web"))
    Records(tmp_path).remove(TaskName("web"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"version": 2}', '{"version": 1, "task": "../x", "unit": "u", "since": 0, "progress": {}}']
)
def test_a_file_that_cannot_be_read_is_removed_and_the_others_are_loaded(tmp_path: Path, text: str) -> None:
    Records(tmp_path).save(RECORD)
    (tmp_path / "bad.json").write_text(text)
    assert list(Records(tmp_path).load()) == [RECORD]
    assert [path.name for path in tmp_path.iterdir()] == ["web.json"]


def test_a_directory_that_is_gone_is_told(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"web.json cannot be written: No such file"):
        Records(tmp_path / "gone").save(RECORD)


def test_version_1_is_read_for_ever(tmp_path: Path) -> None:
    document = {
        "version": 1,
        "task": "web",
        "unit": "solo5-task-web.service",
        "since": 1_700_000_000_000_000,
        "progress": {"stdout": {"cursor": "s=1;i=2", "written": 3}, "stderr": {"cursor": "", "written": 0}},
    }
    (tmp_path / "web.json").write_text(json.dumps(document))
    assert list(Records(tmp_path).load()) == [RECORD]
