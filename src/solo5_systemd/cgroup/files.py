"""Files of the kernel's, which may vanish at any moment."""

import errno
import os

LARGEST = 1 << 14
"""Bytes; memory.stat, the largest, has two thousand."""

GONE = (errno.ENOENT, errno.ENODEV, errno.ESRCH, errno.EOPNOTSUPP)
"""What reading fails with where the unit has ended since it was looked up, or its controller is not enabled here."""


def opened(path: str) -> int:
    """A descriptor that reads.

    Raises:
        OSError: of `GONE`, and others.
    """
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def read(path: str) -> bytes | None:
    """A file once, without a buffer between; None where it is gone."""
    try:
        descriptor = opened(path)
        try:
            return os.read(descriptor, LARGEST)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno in GONE:
            return None
        raise
