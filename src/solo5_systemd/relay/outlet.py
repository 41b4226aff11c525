"""The write end of one FIFO, and the lane that leads to it.

A FIFO that has lost its reader stays open: what had been written and not read is still in it for the next reader, and
is gone with the last descriptor.
"""

import asyncio
import os
from collections.abc import Callable

from solo5_systemd.journal.lines import Line
from solo5_systemd.relay.lane import Lane


class Outlet:
    """Writes what its lane has as fast as the FIFO takes it, and never waits.

    Args:
        lane: where the lines are.
        progress: called after something was written.

    Attributes:
        settled: set while there is nothing to write, or nobody to write to.
    """

    def __init__(self, lane: Lane, progress: Callable[[], None]) -> None:
        self.lane = lane
        self.settled = asyncio.Event()
        self.settled.set()
        self._progress = progress
        self._loop = asyncio.get_running_loop()
        self._fd: int | None = None
        self._waiting = False
        self._broken = False

    @property
    def is_open(self) -> bool:
        return self._fd is not None

    @property
    def flows(self) -> bool:
        """Somebody may read."""
        return self._fd is not None and not self._broken

    def open(self, fd: int) -> None:
        """Write to this descriptor from now on, which is the outlet's to close; it must not block."""
        before = self._fd
        self._unwatch()
        if before is not None:
            if not os.path.sameopenfile(before, fd):
                self.lane.start_over()
            os.close(before)
        self._fd, self._broken = fd, False
        self.stir()

    def close(self) -> None:
        """Let the reader see the end."""
        self._unwatch()
        if self._fd is not None:
            os.close(self._fd)
        self._fd = None

    def offer(self, line: Line) -> None:
        """Take the journal's next line; `stir` has to follow."""
        if self.flows:
            self.lane.offer(line)
        else:
            self.lane.pass_over(line)

    def stir(self) -> None:
        """The lane has changed: write what the FIFO takes at once, and the rest when it takes more."""
        if self.flows and self.lane.pending and not self._waiting:
            self._write()
        self._settle()

    def _write(self) -> None:
        assert self._fd is not None  # noqa: S101 - it flows
        try:
            self.lane.wrote(os.write(self._fd, self.lane.chunk()))
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self._broken = True
            self._unwatch()
            self.lane.shelve()
            return
        else:
            self._progress()
        if self.lane.pending:
            self._watch()
        else:
            self._unwatch()

    def _writable(self) -> None:
        self._write()
        self._settle()

    def _settle(self) -> None:
        if self.lane.done or not self.flows:
            self.settled.set()
        else:
            self.settled.clear()

    def _watch(self) -> None:
        if not self._waiting and self._fd is not None:
            self._loop.add_writer(self._fd, self._writable)
            self._waiting = True

    def _unwatch(self) -> None:
        if self._waiting and self._fd is not None:
            self._loop.remove_writer(self._fd)
        self._waiting = False
