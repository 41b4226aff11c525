"""Small files that vanish at any moment: of cgroups and processes, and records in /run."""

import errno
import os

READ_SIZE = 1 << 16
"""Bytes of one read(2), which returns all of most files: memory.stat, a cgroup's largest, has some two thousand."""

VANISHED = (errno.ENOENT, errno.ENODEV, errno.ESRCH, errno.EOPNOTSUPP)
"""The errnos of a read where the file or what it is of was removed, or a cgroup's controller is not enabled."""


def read(path: str) -> bytes | None:
    """Return the content of a file; None for an errno of `VANISHED`.

    Raises:
        OSError: any other.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:  # no `closing`, which takes longer than the read: a list of tasks reads four files of each
            data = part = os.read(descriptor, READ_SIZE)
            while len(part) == READ_SIZE:
                part = os.read(descriptor, READ_SIZE)
                data += part
            return data
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno in VANISHED:
            return None
        raise
