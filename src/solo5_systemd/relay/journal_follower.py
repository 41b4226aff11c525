"""One journal, the host's or a namespace's, that is followed for all tasks whose consoles are in it.

Each has a reader of its own. sd_journal orders the entries of all its files by their time, and leaves out one whose
time lies before its place: with the files of two journalds, which write at once, that would be a line now and then.
"""

from itertools import islice
from typing import TYPE_CHECKING

from solo5_systemd.relay.journal_catchup import ALL, SLICE, OpenJournal

if TYPE_CHECKING:
    from solo5_systemd.journal.lines import Line, Place


class Follower:
    """Reads what is written from now on.

    Args:
        open_journal: given matches, a reader of the journal.
        namespace: of the journal; empty: the host's.

    Attributes:
        news: a descriptor that is readable when there may be something to read.
        last: the last line read, or the last before them.
    """

    def __init__(self, open_journal: OpenJournal, namespace: str) -> None:
        self.namespace = namespace
        self._journal = open_journal(ALL, namespace)
        self.news = self._journal.watch()
        self.last: Line | None = self._journal.seek_end()

    @property
    def place(self) -> "Place | None":
        return self.last.place if self.last is not None else None

    def passed(self, began: int) -> "Place | None":
        """Return up to where lines of this time (microseconds since boot) or later may have been read already."""
        return self.last.place if self.last is not None and self.last.place.monotonic >= began else None

    def slice(self) -> "list[Line]":
        """Return some lines; fewer than `SLICE` where the journal ends."""
        lines = list(islice(iter(self._journal.next, None), SLICE))
        if len(lines) < SLICE:
            # Not before a file was read to its end, since it may have been removed; and it may not be the last.
            self._journal.refresh()
            lines.extend(islice(iter(self._journal.next, None), SLICE))
        self.last = lines[-1] if lines else self.last
        return lines

    def close(self) -> None:
        self._journal.close()
