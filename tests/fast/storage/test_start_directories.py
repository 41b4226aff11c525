"""Directories of private disks: removed by the start, or by a sweep after it was killed."""

import errno
import os
from pathlib import Path

import pytest
from tests.support.fakes.kernel import failing

from solo5_systemd.base.errors import HostError
from solo5_systemd.storage import bind_mounts
from solo5_systemd.storage.bind_mounts import StartDirectories, remove
from solo5_systemd.storage.model import StartDirectory


@pytest.fixture
def directories(tmp_path: Path) -> StartDirectories:
    return StartDirectories(tmp_path / "copies")


def made_in(directories: StartDirectories) -> StartDirectory:
    with directories.made() as made:
        return made


def test_a_directory_is_closed_to_other_users_and_removed_with_its_files(directories: StartDirectories) -> None:
    made = made_in(directories)
    assert directories.directory.stat().st_mode & 0o777 == 0o700
    (made.path / "storage").write_bytes(b"x")
    remove(made)
    assert not list(directories.directory.iterdir())


def test_a_sweep_takes_what_no_process_has_locked(directories: StartDirectories) -> None:
    running, killed = made_in(directories), made_in(directories)
    (killed.path / "storage").write_bytes(b"x")
    os.close(killed.descriptor)
    assert directories.sweep(dry_run=True) == (str(killed.path),)
    assert killed.path.exists()
    assert directories.sweep() == (str(killed.path),)
    assert list(directories.directory.iterdir()) == [running.path]
    remove(running)


def test_a_file_system_of_its_own_is_mounted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounted: list[str] = []
    own, stat = StartDirectories(tmp_path / "memory", mount=mounted.append), Path.stat

    def other_device(path: Path, **more: bool) -> os.stat_result:
        found = stat(path, **more)
        return os.stat_result((*found[:2], found.st_dev + len(mounted), *found[3:])) if path == own.directory else found

    monkeypatch.setattr(Path, "stat", other_device)
    made, killed = made_in(own), made_in(own)
    assert mounted == [str(tmp_path / "memory")]
    assert {path.stat().st_mode & 0o777 for path in (own.directory, made.path)} == {0o700}
    os.close(killed.descriptor)
    assert own.sweep() == (str(killed.path),)
    remove(made)
    assert not list(own.directory.iterdir())


def test_a_mount_that_fails_leaves_no_directory_of_a_start(tmp_path: Path) -> None:
    own = StartDirectories(tmp_path / "starts", mount=failing(errno.EPERM))
    with pytest.raises(HostError, match="cannot be used: Operation not permitted"):
        made_in(own)
    assert not list((tmp_path / "starts").iterdir())


def test_another_mount_namespace_than_that_of_pid_1_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    monkeypatch.setattr(bind_mounts, "PID1_ROOT", str(other))
    own = StartDirectories(tmp_path / "copies")

    class Seen(StartDirectories):
        def check_seen(self, path: Path, expected: tuple[int, int]) -> None:
            Path(f"{other}{path}").mkdir(parents=True)
            super().check_seen(path, expected)

    own = Seen(tmp_path / "copies")
    with pytest.raises(HostError, match="PID 1 has another file at"):
        made_in(own)
    assert not list((tmp_path / "copies").iterdir())
