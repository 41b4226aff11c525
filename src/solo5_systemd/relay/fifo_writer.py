"""The writer of one FIFO, with the staging pipe before it, and the name of both in systemd's fd store."""

import asyncio
import fcntl
import os
import select
import struct
import termios
from collections.abc import Callable

from solo5_systemd.journal.lines import JournalPosition, Line
from solo5_systemd.relay.line_queue import LineQueue, StreamPosition
from solo5_systemd.relay.state_files import Delivery

READER_RETRY_INTERVAL_S = 0.5
"""Between two checks for a new reader of a FIFO: the kernel has no notification for it."""


def open_staging_pipe() -> int:
    """Open a pipe between the relay and a FIFO; return one non-blocking descriptor that is both ends.

    systemd stores it with the FIFO. From its content, a restarted relay determines how much has reached the FIFO
    (docs/decisions/exactly-once-consoles.md).
    """
    ends = os.pipe2(os.O_CLOEXEC)
    try:
        return os.open(f"/proc/self/fd/{ends[0]}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        for end in ends:
            os.close(end)


def _fill_level(pipe: int) -> int:
    (count,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))
    return int(count)


class FifoWriter:
    """Writes the lines of a queue into a FIFO, without blocking.

    A FIFO without a reader stays open: its content is kept for the next reader, and would be lost with the last
    descriptor.

    Args:
        save: called when `delivery` has changed, which it has to save before it returns, and when lines have left the
            queue that are to be read again.
    """

    __slots__ = (
        "_confirmed", "_fd", "_loop", "_retry", "_save", "_staged_bytes", "_watching", "queue", "staging",
    )  # fmt: skip

    def __init__(
        self,
        delivery: Delivery,
        catch_up_to: JournalPosition | None,
        staging: int,
        save: Callable[[], None],
    ) -> None:
        if delivery.staged is None and (left := _fill_level(staging)):  # killed after the write, before its record
            os.read(staging, left)
        self._staged_bytes = _fill_level(staging)
        self.queue = LineQueue(position=delivery.staged or delivery, catch_up_to=catch_up_to)
        self._confirmed: StreamPosition = delivery if self._staged_bytes else self.queue.position
        self.staging = staging
        self._save = save
        self._loop = asyncio.get_running_loop()
        self._fd: int | None = None
        self._watching = False
        self._retry: asyncio.TimerHandle | None = None

    @property
    def delivery(self) -> Delivery:
        """How far the stream was delivered."""
        staged = self.queue.position if self._staged_bytes else None
        return Delivery(cursor=self._confirmed.cursor, written=self._confirmed.written, staged=staged)

    @property
    def is_open(self) -> bool:
        """The writer has a FIFO."""
        return self._fd is not None

    @property
    def has_reader(self) -> bool:
        """The FIFO is open, and the last write did not fail with EPIPE."""
        return self._fd is not None and self._retry is None

    @property
    def is_delivered(self) -> bool:
        """All offered lines are in the FIFO."""
        return self.queue.is_delivered and not self._staged_bytes

    @property
    def is_unreachable(self) -> bool:
        """The FIFO has no reader and cannot get one, because it was unlinked."""
        if self._fd is None or os.fstat(self._fd).st_nlink:
            return False
        poll = select.poll()
        poll.register(self._fd, 0)  # for POLLERR, which poll(2) always reports
        return bool(poll.poll(0))

    def open(self, fd: int) -> None:
        """Write to this non-blocking descriptor from now on; closed by this writer."""
        self._close_fifo()
        self._fd = fd
        self.pump()

    def close(self) -> None:
        """Close the FIFO, whose reader gets an end of file, and the staging pipe."""
        self._close_fifo()
        os.close(self.staging)

    def offer(self, line: Line) -> None:
        """Add the stream's next line to the queue; `pump` has to be called afterwards."""
        if self.has_reader:
            self.queue.offer(line)
        else:
            self.queue.skip(line)  # nothing would free its memory: it is read from the journal again

    def pump(self) -> None:
        """Write as much of the queue as the FIFO takes; the rest is written when the FIFO becomes writable."""
        if self.has_reader and not self._watching:
            self._write()

    def _write(self) -> None:
        assert self._fd is not None  # noqa: S101 - has_reader
        self._retry = None
        try:
            while self._staged_bytes or (chunk := self.queue.next_chunk()):
                if not self._staged_bytes:  # the staging pipe is empty, and takes the next chunk
                    self._staged_bytes = os.write(self.staging, chunk)
                    self.queue.advance(self._staged_bytes)
                    self._save()
                self._staged_bytes -= os.splice(self.staging, self._fd, self._staged_bytes)
                if not self._staged_bytes:
                    self._confirmed = self.queue.position
                    self._save()
        except BlockingIOError:  # the FIFO is full
            if not self._watching:
                self._loop.add_writer(self._fd, self._write)
                self._watching = True
        except BrokenPipeError:  # no reader: until one comes, lines would only take memory
            self._unwatch()
            if self.queue.evict():
                self._save()
            self._retry = self._loop.call_later(READER_RETRY_INTERVAL_S, self._write)
        else:
            self._unwatch()

    def _close_fifo(self) -> None:
        self._unwatch()
        if self._retry is not None:
            self._retry.cancel()
        if self._fd is not None:
            os.close(self._fd)
        self._fd = self._retry = None

    def _unwatch(self) -> None:
        if self._watching and self._fd is not None:
            self._loop.remove_writer(self._fd)
        self._watching = False


def stored_name(number: int) -> str:
    """Return the name in systemd's fd store of a console's descriptors: of each stream the FIFO and the staging pipe.

    systemd passes all names in LISTEN_FDNAMES, and execve(2) limits a variable to 128 KiB: with the names of tasks, a
    relay with a thousand tasks could not be executed again.
    """
    return f"c{number}"
