"""Numbers of file descriptors: the low ones are for libraries that call select(2)."""

import fcntl
import os
from contextlib import suppress

FD_SETSIZE = 1024
"""select(2) of libnftables aborts the process where the number of its socket is as high (fortified FD_SET)."""


def out_of_select(fd: int) -> int:
    """Return the descriptor with another number, from `FD_SETSIZE` on, and not inheritable.

    It keeps its number where RLIMIT_NOFILE allows no such one.
    """
    with suppress(OSError):
        moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FD_SETSIZE)
        os.close(fd)
        return moved
    os.set_inheritable(fd, False)
    return fd
