"""Taking a disk back from the user of a task that is gone, or stating why that user still has it."""

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
from solo5_systemd.names import DeviceName
from solo5_systemd.procfs import identity, place

LOCK_TIMEOUT_S = 2.0
"""PID 1 closes the descriptors of a service that has ended in a thread of its own, and with stdin the disk's lock."""

LOCK_INTERVAL_S = 0.02


def given_disk(path: str, identity: tuple[int, int], filesystem: int) -> Disk:
    """Return a disk of which no more is known than what it was when it was given."""
    return Disk(
        disk=DeviceName("given"),
        path=path,
        sector_size=SECTOR_SIZE,
        device=None,
        identity=identity,
        filesystem=filesystem,
    )


def take_back(
    uid: int, disk: Disk, owner: Callable[[], int], *, locks: Path = LOCKS, lock_timeout: float = LOCK_TIMEOUT_S
) -> None:
    """Give a disk that a task's user was given to the user that stands for all tasks; on stable storage after that.

    Nothing happens to a disk that has another owner by now, that was moved or removed, or in whose place is another.

    Args:
        uid: the task's user.
        disk: as it was when it was given; a boot may have changed the number of its device.
        owner: returns the uid that stands for all tasks.
        locks: the directory of disks that are locked.
        lock_timeout: seconds to wait for a lock on the disk.

    Raises:
        HostError: the disk may still be the user's.
    """
    try:
        descriptor = _open(uid, disk)
        if descriptor is None:
            return
        try:
            if _is_users(uid, disk, descriptor):
                _with_lock(uid, disk, descriptor, locks, lock_timeout, lambda: _chown(descriptor, owner()))
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _kept(uid, disk, f"{error.strerror}") from error


def _open(uid: int, disk: Disk) -> int | None:
    """Open the file at the disk's path as a place; None where the disk was removed or moved.

    Raises:
        HostError: its file system is not mounted.
    """
    with suppress(FileNotFoundError, NotADirectoryError):
        return os.open(disk.path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not _is_device(disk) and not _is_filesystem_of(disk, _nearest(disk.path)):
        raise _kept(uid, disk, "its file system is not mounted")
    return None


def _is_device(disk: Disk) -> bool:
    """Whether the disk was a block device, whose owner ends with its node."""
    return not disk.identity[1]


def _is_users(uid: int, disk: Disk, descriptor: int) -> bool:
    """Whether the user has the very disk that was given. A boot may change the number of its file system's device."""
    status = os.fstat(descriptor)
    if stat.S_ISBLK(status.st_mode):
        same = identity(status) == disk.identity
    else:
        same = stat.S_ISREG(status.st_mode) and status.st_ino == disk.identity[1]
        if not same and not _is_device(disk) and not _is_filesystem_of(disk, disk.path):
            raise _kept(uid, disk, "another file system has its path")
    return same and status.st_uid == uid and place(descriptor) == disk.path


def _is_filesystem_of(disk: Disk, path: str) -> bool:
    """Whether a path leads to the file system of the disk: the same device, or the same identifier after a boot."""
    return Path(path).lstat().st_dev == disk.identity[0] or os.statvfs(path).f_fsid == disk.filesystem != 0


def _nearest(path: str) -> str:
    """Return the innermost directory on a path that exists."""
    return next(str(parent) for parent in Path(path).parents if parent.is_dir())


def _with_lock(uid: int, disk: Disk, descriptor: int, locks: Path, timeout: float, act: Callable[[], None]) -> None:
    """Act while the disk is locked, if it is still the user's then: no task can be given it meanwhile."""
    found = replace(disk, identity=identity(os.fstat(descriptor)))
    deadline = time.monotonic() + timeout
    held = _locked(found, locks)
    while held is None and os.fstat(descriptor).st_uid == uid:
        if time.monotonic() > deadline:
            raise _kept(uid, disk, "it is in use")
        time.sleep(LOCK_INTERVAL_S)
        held = _locked(found, locks)
    if held is not None:
        try:
            if os.fstat(descriptor).st_uid == uid:
                act()
        except Solo5Error as error:
            raise _kept(uid, disk, error.sentence) from error
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
        # The note is removed next, on another file system perhaps: a loss of power must not bring the owner back alone.
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def _kept(uid: int, disk: Disk, why: str) -> HostError:
    return HostError(
        f"disk {disk.path!r} cannot be taken back from user {uid}: {why.rstrip('.')}.",
        f"The next `solo5ctl gc` tries again; if the disk is gone for good: rm /var/lib/solo5/users/{uid}",
    )
