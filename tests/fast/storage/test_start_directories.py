"""Directories of private disks: removed by the start, or by a sweep after it was killed."""

import errno
import os
from pathlib import Path

import pytest

from solo5_systemd.errors import HostError
from solo5_systemd.storage.start_directories import StartDirectories


@pytest.fixture
def directories(tmp_path: Path) -> StartDirectories:
    return StartDirectories(tmp_path / "copies", root="")


def test_a_directory_is_closed_to_other_users_and_removed_with_its_files(directories: StartDirectories) -> None:
    made = directories.make()
    assert directories.directory.stat().st_mode & 0o777 == 0o700
    (made.files / "storage").write_bytes(b"x")
    directories.remove(made)
    assert not list(directories.directory.iterdir())


def test_a_sweep_takes_what_no_process_has_locked(directories: StartDirectories) -> None:
    running, killed = directories.make(), directories.make()
    (killed.files / "storage").write_bytes(b"x")
    os.close(killed.descriptor)
    assert directories.sweep(dry_run=True) == (str(killed.path),)
    assert killed.path.exists()
    assert directories.sweep() == (str(killed.path),)
    assert list(directories.directory.iterdir()) == [running.path]
    directories.remove(running)


def test_the_next_start_sweeps(directories: StartDirectories) -> None:
    killed = directories.make()
    os.close(killed.descriptor)
    made = directories.make()
    assert list(directories.directory.iterdir()) == [made.path]
    directories.remove(made)


def test_a_sweep_of_nothing(tmp_path: Path) -> None:
    assert StartDirectories(tmp_path / "none").sweep() == ()


def test_a_mount_is_undone_with_the_directory(tmp_path: Path) -> None:
    done: list[str] = []
    own = StartDirectories(
        tmp_path,
        mount=lambda path: done.append(f"mount {path}"),
        unmount=lambda path: done.append(f"unmount {path}"),
        root="",
    )
    made = own.make()
    own.remove(made)
    assert done == [f"mount {made.files}", f"unmount {made.files}"]
    assert not made.path.exists()


def test_a_mount_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(_: str) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    own = StartDirectories(tmp_path, mount=fail, unmount=fail, root="")
    with pytest.raises(HostError, match="cannot be used: Operation not permitted"):
        own.make()
    assert not list(tmp_path.iterdir())


def test_another_mount_namespace_than_that_of_pid_1_is_told(tmp_path: Path) -> None:
    other = tmp_path / "other"
    own = StartDirectories(tmp_path / "copies", root=str(other))

    class Seen(StartDirectories):
        def _check_seen(self, files: Path) -> None:
            Path(f"{other}{files}").mkdir(parents=True)
            super()._check_seen(files)

    own = Seen(tmp_path / "copies", root=str(other))
    with pytest.raises(HostError, match="PID 1 has another directory at"):
        own.make()
    assert not list((tmp_path / "copies").iterdir())
