"""A journal in memory: written line by line, read as JournalReader reads."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress

from solo5_systemd.journal.export import Stream
from solo5_systemd.journal.lines import Line, Place
from solo5_systemd.journal.reader import JournalReader
from solo5_systemd.relay.journal_catchup import ALL, matches


class Journal:
    """What is written; `open` makes a reader of it. The first line is written `booted` microseconds after boot.

    Attributes:
        others: the journals of namespaces.
    """

    def __init__(self, namespace: str = "") -> None:
        self.namespace = namespace
        self.others: dict[str, Journal] = {}
        self.lines: list[Line] = []
        self.readers: list[Reader] = []
        self.kept_from = 0
        self.booted = 0

    def write(
        self, text: str, unit: str = "solo5-task-web.service", stream: Stream = Stream.STDOUT, left_out: int = 0
    ) -> Line:
        """Several lines have one time, as they have where journald reads a stream."""
        number = len(self.lines)
        place = Place(cursor=f"c{number}", monotonic=self.booted + number // 3)
        line = Line(
            unit=unit, stream=stream, data=text.encode(), place=place, realtime=1000 + number, left_out=left_out
        )
        self.lines.append(line)
        return line

    def vacuum(self, count: int) -> None:
        """Remove so many lines, the oldest, as soon as a reader lets go of them."""
        self.kept_from = count

    def tell(self) -> None:
        """Wake those who watch."""
        for reader in (*self.readers, *(each for other in self.others.values() for each in other.readers)):
            reader.wake()

    def open(self, matches: Sequence[str], namespace: str) -> JournalReader:
        if namespace != self.namespace:
            return self.others.setdefault(namespace, Journal(namespace)).open(matches, namespace)
        self.readers.append(Reader(self, tuple(matches)))
        return self.readers[-1]


class Reader(JournalReader):
    def __init__(self, journal: Journal, matches: tuple[str, ...]) -> None:
        self._of = journal
        self._matches = matches
        self._at = 0
        self._kept_from = journal.kept_from
        self._news = -1
        self.closed = False

    def watch(self) -> int:
        self._news = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        return self._news

    def wake(self) -> None:
        if self._news >= 0:
            os.eventfd_write(self._news, 1)

    def refresh(self) -> None:
        self._kept_from = self._of.kept_from
        if self._news >= 0:
            with suppress(BlockingIOError):
                os.eventfd_read(self._news)

    def close(self) -> None:
        if self._news >= 0:
            os.close(self._news)
            self._news = -1
        self.closed = True

    def seek_end(self) -> Line | None:
        self._at = len(self._of.lines)
        return self._of.lines[-1] if self._of.lines else None

    def next(self) -> Line | None:
        self._at = max(self._at, self._kept_from)
        while self._at < len(self._of.lines):
            self._at += 1
            line = self._of.lines[self._at - 1]
            if self._matches in (ALL, matches(line.unit, line.stream)):
                return line
        return None

    def lines_after(self, cursor: str) -> Iterator[Line]:
        self._at = int(cursor[1:]) + 1
        return iter(self.next, None)

    def lines_from(self, realtime: int) -> Iterator[Line]:
        self._at = max(0, realtime - 1000)
        return iter(self.next, None)
