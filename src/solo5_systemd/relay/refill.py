"""A lane's own reader, which brings what the lane had passed over; open only while it has room for it."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from solo5_systemd.journal.export import Stream
from solo5_systemd.journal.sdjournal import JournalReader, console
from solo5_systemd.relay.lane import Lane

if TYPE_CHECKING:
    from solo5_systemd.journal.lines import Line

SLICE = 400
"""Lines that are read before others have their turn: some milliseconds."""

OpenJournal = Callable[[Sequence[str]], JournalReader]


class Refill:
    """Reads the lines of one stream of a unit, from `since` (microseconds since the epoch) or where the lane is."""

    def __init__(self, lane: Lane, unit: str, stream: Stream, since: int, open_journal: OpenJournal) -> None:
        self._lane = lane
        self._matches = console(unit, stream)
        self._since = since
        self._open_journal = open_journal
        self._journal: JournalReader | None = None
        self._lines: Iterator[Line] = iter(())
        self._at = ""

    def step(self) -> bool:
        """Read a slice, if the lane wants one; whether it did."""
        if self._journal is not None and self._at != self._lane.last:
            self.close()  # the lane has shelved what it had
        if self._journal is None:
            if not self._lane.hungry:
                return False
            self._open(self._lane.last)
        if not self._lane.refill(self._lines, SLICE):
            self.close()
        self._at = self._lane.last
        return True

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()
        self._journal = None

    def _open(self, after: str) -> None:
        self._journal = self._open_journal(self._matches)
        self._lines = self._journal.lines_after(after) if after else self._journal.lines_from(self._since)
