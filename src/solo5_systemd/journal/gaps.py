"""Lines that are missing, and what is said in their place.

Of lines that journald left out, above a unit's rate limit, it says so itself when it takes the unit's lines again,
before the first of them, and for stdout and stderr apart. Where no line comes any more, it never does. Of lines that it
removed to make room it says nothing: who counted them knows.
"""

from dataclasses import dataclass

from solo5_systemd.journal.export import Stream
from solo5_systemd.names import TaskName

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
