"""The write end of one FIFO, the lane that leads to it, and the staging pipe in between.

A FIFO that has lost its reader stays open: what had been written and not read is still in it for the next reader, and
is gone with the last descriptor. Nobody tells of a new reader, so it is looked for now and then.
"""

import asyncio
import fcntl
import os
import select
import struct
import termios
from collections.abc import Callable

from solo5_systemd.journal.lines import Line, Place
from solo5_systemd.relay.line_queue import Lane
from solo5_systemd.relay.state import Delivery

# A pipe between the relay and a FIFO, which knows how much has reached the FIFO when the relay does not.
#
# A process that is killed after a write, and before it has noted the write, cannot tell afterwards whether it
# happened; and what is still in the FIFO says nothing, since somebody reads it. So the bytes go into a pipe that
# nobody else has, it is noted where they lead, and splice(2) moves them from there: they leave the one pipe as they
# enter the other, under both pipes' locks. What the staging pipe holds is what has not arrived. systemd keeps it
# beside the FIFO.


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


RETRY = 0.5
"""Seconds between two looks for a new reader."""


class Outlet:
    """Moves on what its lane has as fast as the FIFO takes it, and never waits.

    Args:
        delivery: how far the stream has come.
        gap: up to where the journal's lines have to be read again.
        staging: a pipe that holds what `delivery` says of it, and is the outlet's to close.
        keep: called when `delivery` has changed; what it says is to be kept before anything else happens.

    Attributes:
        lane: what comes next; its progress is where that begins, behind what is staged.
    """

    def __init__(self, delivery: Delivery, gap: Place | None, staging: Staging, keep: Callable[[], None]) -> None:
        if delivery.staged is None:
            staging.clear()
        self._held = staging.held()
        self.lane = Lane(progress=delivery.staged or delivery.sure, gap=gap)
        self._sure = delivery.sure if self._held else self.lane.progress
        self._staging = staging
        self._keep = keep
        self._loop = asyncio.get_running_loop()
        self._fd: int | None = None
        self._waiting = False
        self._retry: asyncio.TimerHandle | None = None

    @property
    def delivery(self) -> Delivery:
        return Delivery(sure=self._sure, staged=self.lane.progress if self._held else None)

    @property
    def is_open(self) -> bool:
        return self._fd is not None

    @property
    def flows(self) -> bool:
        """Somebody may read."""
        return self._fd is not None and self._retry is None

    @property
    def is_done(self) -> bool:
        """All that was offered is in the FIFO."""
        return self.lane.done and not self._held

    @property
    def is_hopeless(self) -> bool:
        """Nobody reads, and nobody can come to: the FIFO has no name any more."""
        return self._fd is not None and os.fstat(self._fd).st_nlink == 0 and _lacks_reader(self._fd)

    def open(self, fd: int) -> None:
        """Write to this descriptor from now on, which is the outlet's to close; it must not block."""
        self._leave()
        self._fd = fd
        self.stir()

    def close(self) -> None:
        """Let the reader see the end."""
        self._leave()
        self._staging.close()

    def offer(self, line: Line) -> None:
        """Take the journal's next line; `stir` has to follow."""
        if self.flows:
            self.lane.offer(line)
        else:
            self.lane.pass_over(line)

    def stir(self) -> None:
        """The lane has changed: move on what the FIFO takes at once, and the rest when it takes more."""
        if self.flows and not self._waiting:
            self._move()

    def _move(self) -> None:
        assert self._fd is not None  # noqa: S101 - it flows
        try:
            while self._held or self._stage():
                self._pour(self._fd)
        except BlockingIOError:
            self._watch()
        except BrokenPipeError:
            self._unwatch()
            self.lane.shelve()
            self._retry = self._loop.call_later(RETRY, self._try_again)
        else:
            self._unwatch()

    def _stage(self) -> bool:
        """Put the next chunk into the staging pipe, which is empty and said to be; whether there is one."""
        chunk = self.lane.chunk()
        if chunk:
            self._held = self._staging.fill(chunk)
            self.lane.wrote(self._held)
            self._keep()
        return bool(chunk)

    def _pour(self, fd: int) -> None:
        self._held -= self._staging.pour(fd, self._held)
        if not self._held:
            self._sure = self.lane.progress
            self._keep()

    def _try_again(self) -> None:
        self._retry = None
        self._move()

    def _leave(self) -> None:
        self._unwatch()
        if self._retry is not None:
            self._retry.cancel()
        if self._fd is not None:
            os.close(self._fd)
        self._fd = self._retry = None

    def _watch(self) -> None:
        if not self._waiting and self._fd is not None:
            self._loop.add_writer(self._fd, self._move)
            self._waiting = True

    def _unwatch(self) -> None:
        if self._waiting and self._fd is not None:
            self._loop.remove_writer(self._fd)
        self._waiting = False


def _lacks_reader(fd: int) -> bool:
    """What poll(2) says of a write end, asked or not."""
    poll = select.poll()
    poll.register(fd, 0)
    return bool(poll.poll(0))
