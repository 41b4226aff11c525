"""Follows one journal for all tasks whose consoles are in it."""

from typing import TYPE_CHECKING

from solo5_systemd.relay.journal_catchup import ALL_MATCHES, BATCH_SIZE, OpenJournal

if TYPE_CHECKING:
    from solo5_systemd.journal.lines import JournalPosition, Line


class JournalFollower:
    """A reader of the lines that are written from now on.

    Each journal namespace has its own follower. sd_journal orders the entries of all its files by time, and skips an
    entry whose time is before its position: with the files of two journalds, which write concurrently, it would skip
    lines.

    Args:
        open_journal: opens a reader.
        namespace: the journal namespace; empty: the host's journal.

    Attributes:
        namespace: as above.
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
