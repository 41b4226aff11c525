"""A journal in memory, with the interface of JournalReader; its readers have the lines of their unit and stream."""

import os
from collections.abc import Sequence
from contextlib import suppress

from solo5_systemd.journal.lines import JournalPosition, Line, Stream
from solo5_systemd.journal.reader import JournalReader
from solo5_systemd.relay.task_console import ALL_MATCHES, matches


class Journal:
    """A journal; `open` opens a reader of it. The first line is written `booted` µs after boot."""

    def __init__(self, namespace: str = "") -> None:
        self.namespace = namespace
        self.others: dict[str, Journal] = {}  # the journals of namespaces
        self.message_ids: dict[str, str] = {}  # of lines that have one, by their cursor
        self.readable = True  # the process may read files of it
        self.lines: list[Line] = []
        self.readers: list[Reader] = []
        self.booted = 0
        self.earlier = 0  # lines that are read before a time, since the clock was set back

    def write(
        self, text: str, unit: str = "solo5-task-web.service", stream: Stream = Stream.STDOUT, dropped: int = 0
    ) -> Line:
        """Write a line; three in a row have the same time, as journald reads several lines of a stream at once."""
        number = len(self.lines)
        position = JournalPosition(cursor=f"c{number}", monotonic=self.booted + number // 3)
        line = Line(
            unit=unit, stream=stream, data=text.encode(), position=position, realtime=1000 + number, dropped=dropped
        )
        self.lines.append(line)
        return line

    def notify(self) -> None:
        """Signal a change to all readers that watch."""
        for reader in (*self.readers, *(each for other in self.others.values() for each in other.readers)):
            reader.wake()

    def open(self, matches: Sequence[str], namespace: str = "") -> JournalReader:
        if namespace != self.namespace:
            return self.others.setdefault(namespace, Journal(namespace)).open(matches, namespace)
        self.readers.append(Reader(self, tuple(matches)))
        return self.readers[-1]


class Reader(JournalReader):
    def __init__(self, journal: Journal, matches: tuple[str, ...]) -> None:
        self._of = journal
        self.matches = matches
        self._at = 0
        self._fd = -1
        self.closed = False

    @property
    def has_files(self) -> bool:
        return self._of.readable

    def watch(self) -> int:
        if self._fd < 0:
            self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        return self._fd

    def wake(self) -> None:
        if self._fd >= 0:
            os.eventfd_write(self._fd, 1)

    def refresh(self) -> None:
        if self._fd >= 0:
            with suppress(BlockingIOError):
                os.eventfd_read(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self.closed = True

    def seek_realtime(self, realtime: int) -> None:
        self._at = max(0, realtime - 1000 - self._of.earlier)

    def seek_last(self, count: int) -> None:
        self._at = max(0, len(self._of.lines) - count)

    def last(self, count: int) -> list[tuple[Line, str]]:
        """Return lines of any unit."""
        self._at = len(self._of.lines)
        lines = self._of.lines[: -count - 1 : -1]
        return [(line, self._of.message_ids.get(line.position.cursor, "")) for line in lines]

    def next(self) -> Line | None:
        while self._at < len(self._of.lines):
            self._at += 1
            line = self._of.lines[self._at - 1]
            of_run = (f"_SYSTEMD_UNIT={line.unit}", "_TRANSPORT=stdout")
            if self.matches in (ALL_MATCHES, of_run, matches(line.unit, line.stream)):
                return line
        return None

    def seek_after(self, cursor: str) -> None:
        self._at = int(cursor[1:]) + 1
