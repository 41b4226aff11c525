"""A lane's own reader, which brings what the lane had passed over; open only while it has room for it."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from solo5_systemd.journal.export import Stream
from solo5_systemd.journal.lines import LEFT_OUT
from solo5_systemd.journal.reader import CONSOLES, JournalReader, console
from solo5_systemd.relay import clocks
from solo5_systemd.relay.lane import Lane

if TYPE_CHECKING:
    from solo5_systemd.journal.lines import Line

SLICE = 400
"""Lines that are read before others have their turn: some milliseconds."""

ALL = (*CONSOLES, "+", *LEFT_OUT)
"""Matches the lines of all tasks, and what journald says of lines that it left out."""

OpenJournal = Callable[[Sequence[str], str], JournalReader]
"""Given matches and a namespace, which is empty for the host's journal."""

OpenOne = Callable[[Sequence[str]], JournalReader]


def matches(unit: str, stream: Stream) -> Sequence[str]:
    """What matches one stream's lines of `ALL`."""
    notices = ("+", *LEFT_OUT, f"OBJECT_SYSTEMD_UNIT={unit}") if stream is Stream.STDERR else ()
    return (*console(unit, stream), *notices)


class Refill:
    """Reads the lines of one stream of a unit.

    Args:
        lane: where they go; its place is where reading begins.
        wanted: what matches them.
        since: where reading begins for a lane that has come nowhere, in microseconds since the epoch and since boot.
        open_journal: given matches, a reader of the journal.
    """

    def __init__(self, lane: Lane, wanted: Sequence[str], since: tuple[int, int], open_journal: OpenOne) -> None:
        self._lane = lane
        self._matches = wanted
        self._since, self._began = since
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
        self._lines = self._journal.lines_after(after) if after else self._from_the_beginning(self._journal)

    def _from_the_beginning(self, journal: JournalReader) -> "Iterator[Line]":
        lines = journal.lines_from(clocks.earliest(self._since, self._began))
        return (line for line in lines if line.place.monotonic >= self._began)
