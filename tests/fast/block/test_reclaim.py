"""Reclaiming given disks, and the errors with which a disk stays in its user's file."""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from solo5_systemd.block import reclaim
from solo5_systemd.block.backing_files import ImageFiles
from solo5_systemd.block.model import Disk
from solo5_systemd.block.reclaim import given_disk
from solo5_systemd.errors import HostError

TENDER = 990


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "srv" / "disk.img"
    path.parent.mkdir()
    path.write_bytes(bytes(4096))
    return path


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls of chown(2) and fsync(2), in order."""
    calls: list[str] = []
    monkeypatch.setattr(
        "os.chown", lambda path, uid, gid: calls.append(f"chown {Path(path).readlink().name} {uid} {gid}")
    )
    monkeypatch.setattr("os.fsync", lambda fd: calls.append(f"fsync {Path(f'/proc/self/fd/{fd}').readlink().name}"))
    return calls


def disk(file: Path, *, device: int | None = None, inode: int | None = None, filesystem: int | None = None) -> Disk:
    status, place = file.stat(), os.statvfs(file)
    return given_disk(
        str(file),
        (status.st_dev if device is None else device, status.st_ino if inode is None else inode),
        place.f_fsid if filesystem is None else filesystem,
    )


def reclaim_disk(of: Disk, tmp_path: Path, uid: int | None = None, lock_timeout: float = 0.0) -> None:
    user = os.getuid() if uid is None else uid
    reclaim.reclaim_disk(user, of, lambda: TENDER, locks=tmp_path / "locks", lock_timeout=lock_timeout)


TAKEN = [f"chown disk.img {TENDER} -1", "fsync disk.img"]


def test_a_disk_is_taken_back_and_that_is_on_stable_storage(file: Path, tmp_path: Path, given: list[str]) -> None:
    reclaim_disk(disk(file), tmp_path)
    assert given == TAKEN


def test_a_disk_is_known_after_a_boot_that_numbers_devices_otherwise(
    file: Path, tmp_path: Path, given: list[str]
) -> None:
    reclaim_disk(disk(file, device=1), tmp_path)
    assert given == TAKEN


def test_what_is_not_the_users_disk_stays_as_it_is(file: Path, tmp_path: Path, given: list[str]) -> None:
    of = disk(file)
    reclaim_disk(of, tmp_path, os.getuid() + 1)
    reclaim_disk(disk(file, inode=1), tmp_path)
    link = file.with_name("link.img")
    link.symlink_to(file)
    reclaim_disk(given_disk(str(link), of.identity, of.filesystem), tmp_path)
    file.unlink()
    reclaim_disk(of, tmp_path)
    link.unlink()
    file.parent.rmdir()
    reclaim_disk(of, tmp_path)
    assert given == []


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS, errno.EPERM])
def test_a_disk_whose_owner_cannot_be_changed_is_no_disk_that_was_taken_back(
    file: Path, tmp_path: Path, given: list[str], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    for call in ("os.chown", "os.fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(call, fail)
            with pytest.raises(HostError) as refused:
                reclaim_disk(disk(file), tmp_path)
        assert refused.value.sentence == (
            f"disk {str(file)!r} cannot be reclaimed from user {os.getuid()}: {os.strerror(number)}."
        )


def test_a_disk_whose_file_system_is_not_mounted_is_no_disk_that_was_removed(
    file: Path, tmp_path: Path, given: list[str]
) -> None:
    of = disk(file, device=1, filesystem=1)
    file.unlink()
    with pytest.raises(HostError, match="its file system is not mounted"):
        reclaim_disk(of, tmp_path)
    file.write_bytes(bytes(512))
    with pytest.raises(HostError, match="another file system has its path"):
        reclaim_disk(given_disk(str(file), (1, 1), 1), tmp_path)
    reclaim_disk(given_disk("/dev/solo5-is-no-device", (1, 0), 1), tmp_path)  # its owner was the node's
    assert given == []


async def test_a_disk_that_is_locked_is_taken_back_once_it_is_not(
    file: Path, tmp_path: Path, given: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PID 1 closes stdin of an ended service, and so the lock, some time later."""
    files = ImageFiles(locks=tmp_path / "locks")
    held = await files.lock([disk(file)])
    with pytest.raises(HostError, match="it is in use"):
        reclaim_disk(disk(file), tmp_path)
    assert given == []
    _at_sleep(monkeypatch, lambda: os.close(held))
    reclaim_disk(disk(file), tmp_path, lock_timeout=60.0)
    assert given == TAKEN


async def test_a_disk_that_another_task_is_given_meanwhile_is_that_tasks(
    file: Path, tmp_path: Path, given: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    of = disk(file)
    held = await ImageFiles(locks=tmp_path / "locks").lock([of])
    owner = os.getuid()
    seen = iter([owner, owner + 1])
    real = os.fstat

    class Status:
        def __init__(self, fd: int) -> None:
            self._of = real(fd)

        def __getattr__(self, name: str) -> object:
            return getattr(self._of, name)

        @property
        def st_uid(self) -> int:
            return next(seen)

    monkeypatch.setattr("solo5_systemd.block.reclaim.os.fstat", Status)
    reclaim_disk(of, tmp_path, owner, lock_timeout=60.0)
    os.close(held)
    assert given == []


def _at_sleep(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Call a function at the first poll for a lock."""
    slept = threading.Event()

    def sleep(_: float) -> None:
        if not slept.is_set():
            slept.set()
            act()

    monkeypatch.setattr("solo5_systemd.block.reclaim.time.sleep", sleep)
