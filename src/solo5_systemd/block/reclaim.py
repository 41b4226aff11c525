"""The return of a given disk from the user of a removed task to user solo5."""

import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from solo5_systemd.block.locks import LOCKS, lock
from solo5_systemd.block.model import SECTOR_SIZE, Disk
from solo5_systemd.errors import HostError, Solo5Error, TakenError
from solo5_systemd.files.procfs import identity, path_of
from solo5_systemd.names import DeviceName

LOCK_TIMEOUT_S = 2.0
"""PID 1 closes the descriptors of an ended service in a thread, some time later; stdin has the disk lock."""

LOCK_INTERVAL_S = 0.02


def given_disk(path: str, identity: tuple[int, int], filesystem: int) -> Disk:
    """Return the disk of a given-disk file, with only the fields that the file has."""
    return Disk(
        disk=DeviceName("given"),
        path=path,
        sector_size=SECTOR_SIZE,
        device=None,
        identity=identity,
        filesystem=filesystem,
    )


def reclaim_disk(
    uid: int, disk: Disk, owner: Callable[[], int], *, locks: Path = LOCKS, lock_timeout: float = LOCK_TIMEOUT_S
) -> None:
    """Change the owner of a given disk from a task's user to `owner`; on stable storage when this returns.

    A no-op for a disk that has another owner now, was moved or removed, or was replaced by another file.

    Args:
        uid: the task's user.
        disk: the disk as it was given; the device number may have changed at a boot.
        owner: returns the uid of user solo5.
        locks: the directory of disk locks.
        lock_timeout: seconds to wait for the disk lock.

    Raises:
        HostError: the disk may still belong to the user.
    """
    try:
        descriptor = _open(uid, disk)
        if descriptor is None:
            return
        try:
            if _is_owned_by(uid, disk, descriptor):
                _with_lock(uid, disk, descriptor, locks, lock_timeout, lambda: _chown(descriptor, owner()))
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _reclaim_error(uid, disk, f"{error.strerror}") from error


def _open(uid: int, disk: Disk) -> int | None:
    """Open the disk's path with O_PATH; None where the disk was removed or moved.

    Raises:
        HostError: the disk's file system is not mounted.
    """
    with suppress(FileNotFoundError, NotADirectoryError):
        return os.open(disk.path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not _is_device(disk) and not _is_filesystem_of(disk, _nearest_directory(disk.path)):
        raise _reclaim_error(uid, disk, "its file system is not mounted")
    return None


def _is_device(disk: Disk) -> bool:
    """Return whether the disk was a block device, whose owner is lost with its device node."""
    return not disk.identity[1]


def _is_owned_by(uid: int, disk: Disk, descriptor: int) -> bool:
    """Return whether the open file is the given disk and still belongs to the user.

    For a file the inode suffices: the device number of its file system may have changed at a boot.
    """
    status = os.fstat(descriptor)
    if stat.S_ISBLK(status.st_mode):
        same = identity(status) == disk.identity
    else:
        same = stat.S_ISREG(status.st_mode) and status.st_ino == disk.identity[1]
        if not same and not _is_device(disk) and not _is_filesystem_of(disk, disk.path):
            raise _reclaim_error(uid, disk, "another file system has its path")
    return same and status.st_uid == uid and path_of(descriptor) == disk.path


def _is_filesystem_of(disk: Disk, path: str) -> bool:
    """Return whether a path lies in the disk's file system: by device number or, after a boot, by f_fsid."""
    return Path(path).lstat().st_dev == disk.identity[0] or os.statvfs(path).f_fsid == disk.filesystem != 0


def _nearest_directory(path: str) -> str:
    """Return the innermost directory on a path that exists."""
    return next(str(parent) for parent in Path(path).parents if parent.is_dir())


def _with_lock(uid: int, disk: Disk, descriptor: int, locks: Path, timeout: float, act: Callable[[], None]) -> None:
    """Call `act` with the disk locked, if the user still owns it: under the lock, no task can be given the disk."""
    found = replace(disk, identity=identity(os.fstat(descriptor)))
    deadline = time.monotonic() + timeout
    held = _locked(found, locks)
    while held is None and os.fstat(descriptor).st_uid == uid:
        if time.monotonic() > deadline:
            raise _reclaim_error(uid, disk, "it is in use")
        time.sleep(LOCK_INTERVAL_S)
        held = _locked(found, locks)
    if held is not None:
        try:
            if os.fstat(descriptor).st_uid == uid:
                act()
        except Solo5Error as error:
            raise _reclaim_error(uid, disk, error.sentence) from error
        finally:
            os.close(held)


def _locked(disk: Disk, locks: Path) -> int | None:
    try:
        return lock([disk], directory=locks)
    except TakenError:
        return None


def _chown(descriptor: int, owner: int) -> None:
    path = f"/proc/self/fd/{descriptor}"
    os.chown(path, owner, -1)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        # The given-disk file is removed next, perhaps on another file system. Without fsync(2), a power loss could keep
        # that removal and lose the change of owner.
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def _reclaim_error(uid: int, disk: Disk, reason: str) -> HostError:
    return HostError(
        f"disk {disk.path!r} cannot be reclaimed from user {uid}: {reason.rstrip('.')}.",
        f"The next `solo5ctl gc` retries; if the disk was removed for good: rm /var/lib/solo5/users/{uid}",
    )
