"""A line of a task's console, as the journal has it and as the guest wrote it."""

from dataclasses import dataclass

from solo5_systemd.journal.export import Stream
from solo5_systemd.names import TaskName

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


# Lines that are missing, and what is said in their place.
#
# Of lines that journald left out, above a unit's rate limit, it says so itself when it takes the unit's lines again,
# before the first of them, and for stdout and stderr apart. Where no line comes any more, it never does. Of lines that
# it removed to make room it says nothing: who counted them knows.

LEFT_OUT = ("MESSAGE_ID=a596d6fe7bfa4994828e72309e95d61e", "_TRANSPORT=driver")
"""Matches all that it says of it: SD_MESSAGE_JOURNAL_DROPPED of sd-messages(3), and of journald itself."""


@dataclass(frozen=True, kw_only=True)
class Gap:
    """So many lines of a task are nowhere."""

    task: TaskName
    lines: int


def notice(lines: int) -> bytes:
    """The line that stands in the place of those left out."""
    return f"solo5-relay: journald left out {_some(lines)} of this task here (its rate limit)\n".encode()


def removal_notice(lines: int, stream: Stream) -> bytes:
    """The line that tells of those that were not read in time."""
    return (
        f"solo5-relay: the journal had removed {_some(lines)} of this task's {stream} before a reader came\n".encode()
    )


def _some(lines: int) -> str:
    return "a line" if lines == 1 else f"{lines} lines"
