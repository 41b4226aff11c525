"""Disk locks: one task at a time has a disk, for as long as a process of the task lives.

Tenders lock nothing, so that two of them would write one file. A lock is an empty file of one task, locked by flock(2),
with a name in /run/solo5/disks for each disk. Its descriptor becomes the tender's standard input. The kernel releases
the lock with the last process that has the descriptor; the names are stale from then on. The descriptor is read-only
and no two tasks share a file, so a tender can do nothing with it but unlock its own disks.
"""

import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

from solo5_systemd.errors import HostError, TakenError
from solo5_systemd.files.atomic_file import link_unnamed, open_unnamed
from solo5_systemd.storage.model import Disk, check_distinct

LOCKS = Path("/run/solo5/disks")


def lock(disks: Sequence[Disk], *, directory: Path = LOCKS) -> int:
    """Lock all disks until the returned descriptor, and every duplicate in any process, is closed.

    Args:
        disks: all disks of one task.
        directory: the directory of lock files.

    Returns:
        A descriptor, close-on-exec; a duplicate, such as the tender's standard input, keeps the lock.

    Raises:
        InvalidRequestError: two disks are one file.
        TakenError: another task has a disk.
        HostError: the directory cannot be used.
    """
    check_distinct(disks)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        guard = _guard(directory)
        try:
            return _lock(disks, directory)
        finally:
            os.close(guard)
    except OSError as error:
        raise HostError(f"disks cannot be locked in {directory}: {error.strerror}.") from error


def remove_stale(directory: Path = LOCKS) -> None:
    """Remove the lock files of disks that no task has locked.

    Raises:
        HostError: the directory cannot be used.
    """
    try:
        guard = _guard(directory)
        try:
            for name in directory.iterdir():
                if not _is_locked(name):
                    name.unlink()
        finally:
            os.close(guard)
    except FileNotFoundError:
        return
    except OSError as error:
        raise HostError(f"disks cannot be unlocked in {directory}: {error.strerror}.") from error


def _guard(directory: Path) -> int:
    """Lock the directory against other callers, for the microseconds in which names are read and made."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _lock(disks: Sequence[Disk], directory: Path) -> int:
    names = [directory / _name(disk) for disk in disks]
    for disk, name in zip(disks, names, strict=True):
        if _is_locked(name):
            raise TakenError(
                f"disk {disk.disk}: {disk.path!r} is in use by another task: expected a disk without a lock.",
                "`solo5ctl ps` lists the tasks.",
            )
    descriptor = _make_lock_file(directory)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        for name in names:
            name.unlink(missing_ok=True)
            link_unnamed(descriptor, name)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _make_lock_file(directory: Path) -> int:
    """Create a file without a name (O_TMPFILE) and return a read-only descriptor."""
    writable = open_unnamed(directory, 0o400)
    try:
        return os.open(f"/proc/self/fd/{writable}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(writable)


def _is_locked(name: Path) -> bool:
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno != errno.EWOULDBLOCK:
            raise
        return True
    finally:
        os.close(descriptor)
    return False


def _name(disk: Disk) -> str:
    device, inode = disk.identity
    return f"{device:x}-{inode:x}"
