"""Systemd's own protocol for the users of `DynamicUser=`, from whose range the users of tasks are taken as well.

journald writes what these users say to the system's journal. For any other user, above those of the system, it makes a
journal file, of 8 MiB or more, which a reader has to notice before it has that user's last lines.

PID 1 allocates a uid in this order: the lock of UID in /run/systemd/dynamic-uid, a look whether the C library knows a
user of that number, and the record that makes it known. Either side that does so sees the other's.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCKS = Path("/run/systemd/dynamic-uid")


@contextmanager
def allocating(uid: int, locks: Path = LOCKS) -> Iterator[bool]:
    """Hold the lock of a uid while a record is made of it; False where PID 1 holds it, for a unit of its own."""
    locks.mkdir(mode=0o755, exist_ok=True)
    descriptor = _locked(locks / str(uid))
    if descriptor is None:
        yield False
        return
    try:
        yield True
    finally:
        (locks / str(uid)).unlink(missing_ok=True)  # before the lock is let go: the file is PID 1's to make
        os.close(descriptor)


def _locked(path: Path) -> int | None:
    while True:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        if os.fstat(descriptor).st_nlink:  # not removed between the two calls
            return descriptor
        os.close(descriptor)
