"""A line of a task's console, as the journal has it and as the guest wrote it."""

from dataclasses import dataclass

from solo5_systemd.journal.export import Stream

_ENDINGS = {b"": b"\n", b"nul": b"\0"}
"""What ended a line, by its _LINE_BREAK=, which journald leaves out where it was a newline. Of its other values
(`line-max`, `eof`, `pid-change`) each says that nothing did: the line was cut, or was the last (journal-fields(7))."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where in the journal: a cursor, and the microseconds since boot at which journald wrote there.

    Cursors can be compared for equality only. Time orders the lines of different tasks, since journald looks at its
    clock once for all lines that it reads from one stream in one go.
    """

    cursor: str
    monotonic: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line.

    Attributes:
        data: what the guest wrote, with what ended it.
        realtime: in microseconds since the epoch.
        left_out: how many lines it stands for, where journald left those out, and `data` is our notice of it.
        is_ours: it is a notice that stands in no journal, behind the line of its `place`.
    """

    unit: str
    stream: Stream
    data: bytes
    place: Place
    realtime: int
    left_out: int = 0
    is_ours: bool = False


def restored(message: bytes, line_break: bytes) -> bytes:
    """The bytes that became this message."""
    return message + _ENDINGS.get(line_break, b"")
