"""Reads of a cgroup's files and of those that PID 1 exports, which may vanish."""

import errno
import os

READ_SIZE = 1 << 16
"""Bytes of one read(2); memory.stat, the largest file of a cgroup, has some two thousand."""

VANISHED = (errno.ENOENT, errno.ENODEV, errno.ESRCH, errno.EOPNOTSUPP)
"""The errnos of a read where the cgroup was removed, or its controller is not enabled."""


def open_file(path: str) -> int:
    """Open a file for reading and return its descriptor.

    Raises:
        OSError: one of `VANISHED`, or another.
    """
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def read(path: str) -> bytes | None:
    """Return the content of a file; None for an errno of `VANISHED`."""
    try:
        descriptor = open_file(path)
        try:
            return os.read(descriptor, READ_SIZE)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno in VANISHED:
            return None
        raise
