"""Lines of a task's console, with the bytes that the guest wrote."""

from dataclasses import dataclass
from enum import StrEnum

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

    Cursors can only be compared for equality. `monotonic`, in µs since boot, orders the lines of different tasks; lines
    that journald reads from a stream at once have the same time.
    """

    cursor: str
    monotonic: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line.

    Attributes:
        data: the bytes that the guest wrote, with the terminator; of the relay, also a notice in their place.
        realtime: the time when journald received it, in µs since the epoch.
        dropped: the number of lines that journald dropped here, in the place of data; else 0.
    """

    unit: str
    stream: Stream
    data: bytes
    position: JournalPosition
    realtime: int
    dropped: int = 0

    @property
    def message(self) -> bytes:
        """MESSAGE=: the line without its terminator, which journald never stores in it."""
        return self.data[:-1] if self.data.endswith(_TERMINATORS) else self.data


def original_bytes(message: bytes, line_break: bytes) -> bytes:
    """Return the bytes that were written, from MESSAGE= and _LINE_BREAK=."""
    return message + _LINE_BREAKS.get(line_break, b"")
