"""One stream of one task: what is to be written next, and what is still in the journal only.

One reader follows the journal for all lanes and `offer`s each line to its own. A lane holds little: where its FIFO is
not read, the lines that find no room are passed over, and `gap` remembers the last of them. Once there is room, they
are read from the journal again, by this lane's own reader, up to that line; everything after it is offered. Both
happen in one thread, so that nothing can come in between, and no line is lost or doubled at the seam.
"""

from collections import deque
from collections.abc import Iterator

from solo5_systemd.journal.export import Stream
from solo5_systemd.journal.lines import Line, Place
from solo5_systemd.relay.state import NOTHING, Progress

LIMIT = 1 << 18
"""Bytes of memory that a lane's lines take together; a single line may take more."""

OVERHEAD = 400
"""Bytes of memory that a line takes beside its text, by measurement."""

CHUNK = 1 << 16
"""Bytes to write at once: what a pipe holds."""


class Lane:
    """Lines in their order.

    Attributes:
        progress: what was written.
        gap: the last line that was passed over, None where all lines that are not written are here.
        left_out: how many lines journald has left out, of which notice was written since this was last set to 0.
        removed: how many lines were passed over and then not in the journal any more, since this was last set to 0.
            Those before a gap that was there from the beginning were not counted.
    """

    def __init__(self, *, progress: Progress = NOTHING, gap: Place | None = None) -> None:
        self.progress = progress
        self.gap = gap
        self.left_out = self.removed = 0
        self._passed: int | None = None if gap else 0
        self._lines: deque[Line] = deque()
        self._size = 0

    @property
    def pending(self) -> bool:
        """There is something to write."""
        return bool(self._lines)

    @property
    def done(self) -> bool:
        """All that was offered is written."""
        return not self._lines and self.gap is None

    @property
    def hungry(self) -> bool:
        """There is a gap, and room enough to be worth reading the journal for."""
        return self.gap is not None and self._size <= LIMIT // 2

    @property
    def last(self) -> str:
        """Cursor of the last line before the gap; empty where that is the beginning."""
        return self._lines[-1].place.cursor if self._lines else self.progress.cursor

    def offer(self, line: Line) -> None:
        """Take the next line, or pass over it for now."""
        if self.gap is not None or self._full(line):
            self.pass_over(line)
        else:
            self._take(line)

    def pass_over(self, line: Line) -> None:
        """Leave the next line to the journal."""
        self.gap = line.place
        self._count(1)

    def shelve(self) -> None:
        """Leave to the journal all but the line that is written in part: nobody reads."""
        while len(self._lines) > bool(self.progress.written):
            line = self._lines.pop()
            self._size -= _cost(line)
            if not line.is_ours:
                self.gap = self.gap or line.place
                self._count(1)

    def tell(self, notice: bytes) -> None:
        """Write a line that is in no journal, behind those that are here."""
        place = Place(cursor=self.last, monotonic=0)
        self._take(Line(unit="", stream=Stream.STDERR, data=notice, place=place, realtime=0, is_ours=True))

    def refill(self, lines: Iterator[Line], most: int, *, fresh: bool) -> bool:
        """Take lines that had been passed over, at most so many.

        Args:
            lines: the journal's, after `last`.
            most: how many to read before others have their turn.
            fresh: they began after the last line was passed over: where they end, the journal does. Others may end with
                a file that journald has put aside since.

        Returns:
            Whether to go on with the same reader: the gap is not closed, and there is room.
        """
        for _ in range(most):
            line = next(lines, None)
            if line is None and not fresh:
                return False
            if self.gap is None or line is None or line.place.monotonic > self.gap.monotonic:
                self._close_gap()  # or the journal has its end no more, and all that it has was read
                return False
            self._take(line)
            self._count(-1)
            if line.place == self.gap:
                self._close_gap()
                return False
            if self._size >= LIMIT:
                return False
        return True

    def chunk(self) -> bytes:
        """The next bytes to write. A notice of ours is alone: whoever goes on within it would not find it."""
        parts: list[bytes] = []
        size = -self.progress.written
        for line in self._lines:
            if line.is_ours and parts:
                break
            parts.append(line.data)
            size += len(line.data)
            if size >= CHUNK or line.is_ours:
                break
        return b"".join(parts)[self.progress.written :]

    def wrote(self, count: int) -> None:
        """So many bytes of `chunk` were written."""
        cursor, written = self.progress.cursor, self.progress.written + count
        while self._lines and written >= len(self._lines[0].data):
            line = self._lines.popleft()
            self._size -= _cost(line)
            self.left_out += line.left_out
            cursor, written = line.place.cursor, written - len(line.data)
        self.progress = Progress(cursor=cursor, written=written)

    def _count(self, lines: int) -> None:
        if self._passed is not None:
            self._passed += lines

    def _close_gap(self) -> None:
        self.removed += max(0, self._passed or 0)
        self.gap, self._passed = None, 0

    def _full(self, line: Line) -> bool:
        return bool(self._lines) and self._size + _cost(line) > LIMIT

    def _take(self, line: Line) -> None:
        if line.data:
            self._lines.append(line)
            self._size += _cost(line)


def _cost(line: Line) -> int:
    return len(line.data) + OVERHEAD
