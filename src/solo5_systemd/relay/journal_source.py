"""The lines of the journal that the relay forwards: new ones of all tasks, and skipped ones of a queue."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from solo5_systemd.journal.lines import Stream
from solo5_systemd.journal.reader import CONSOLE_MATCHES, JournalReader, console_matches
from solo5_systemd.relay.line_queue import LineQueue
from solo5_systemd.relay.notices import DROPPED_MATCHES

if TYPE_CHECKING:
    from solo5_systemd.journal.lines import JournalPosition, Line


BATCH_SIZE = 400
"""Lines to read before other consoles get their turn: some milliseconds."""

ALL_MATCHES = (*CONSOLE_MATCHES, "+", *DROPPED_MATCHES)
"""Matches the lines of all tasks, and journald's messages about dropped lines."""

OpenJournal = Callable[[Sequence[str], str], JournalReader]
"""Opens a reader, given matches and a journal namespace; empty: the host's journal."""


def clock_times() -> tuple[int, int]:
    """Return (CLOCK_REALTIME, CLOCK_MONOTONIC) in µs.

    CLOCK_MONOTONIC is read first: a preemption in between can only make the moment look earlier.
    """
    since_boot = time.monotonic_ns() // 1000
    return time.time_ns() // 1000, since_boot


def to_monotonic(realtime: int) -> int:
    """Convert a past CLOCK_REALTIME to CLOCK_MONOTONIC, both in µs; negative: before boot.

    The start of a task is passed and searched for by CLOCK_REALTIME, and stored and compared by CLOCK_MONOTONIC: the
    former may be set back while a task runs, as time synchronization does after boot, and later lines of the task would
    seem to be older than the task.
    """
    since_epoch, since_boot = clock_times()
    return since_boot - max(0, since_epoch - realtime)


def earliest_realtime(realtime: int, since_boot: int) -> int:
    """Return a CLOCK_REALTIME in µs before which no line since this moment is, however the clock was set meanwhile."""
    epoch_now, boot_now = clock_times()
    return min(realtime, epoch_now - (boot_now - since_boot))


def matches(unit: str, stream: Stream) -> Sequence[str]:
    """Return the matches for one stream of a unit; stderr includes journald's messages about dropped lines."""
    dropped = ("+", *DROPPED_MATCHES, f"OBJECT_SYSTEMD_UNIT={unit}") if stream is Stream.STDERR else ()
    return (*console_matches(unit, stream), *dropped)


class JournalCatchup:
    """A reader of the skipped lines of one stream; it has the journal open only while its queue has room.

    Args:
        queue: gets the lines; reading starts after its `last_cursor`.
        since: where reading starts without a cursor, as (CLOCK_REALTIME, CLOCK_MONOTONIC) in µs.
    """

    def __init__(self, queue: LineQueue, since: tuple[int, int], open_journal: Callable[[], JournalReader]) -> None:
        self._queue = queue
        self._since, self._since_monotonic = since
        self._open_journal = open_journal
        self._journal: JournalReader | None = None
        self._lines: Iterator[Line] = iter(())
        self._cursor = ""

    def step(self) -> bool:
        """Read a batch of lines, if the queue has room; return whether something was read."""
        if self._journal is not None and self._cursor != self._queue.last_cursor:
            self.close()  # the queue has evicted lines: start again after its last one
        fresh = self._journal is None
        if fresh:
            if not self._queue.can_catch_up:
                return False
            self._open(self._queue.last_cursor)
        if not self._queue.catch_up(self._lines, BATCH_SIZE, fresh=fresh):
            self.close()
        self._cursor = self._queue.last_cursor
        return True

    def close(self) -> None:
        """Close the journal, if it is open."""
        if self._journal is not None:
            self._journal.close()
        self._journal = None

    def _open(self, after: str) -> None:
        self._journal = self._open_journal()
        self._lines = self._journal.lines_after(after) if after else self._from_start(self._journal)

    def _from_start(self, journal: JournalReader) -> "Iterator[Line]":
        lines = journal.lines_from(earliest_realtime(self._since, self._since_monotonic))
        return (line for line in lines if line.position.monotonic >= self._since_monotonic)


class JournalFollower:
    """A reader of the lines that are written from now on.

    Each journal namespace has its own follower. sd_journal orders the entries of all its files by time, and skips an
    entry whose time is before its position: with the files of two journalds, which write concurrently, it would skip
    lines.

    Args:
        namespace: the journal namespace; empty: the host's journal.

    Attributes:
        fd: a descriptor that is readable when there may be new lines or files (sd_journal_get_fd(3)).
        last_line: the last line read, or the last one before the follower was opened; None: the journal was empty.
    """

    def __init__(self, open_journal: OpenJournal, namespace: str) -> None:
        self.namespace = namespace
        self._journal = open_journal(ALL_MATCHES, namespace)
        self.fd = self._journal.watch()
        self.last_line: Line | None = self._journal.seek_end()

    @property
    def position(self) -> "JournalPosition | None":
        """The position of the last line."""
        return self.last_line.position if self.last_line is not None else None

    def read_past(self, since_monotonic: int) -> "JournalPosition | None":
        """Return the position of the last line if it is not before this time (µs since boot), else None."""
        position = self.position
        return position if position is not None and position.monotonic >= since_monotonic else None

    def read_batch(self) -> "list[Line]":
        """Return new lines; fewer than BATCH_SIZE at the end of the journal."""
        lines = self._journal.read_batch(BATCH_SIZE)
        self.last_line = lines[-1] if lines else self.last_line
        return lines

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()
