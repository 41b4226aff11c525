"""A pipe between the relay and a FIFO, which knows how much has reached the FIFO when the relay does not.

A process that is killed after a write, and before it has noted the write, cannot tell afterwards whether it happened;
and what is still in the FIFO says nothing, since somebody reads it. So the bytes go into a pipe that nobody else has,
it is noted where they lead, and splice(2) moves them from there: they leave the one pipe as they enter the other, under
both pipes' locks. What the staging pipe holds is what has not arrived. systemd keeps it beside the FIFO.
"""

import fcntl
import os
import struct
import termios


class Staging:
    """A pipe's both ends in one descriptor, which is this object's to close. Nothing here waits."""

    def __init__(self, fd: int | None = None) -> None:
        self.fd = _pipe() if fd is None else fd

    def held(self) -> int:
        """How many bytes are in it."""
        (count,) = struct.unpack("i", fcntl.ioctl(self.fd, termios.FIONREAD, bytes(4)))
        return int(count)

    def fill(self, data: bytes) -> int:
        """Put in what there is room for, which is a page at least when it is empty; how many bytes."""
        return os.write(self.fd, data)

    def pour(self, fd: int, count: int) -> int:
        """Move at most so many bytes on, which are in it; how many.

        Raises:
            BlockingIOError: the other pipe is full.
            BrokenPipeError: it has no reader.
        """
        return os.splice(self.fd, fd, count)

    def clear(self) -> None:
        """Throw away what is in it."""
        while count := self.held():
            os.read(self.fd, count)

    def close(self) -> None:
        os.close(self.fd)


def _pipe() -> int:
    ends = os.pipe2(os.O_CLOEXEC)
    try:
        return os.open(f"/proc/self/fd/{ends[0]}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        for end in ends:
            os.close(end)
