"""The locking protocol of systemd's `DynamicUser=`, whose uid range the users of tasks share.

The range is shared for journald's sake: it writes entries of these users to the system journal. For any other user
above the system range it creates a journal file of 8 MiB or more, which a reader must open to get the last lines.

PID 1 allocates a uid in three steps: flock(2) of /run/systemd/dynamic-uid/UID, getpwuid(3) for a user with that number,
and creation of the user record. With the same steps here, each side detects the other's users.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from solo5_systemd.locks import try_lock

LOCKS = Path("/run/systemd/dynamic-uid")


@contextmanager
def allocating(uid: int, locks: Path = LOCKS) -> Iterator[bool]:
    """Lock a uid while its record is made; yields False if PID 1 has the lock, for a unit with DynamicUser=."""
    locks.mkdir(mode=0o755, exist_ok=True)
    descriptor = _lock(locks / str(uid))
    if descriptor is None:
        yield False
        return
    try:
        yield True
    finally:
        (locks / str(uid)).unlink(missing_ok=True)  # before the unlock: PID 1 expects to create the file itself
        os.close(descriptor)


def _lock(path: Path) -> int | None:
    while True:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY, 0o600)
        if not try_lock(descriptor):
            os.close(descriptor)
            return None
        if os.fstat(descriptor).st_nlink:  # otherwise another process removed the file between open(2) and flock(2)
            return descriptor
        os.close(descriptor)
