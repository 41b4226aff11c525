"""A file is replaced or created whole, and a failed or killed writer leaves the old content."""

import errno
import os
import stat
from pathlib import Path

import pytest
from tests.support.fakes.kernel import failing
from tests.support.interpreter import python

from solo5_systemd.base.atomic_file import link_unnamed, open_unnamed, replace_file


@pytest.mark.parametrize("several_writers", [False, True])
def test_a_reader_has_the_old_content_and_the_next_one_the_new(tmp_path: Path, several_writers: bool) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with path.open() as before:
        replace_file(path, "néw", several_writers=several_writers)
        assert before.read() == "old"
    assert path.read_bytes() == "néw".encode()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_the_mode_is_independent_of_the_umask(tmp_path: Path, mode: int) -> None:
    before = os.umask(0o077)
    try:
        replace_file(tmp_path / "file", b"", mode=mode)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode


@pytest.mark.parametrize("several_writers", [False, True])
def test_a_link_in_the_place_of_the_temporary_file_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, several_writers: bool
) -> None:
    monkeypatch.setattr(os, "urandom", bytes)
    other = tmp_path / "other"
    other.write_text("kept")
    new = tmp_path / (f".file.{'00' * 8}.new" if several_writers else ".file.new")
    new.symlink_to(other)
    if several_writers:
        with pytest.raises(FileExistsError):
            replace_file(tmp_path / "file", "new", several_writers=True)
    else:
        replace_file(tmp_path / "file", "new")
        assert (tmp_path / "file").read_text() == "new"
    assert other.read_text() == "kept"


@pytest.mark.parametrize("call", ["fchmod", "fsync", "replace"])
def test_a_failed_write_leaves_the_old_content_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    monkeypatch.setattr(os, call, failing(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        replace_file(path, "new", durable=True)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


KILLED_AT_RENAME = """
import os, sys
from pathlib import Path
from solo5_systemd.base.atomic_file import replace_file
sys.addaudithook(lambda event, _: os._exit(9) if event == "os.rename" else None)
replace_file(Path(sys.argv[1]), "new")
"""


def test_what_a_killed_writer_leaves_is_removed_by_the_next_write(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    assert python(KILLED_AT_RENAME, str(path), check=False).returncode == 9
    assert path.read_text() == "old"
    assert {each.name for each in tmp_path.iterdir()} == {"file", ".file.new"}
    replace_file(path, "newer")
    assert path.read_text() == "newer"
    assert list(tmp_path.iterdir()) == [path]


def test_content_is_on_stable_storage_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    rename = os.replace

    def replace(path: str, target: Path) -> None:
        calls.append("rename")
        rename(path, target)

    monkeypatch.setattr(os, "fsync", lambda fd: calls.append(str(Path(f"/proc/self/fd/{fd}").readlink())))
    monkeypatch.setattr(os, "replace", replace)
    replace_file(tmp_path / "file", "new", durable=True)
    assert calls == [str(tmp_path / ".file.new"), "rename", str(tmp_path)]


def test_an_unnamed_file_appears_complete_and_replaces_none(tmp_path: Path) -> None:
    descriptor = open_unnamed(tmp_path, 0o600)
    try:
        os.write(descriptor, b"content")
        assert list(tmp_path.iterdir()) == []
        link_unnamed(descriptor, tmp_path / "file")
        with pytest.raises(FileExistsError):
            link_unnamed(descriptor, tmp_path / "file")
    finally:
        os.close(descriptor)
    assert (tmp_path / "file").read_bytes() == b"content"
