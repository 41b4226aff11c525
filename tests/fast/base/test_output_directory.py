"""Output goes to the directory that was opened, and by no link that another user can change."""

import os
from pathlib import Path

import pytest

from solo5_systemd.base import procfs
from solo5_systemd.base.errors import HostError, InvalidRequestError
from solo5_systemd.base.output_directory import open_directory, within


@pytest.fixture
def trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner of this test's files stands for root."""
    monkeypatch.setattr(procfs, "_TRUSTED", {0, os.getuid()})


def test_what_is_written_stays_in_the_directory_that_was_opened(tmp_path: Path, trusted: None) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "victim").mkdir()
    directory = open_directory(tmp_path / "out")
    moved = (tmp_path / "out").rename(tmp_path / "moved")
    (tmp_path / "out").symlink_to("victim")
    within(directory, "file").write_text("x")
    os.close(directory)
    assert (moved / "file").read_text() == "x"
    assert not list((tmp_path / "victim").iterdir())


def test_a_link_that_another_user_can_change_is_not_followed(tmp_path: Path, trusted: None) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "victim").mkdir()
    (tmp_path / "theirs" / "out").symlink_to(tmp_path / "victim")
    os.close(open_directory(tmp_path / "theirs" / "out"))
    (tmp_path / "theirs").chmod(0o777)
    with pytest.raises(InvalidRequestError, match="is behind a symbolic link that another user can change"):
        open_directory(tmp_path / "theirs" / "out")
    assert not list((tmp_path / "victim").iterdir())


def test_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, words in {"file": "Not a directory", "none": "No such file or directory"}.items():
        with pytest.raises(HostError, match=f"cannot be used: {words}"):
            open_directory(tmp_path / name)
