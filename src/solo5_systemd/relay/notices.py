"""Notices in a task's stderr about lines of its console that are missing: stdout has the guest's bytes only."""

from solo5_systemd.journal.lines import Stream

DROPPED_MATCHES = ("MESSAGE_ID=a596d6fe7bfa4994828e72309e95d61e", "_TRANSPORT=driver")
"""Matches journald's messages about lines that it dropped: SD_MESSAGE_JOURNAL_DROPPED of sd-messages(3), from journald
itself. It writes one when it accepts lines of the unit again, before the first of them and for stdout and stderr apart;
never, if no line follows. There is no message about lines of removed files (vacuuming): the relay counts these."""


def dropped_notice(lines: int) -> bytes:
    """Return the line that is written in the place of lines that journald dropped."""
    return f"solo5-relay: journald dropped {_lines(lines)} of this task here (rate limit exceeded)\n".encode()


def removed_notice(lines: int, stream: Stream) -> bytes:
    """Return the line about skipped lines that were removed from the journal before they were read."""
    return f"solo5-relay: journald removed {_lines(lines)} of this task's {stream} before delivery\n".encode()


def _lines(count: int) -> str:
    return "1 line" if count == 1 else f"{count} lines"
