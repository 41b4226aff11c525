"""Locks of files and directories (flock(2)), and of bytes of files (fcntl(2)); the only module that calls them.

An object is locked only if its mode and its owner keep others from opening it, and thus from locking it for ever
(docs/decisions/locks.md). The kernel releases a lock with the last duplicate of its descriptor.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from struct import pack

from solo5_systemd.base.errors import HostError
from solo5_systemd.base.event_loop import is_event_loop

RUN = Path("/run/solo5/locks")
"""Lock files of objects that others can open, or that have no directory of their own."""

TIMEOUT_S = 30.0
"""Longer than what a process of root does with a lock, such as to make room for an image or to preallocate a disk."""

INTERVAL_S = 0.005

_OF_OTHERS = 0o066
"""Mode bits with which another user can open an object for reading or writing."""


class LockedError(HostError):
    """Another process has the lock, and still has it after the timeout."""


def lock(descriptor: int, path: Path, *, shared: bool = False, timeout_s: float = TIMEOUT_S) -> None:
    """Lock an open file or directory; wait for other processes of root that have it locked.

    Args:
        shared: any number of processes can have it locked so, if none has it otherwise.
        timeout_s: 0: do not wait. An event loop never waits: its thread makes one attempt.

    Raises:
        LockedError: the timeout is over.
        HostError: other users can open the object.
        OSError: of fstat(2) or flock(2).
    """
    if not _is_private(descriptor):
        raise HostError(
            f"{path} can be opened by other users, who could lock it.",
            f"Run: chown root {path}; chmod go-rw {path}",
        )
    end = time.monotonic() + (timeout_s if not timeout_s or not is_event_loop() else 0.0)
    while not try_lock(descriptor, shared=shared):
        if time.monotonic() >= end:
            within = f" within {timeout_s:g} s" if timeout_s else ""
            raise LockedError(
                f"{path} is locked by another process: expected it to be unlocked{within}.",
                "`lslocks` lists that process.",
            )
        time.sleep(INTERVAL_S)


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file or directory; return False if another process has it locked, or other users can open it.

    Raises:
        OSError: of fstat(2) or flock(2).
    """
    if not _is_private(descriptor):
        return False
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked(path: Path) -> bool:
    """Return whether a file or directory is locked, shared or exclusively; False: it does not exist.

    The caller keeps others from locking it in the meantime. Raises as `try_lock`.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    with closing(descriptor):
        return not try_lock(descriptor)


def try_lock_byte(descriptor: int, offset: int) -> bool:
    """Lock one byte of a file that is open for writing; otherwise as `try_lock`. Others can lock other bytes.

    A file has so one lock for each of any number of names, and none of them is a file that has to be removed.
    """
    if not _is_private(descriptor):
        return False
    with suppress(BlockingIOError):  # struct flock, whose lock belongs to the open file (F_OFD_SETLK of fcntl(2))
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, offset, 1, 0))
        return True
    return False


def lock_directory(path: Path, *, shared: bool = False, timeout_s: float = TIMEOUT_S) -> int:
    """Open and lock a directory; the lock lasts until the returned descriptor is closed. Raises as `lock`."""
    return _opened(path, os.O_RDONLY | os.O_DIRECTORY, shared=shared, timeout_s=timeout_s)


def lock_file(path: Path, *, shared: bool = False, timeout_s: float = TIMEOUT_S) -> int:
    """Open and lock a lock file, which is created if it does not exist; otherwise as `lock_directory`."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return _opened(path, os.O_RDWR | os.O_CREAT, shared=shared, timeout_s=timeout_s)


@contextmanager
def closing(descriptor: int) -> Iterator[int]:
    """Yield a descriptor, and close it at the end of the block: its lock is released."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def closing_on_error(descriptor: int) -> Iterator[int]:
    """Yield a descriptor, and close it if the block raises an exception."""
    try:
        yield descriptor
    except BaseException:
        os.close(descriptor)
        raise


def _opened(path: Path, flags: int, *, shared: bool, timeout_s: float) -> int:
    with closing_on_error(os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)) as descriptor:
        lock(descriptor, path, shared=shared, timeout_s=timeout_s)
    return descriptor


def _is_private(descriptor: int) -> bool:
    status = os.fstat(descriptor)
    return status.st_uid == os.geteuid() and not status.st_mode & _OF_OTHERS
