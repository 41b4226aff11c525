"""A lane's own reader, which brings what the lane had passed over; open only while it has room for it."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from solo5_systemd.journal.export import Stream
from solo5_systemd.journal.gaps import LEFT_OUT
from solo5_systemd.journal.sdjournal import CONSOLES, JournalReader, console
from solo5_systemd.relay.lane import Lane

if TYPE_CHECKING:
    from solo5_systemd.journal.lines import Line

SLICE = 400
"""Lines that are read before others have their turn: some milliseconds."""

ALL = (*CONSOLES, "+", *LEFT_OUT)
"""Matches the lines of all tasks, and what journald says of lines that it left out."""

OpenJournal = Callable[[Sequence[str]], JournalReader]


def matches(unit: str, stream: Stream) -> Sequence[str]:
    """What matches one stream's lines of `ALL`."""
    notices = ("+", *LEFT_OUT, f"OBJECT_SYSTEMD_UNIT={unit}") if stream is Stream.STDERR else ()
    return (*console(unit, stream), *notices)


class Refill:
    """Reads the lines of one stream of a unit, from `since` (microseconds since the epoch) or where the lane is."""

    def __init__(self, lane: Lane, unit: str, stream: Stream, since: int, open_journal: OpenJournal) -> None:
        self._lane = lane
        self._matches = matches(unit, stream)
        self._since = since
        self._open_journal = open_journal
        self._journal: JournalReader | None = None
        self._lines: Iterator[Line] = iter(())
        self._at = ""

    def step(self) -> bool:
        """Read a slice, if the lane wants one; whether it did."""
        if self._journal is not None and self._at != self._lane.last:
            self.close()  # the lane has shelved what it had
        fresh = self._journal is None
        if fresh:
            if not self._lane.hungry:
                return False
            self._open(self._lane.last)
        if not self._lane.refill(self._lines, SLICE, fresh=fresh):
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
