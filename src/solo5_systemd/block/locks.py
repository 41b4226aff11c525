"""Locks on disks: each is one task's, for as long as a process of that task lives.

A tender locks nothing, and two of them write one file without a word. A lock is a file of the task's own, without
content, that is locked by flock(2) and has a name in /run/solo5/disks for each disk. Its descriptor becomes the task's
stdin: the kernel unlocks the file when the last process that has it is gone, and the names then mean nothing. The
descriptor is open for reading only, and no two tasks have the same file: a tender can give up its own lock with it, and
do nothing else.
"""

import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

from solo5_systemd.block.model import Disk, check_distinct
from solo5_systemd.errors import HostError, TakenError
from solo5_systemd.procfs import name_descriptor

LOCKS = Path("/run/solo5/disks")


def lock(disks: Sequence[Disk], *, directory: Path = LOCKS) -> int:
    """Lock every disk for as long as the returned descriptor, or a copy of it in any process, is open.

    Args:
        disks: those of one task.
        directory: where disks are named.

    Returns:
        A descriptor, close-on-exec; duplicates of it, such as another process's stdin, keep the locks.

    Raises:
        InvalidRequestError: two disks are one file.
        TakenError: a disk is another task's.
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
    """Remove the names of disks that no task has.

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
    """Let one caller at a time look at names and make them; it takes microseconds."""
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
                f"disk {disk.disk}: {disk.path!r} is in use by another task: expected a disk that no task has.",
                "List the tasks: solo5ctl ps",
            )
    descriptor = _own_file(directory)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        for name in names:
            name.unlink(missing_ok=True)
            name_descriptor(descriptor, name)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _own_file(directory: Path) -> int:
    """Make a file without a name, and open it for reading only."""
    writable = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o400)
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
