"""A lane's own reader, which brings what the lane had passed over; open only while it has room for it."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from solo5_systemd.journal.export import Stream
from solo5_systemd.journal.lines import LEFT_OUT
from solo5_systemd.journal.reader import CONSOLES, JournalReader, console
from solo5_systemd.relay import journal_catchup
from solo5_systemd.relay.line_queue import Lane

if TYPE_CHECKING:
    from solo5_systemd.journal.lines import Line


# The moment from which a task's lines are wanted, on the clock that people set and on the one that nobody sets.
#
# A host's clock may be set back while tasks run, as time synchronization does soon after a boot: what a task writes
# from then on seems to be older than the task. So the moment is asked for and searched for by the one clock, and kept
# and compared by the other. All times are microseconds.


def now() -> tuple[int, int]:
    """Since the epoch, and since boot. Who is held up between the two takes a moment for an earlier one."""
    since_boot = time.monotonic_ns() // 1000
    return time.time_ns() // 1000, since_boot


def monotonic(realtime: int) -> int:
    """This moment since the epoch, which is past, since boot; negative where it was before."""
    since_epoch, since_boot = now()
    return since_boot - max(0, since_epoch - realtime)


def earliest(realtime: int, since_boot: int) -> int:
    """Since the epoch: what was written from this moment on has no earlier time, however the clock was set since."""
    epoch_now, boot_now = now()
    return min(realtime, epoch_now - (boot_now - since_boot))


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
        lines = journal.lines_from(journal_catchup.earliest(self._since, self._began))
        return (line for line in lines if line.place.monotonic >= self._began)
