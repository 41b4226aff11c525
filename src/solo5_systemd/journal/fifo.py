"""Open a FIFO for writing that somebody else made, in a directory where others may write too."""

import asyncio
import errno
import os
import stat

from solo5_systemd.errors import HostError

PATIENCE = 5.0
"""Seconds that its reader may take to come."""

_PAUSE = 0.01


async def open_fifo(path: str, patience: float = PATIENCE) -> int:
    """Wait for a reader, and open the write end, which does not block and belongs to the caller.

    The last part of `path` is looked up in its directory and never followed, and what is checked to be a FIFO is what
    is opened.

    Raises:
        HostError: there is none, it is something else, or nobody reads it.
    """
    end = asyncio.get_running_loop().time() + patience
    while (fd := _open(path)) is None:
        if asyncio.get_running_loop().time() >= end:
            raise HostError(f"nobody reads {path}: expected a reader within {patience:.0f} seconds.")
        await asyncio.sleep(_PAUSE)
    return fd


def _open(path: str) -> int | None:
    """None: it has no reader yet."""
    directory, _, name = path.rpartition("/")
    held: list[int] = []
    try:
        held.append(os.open(directory or "/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
        held.append(os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=held[0]))
        if not stat.S_ISFIFO(os.fstat(held[1]).st_mode):
            raise HostError(f"{path} is no FIFO: expected one that is read at its other end.")
        return os.open(f"/proc/self/fd/{held[1]}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        raise HostError(f"{path} cannot be opened for writing: {error.strerror}.") from error
    finally:
        for fd in held:
            os.close(fd)
