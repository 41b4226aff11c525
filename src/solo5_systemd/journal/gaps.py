"""What journald says of lines that it left out, above a unit's rate limit.

It says so when it takes the unit's lines again, before the first of them, and once for lines of stdout and once for
those of stderr. Where no line comes any more, it never does.
"""

from dataclasses import dataclass

from solo5_systemd.names import TaskName

JOURNALD = "systemd-journald.service"

LEFT_OUT = ("MESSAGE_ID=a596d6fe7bfa4994828e72309e95d61e", "_TRANSPORT=driver")
"""Matches all that it says of it: SD_MESSAGE_JOURNAL_DROPPED of sd-messages(3), and of journald itself."""


@dataclass(frozen=True, kw_only=True)
class Gap:
    """So many lines of a task are nowhere."""

    task: TaskName
    lines: int


def notice(lines: int) -> bytes:
    """The line that stands in the place of those left out."""
    some = "a line" if lines == 1 else f"{lines} lines"
    return f"solo5-relay: journald left out {some} of this task here (its rate limit)\n".encode()
