"""The queue of a stream's lines between the journal and a FIFO, and the notices of lines that are missing."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf

from solo5_systemd.journal.lines import JournalPosition, Line, Stream

MEMORY_LIMIT = 1 << 18
"""Bytes of memory for the lines of a queue together; a single line may be longer."""

LINE_OVERHEAD = 400
"""Bytes of memory that a line takes beside its text (measured)."""

NO_LINES: deque[Line] = deque(maxlen=0)
"""The lines of every queue without one: an empty deque of its own takes 760 bytes, and most queues are empty."""

CHUNK_SIZE = 1 << 16
"""Bytes to write at once: the default capacity of a pipe."""


@dataclass(frozen=True, kw_only=True)
class StreamPosition:
    """A position: the cursor of the last line before it (empty: none), and the offset in the next line in bytes."""

    cursor: str = ""
    written: int = 0


START = StreamPosition()


class LineQueue:
    """The lines of one stream of one task that are to be written next.

    One reader follows the journal for all queues and `offer`s each line to its queue. Memory is bounded: while a FIFO
    is not read, lines beyond the limit are skipped, and `catch_up_to` is the last of them. When there is room again,
    the queue's own reader reads them from the journal up to that line (`catch_up`); later lines are offered again. Both
    run in one thread, so that no line is lost or duplicated in between.

    Attributes:
        catch_up_to: the last skipped line; None: all lines that are not written are in the queue.
        notice: bytes that are not in the journal, to be written as soon as no line is partly written. They are a chunk
            of their own: a restarted relay does not have them, and must not resume within.
        dropped: lines that journald dropped according to the notices written; reset to 0 by its reader.
        removed: skipped lines that were removed from the journal before they were read; reset to 0 by its reader. Lines
            before a `catch_up_to` that was passed to the constructor are not counted.
    """

    __slots__ = ("_lines", "_size", "_skipped", "catch_up_to", "dropped", "notice", "position", "removed")

    def __init__(self, *, position: StreamPosition = START, catch_up_to: JournalPosition | None = None) -> None:
        self.position = position
        self.catch_up_to = catch_up_to
        self.notice = b""
        self.dropped = self.removed = 0
        self._skipped: float = -inf if catch_up_to else 0
        self._lines = NO_LINES
        self._size = 0

    @property
    def is_delivered(self) -> bool:
        """All offered lines and the notice were written."""
        return not self._lines and not self.notice and self.catch_up_to is None

    @property
    def can_catch_up(self) -> bool:
        """Lines were skipped, and half of the memory is free."""
        return self.catch_up_to is not None and self._size <= MEMORY_LIMIT // 2

    @property
    def last_cursor(self) -> str:
        """The cursor of the last line before the skipped ones; empty: none."""
        return self._lines[-1].position.cursor if self._lines else self.position.cursor

    def offer(self, line: Line) -> None:
        """Append the stream's next line, or skip it if there is no room."""
        is_full = bool(self._lines) and self._size + _cost(line) > MEMORY_LIMIT
        if self.catch_up_to is not None or is_full:  # later lines follow the skipped ones
            self.skip(line)
        else:
            self._append(line)

    def skip(self, line: Line) -> None:
        """Skip the stream's next line; it is read from the journal later."""
        self.catch_up_to = line.position
        self._skipped += 1

    def evict(self) -> bool:
        """Drop all lines but a partly written one, to free memory while the FIFO has no reader; return whether any."""
        is_any = len(self._lines) > bool(self.position.written)
        while len(self._lines) > bool(self.position.written):
            line = self._lines.pop()
            self._size -= _cost(line)
            self.catch_up_to = self.catch_up_to or line.position
            self._skipped += 1
        self._free()
        return is_any

    def _free(self) -> None:
        if not self._lines:
            self._lines = NO_LINES

    def catch_up(self, lines: Iterable[Line]) -> None:
        """Append skipped lines, which are those after `last_cursor`, until the queue is full.

        Their reader was opened after the last line was skipped, so that its end is the journal's end.
        """
        last = self.catch_up_to
        for line in lines:
            if last is None or line.position.monotonic > last.monotonic:
                break  # the last skipped line was removed from the journal: all lines that are left have been read
            self._append(line)
            self._skipped -= 1
            if line.position == last:
                break
            if self._size >= MEMORY_LIMIT:
                return
        self.removed += int(max(0, self._skipped))
        self.catch_up_to, self._skipped = None, 0

    def next_chunk(self) -> bytes:
        """Return the next bytes to write, about CHUNK_SIZE."""
        if self._is_next_a_notice:
            return self.notice[:CHUNK_SIZE]
        parts: list[bytes] = []
        size = -self.position.written
        for line in self._lines:
            parts.append(line.data)
            size += len(line.data)
            if size >= CHUNK_SIZE:
                break
        return b"".join(parts)[self.position.written :]

    def advance(self, count: int) -> None:
        """Advance by the bytes of `next_chunk` that were written."""
        if self._is_next_a_notice:
            self.notice = self.notice[count:]
            return
        cursor, written = self.position.cursor, self.position.written + count
        while self._lines and written >= len(self._lines[0].data):
            line = self._lines.popleft()
            self._size -= _cost(line)
            self.dropped += line.dropped
            cursor, written = line.position.cursor, written - len(line.data)
        self._free()
        self.position = StreamPosition(cursor=cursor, written=written)

    @property
    def _is_next_a_notice(self) -> bool:
        return bool(self.notice) and not (self._lines and self.position.written)

    def _append(self, line: Line) -> None:
        if line.dropped:
            line = replace(line, data=dropped_notice(line.dropped))
        if line.data:  # one without bytes would never be written, and a Drain would wait for it
            if self._lines is NO_LINES:
                self._lines = deque()
            self._lines.append(line)
            self._size += _cost(line)


def _cost(line: Line) -> int:
    return len(line.data) + LINE_OVERHEAD


def dropped_notice(lines: int) -> bytes:
    """Return the line that is written in the place of lines that journald dropped."""
    return f"solo5-relay: journald dropped {_lines(lines)} of this task here (rate limit exceeded)\n".encode()


def removed_notice(lines: int, stream: Stream) -> bytes:
    """Return the line about skipped lines that were removed from the journal before they were read."""
    return f"solo5-relay: journald removed {_lines(lines)} of this task's {stream} before delivery\n".encode()


def _lines(count: int) -> str:
    return "1 line" if count == 1 else f"{count} lines"
