"""Directories of private disks: removed by the start, or by a sweep after it was killed."""

import errno
import os
from pathlib import Path

import pytest

from solo5_systemd.base.errors import HostError
from solo5_systemd.base.names import DeviceName
from solo5_systemd.base.procfs import identity
from solo5_systemd.storage.lock_records import name_of
from solo5_systemd.storage.locks import lock
from solo5_systemd.storage.model import Disk
from solo5_systemd.storage.start_directories import StartDirectories


@pytest.fixture
def directories(tmp_path: Path) -> StartDirectories:
    return StartDirectories(tmp_path / "copies", root="")


def test_a_directory_is_closed_to_other_users_and_removed_with_its_files(directories: StartDirectories) -> None:
    made = directories.make()
    assert directories.directory.stat().st_mode & 0o777 == 0o700
    (made.files / "storage").write_bytes(b"x")
    directories.remove(made.path, made.descriptor)
    assert not list(directories.directory.iterdir())


def test_a_sweep_takes_what_no_process_has_locked(directories: StartDirectories) -> None:
    running, killed = directories.make(), directories.make()
    (killed.files / "storage").write_bytes(b"x")
    os.close(killed.descriptor)
    assert directories.sweep(dry_run=True) == (str(killed.path),)
    assert killed.path.exists()
    assert directories.sweep() == (str(killed.path),)
    assert list(directories.directory.iterdir()) == [running.path]
    directories.remove(running.path, running.descriptor)


@pytest.mark.parametrize("is_in_memory", [False, True])
def test_a_killed_start_keeps_a_disk_that_its_unit_is_to_mount_as_long_as_it_is_locked(
    tmp_path: Path, is_in_memory: bool
) -> None:
    """PID 1 has the locks from the message on that starts the unit, and mounts the disk later."""
    locks, memory = tmp_path / "locks", tmp_path / "memory" if is_in_memory else None
    directories = StartDirectories(tmp_path / "s", memory=memory, mount=lambda _: None, root="", locks=locks)
    killed = directories.make()
    (killed.files / "storage").write_bytes(b"x")
    found = identity((killed.files / "storage").stat())
    path = (killed.files / "storage").rename(killed.files / name_of(found))
    disk = Disk(disk=DeviceName("storage"), path=str(path), identity=found)
    held = lock([disk], directory=locks, task="one")
    os.close(killed.descriptor)
    assert directories.sweep() == ()
    made = directories.make()
    directories.remove(made.path, made.descriptor)
    assert path.exists()
    os.close(held)
    assert directories.sweep() == (str(killed.path),)


def test_a_start_that_is_killed_before_its_directory_has_files_is_swept(directories: StartDirectories) -> None:
    killed = directories.make()
    killed.files.rmdir()
    os.close(killed.descriptor)
    assert directories.sweep() == (str(killed.path),)


def test_the_next_start_sweeps(directories: StartDirectories) -> None:
    killed = directories.make()
    os.close(killed.descriptor)
    made = directories.make()
    assert list(directories.directory.iterdir()) == [made.path]
    directories.remove(made.path, made.descriptor)


def test_a_sweep_of_nothing(tmp_path: Path) -> None:
    assert StartDirectories(tmp_path / "none").sweep() == ()


def in_memory(directory: Path, mounted: list[str]) -> StartDirectories:
    """Directories whose file system in memory is that of the tests, so that each start mounts it."""
    return StartDirectories(directory / "starts", memory=directory / "memory", mount=mounted.append, root="")


def test_disks_in_memory_are_beside_the_locked_directories(tmp_path: Path) -> None:
    mounted: list[str] = []
    own = in_memory(tmp_path, mounted)
    made, killed = own.make(), own.make()
    assert mounted == [str(tmp_path / "memory")] * 2
    assert made.files == tmp_path / "memory" / made.path.name
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "memory", made.files)} == {0o700}
    for each in (made, killed):
        (each.files / "storage").write_bytes(b"x")
    os.close(killed.descriptor)
    assert own.sweep() == (str(killed.path),)
    assert list((tmp_path / "memory").iterdir()) == [made.files]
    own.remove(made.path, made.descriptor)
    assert not list((tmp_path / "memory").iterdir()) + list((tmp_path / "starts").iterdir())


def test_memory_that_is_mounted_is_not_mounted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounted: list[str] = []
    own, memory, stat = in_memory(tmp_path, mounted), tmp_path / "memory", Path.stat

    def other_device(path: Path, **more: bool) -> os.stat_result:
        found = stat(path, **more)
        return os.stat_result((*found[:2], found.st_dev + 1, *found[3:])) if path == memory else found

    monkeypatch.setattr(Path, "stat", other_device)
    made = own.make()
    own.remove(made.path, made.descriptor)
    assert mounted == []


def test_a_mount_that_fails_leaves_no_directory_of_a_start(tmp_path: Path) -> None:
    def fail(_: str) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    own = StartDirectories(tmp_path / "starts", memory=tmp_path / "memory", mount=fail, root="")
    with pytest.raises(HostError, match="cannot be used: Operation not permitted"):
        own.make()
    assert not list((tmp_path / "starts").iterdir())


def test_another_mount_namespace_than_that_of_pid_1_is_reported(tmp_path: Path) -> None:
    other = tmp_path / "other"
    own = StartDirectories(tmp_path / "copies", root=str(other))

    class Seen(StartDirectories):
        def check_seen(self, path: Path, expected: tuple[int, int]) -> None:
            Path(f"{other}{path}").mkdir(parents=True)
            super().check_seen(path, expected)

    own = Seen(tmp_path / "copies", root=str(other))
    with pytest.raises(HostError, match="PID 1 has another file at"):
        own.make()
    assert not list((tmp_path / "copies").iterdir())
