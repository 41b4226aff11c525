"""Open a FIFO for writing that somebody else made, in a directory where others may write too."""

import asyncio
import errno
import os
import stat
from pathlib import PurePath

from solo5_systemd.errors import HostError

PATIENCE = 5.0
"""Seconds that its reader may take to come."""

_PAUSE = 0.01


async def open_fifo(path: str, root: str = "", patience: float = PATIENCE) -> int:
    """Wait for a reader, and open the write end, which does not block and belongs to the caller.

    No symbolic link below `root` is followed, and what is checked to be a FIFO is what is opened.

    Args:
        path: the FIFO's.
        root: a directory that no task can replace; empty, or one that `path` is not below: the FIFO's own directory.
        patience: seconds that the reader has.

    Raises:
        HostError: there is none, it is something else, or nobody reads it.
    """
    end = asyncio.get_running_loop().time() + patience
    while (fd := _open(path, root)) is None:
        if asyncio.get_running_loop().time() >= end:
            raise HostError(f"nobody reads {path}: expected a reader within {patience:.0f} seconds.")
        await asyncio.sleep(_PAUSE)
    return fd


def _open(path: str, root: str) -> int | None:
    """Return None where it has no reader yet."""
    place = PurePath(path)
    trusted = PurePath(root) if root and place.is_relative_to(root) else place.parent
    *directories, name = place.relative_to(trusted).parts
    held: list[int] = []
    try:
        held.append(os.open(trusted, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
        for directory in directories:
            flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            held.append(os.open(directory, flags, dir_fd=held[-1]))
        held.append(os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=held[-1]))
        if not stat.S_ISFIFO(os.fstat(held[-1]).st_mode):
            raise HostError(f"{path} is no FIFO: expected one that is read at its other end.")
        return os.open(f"/proc/self/fd/{held[-1]}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        raise HostError(f"{path} cannot be opened for writing: {error.strerror}.") from error
    finally:
        for fd in held:
            os.close(fd)
