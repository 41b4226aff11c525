"""Lines of a task's console, with the bytes that the guest wrote, and notices about missing lines."""

from dataclasses import dataclass
from enum import StrEnum

from solo5_systemd.base.names import TaskName

_LINE_BREAKS = {b"": b"\n", b"nul": b"\0"}
"""The terminator of a line by its _LINE_BREAK=, which journald omits for a newline. The other values (`line-max`,
`eof`, `pid-change`) mean that there was none: the line was split or was the last one (systemd.journal-fields(7))."""

_TERMINATORS = tuple(_LINE_BREAKS.values())


class Stream(StrEnum):
    """The output streams of a unit: stdout has the guest's console, stderr the tender's messages."""

    STDOUT = "stdout"
    STDERR = "stderr"


@dataclass(frozen=True, kw_only=True, slots=True)
class JournalPosition:
    """The position of a line in the journal.

    Cursors can only be compared for equality. Times order the lines of different tasks; lines that journald reads from
    a stream at once have the same time.

    Attributes:
        cursor: sd_journal_get_cursor(3).
        monotonic: the time when journald wrote the line, in µs since boot.
    """

    cursor: str
    monotonic: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line.

    Attributes:
        data: the bytes that the guest wrote, with the terminator; or a notice.
        realtime: the time when journald received it, in µs since the epoch.
        dropped: the number of lines that journald dropped, if `data` is the notice of that; else 0.
        is_synthetic: a notice that is not in the journal, to be written after the line of `position`.
    """

    unit: str
    stream: Stream
    data: bytes
    position: JournalPosition
    realtime: int
    dropped: int = 0
    is_synthetic: bool = False

    @property
    def message(self) -> bytes:
        """MESSAGE=: the line without its terminator, which journald never stores in it."""
        return self.data[:-1] if self.data.endswith(_TERMINATORS) else self.data


def original_bytes(message: bytes, line_break: bytes) -> bytes:
    """Return the bytes that were written, from MESSAGE= and _LINE_BREAK=."""
    return message + _LINE_BREAKS.get(line_break, b"")


DROPPED_MATCHES = ("MESSAGE_ID=a596d6fe7bfa4994828e72309e95d61e", "_TRANSPORT=driver")
"""Matches journald's messages about lines that it dropped: SD_MESSAGE_JOURNAL_DROPPED of sd-messages(3), from journald
itself. It writes one when it accepts lines of the unit again, before the first of them and for stdout and stderr apart;
never, if no line follows. There is no message about lines of removed files (vacuuming): the relay counts these."""


@dataclass(frozen=True, kw_only=True)
class DroppedLines:
    """The number of lines of a task that journald dropped at once."""

    task: TaskName
    lines: int


def dropped_notice(lines: int) -> bytes:
    """Return the line that is written in the place of lines that journald dropped."""
    return f"solo5-relay: journald dropped {_lines(lines)} of this task here (rate limit exceeded)\n".encode()


def removed_notice(lines: int, stream: Stream) -> bytes:
    """Return the line about skipped lines that were removed from the journal before they were read."""
    return f"solo5-relay: journald removed {_lines(lines)} of this task's {stream} before delivery\n".encode()


def _lines(count: int) -> str:
    return "1 line" if count == 1 else f"{count} lines"
