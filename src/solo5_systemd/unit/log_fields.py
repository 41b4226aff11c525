"""A task's labels: further journal fields, which a job's author may choose within bounds.

journald appends the fields of a stream to those that it sets itself, so a second MESSAGE= or SYSLOG_FACILITY= would
forge an entry. Names that journald, systemd or this project reads are therefore refused.
"""

import re
from collections.abc import Iterable

from solo5_systemd.errors import InvalidRequestError

# How a task's lines are marked in the journal, on every one of them.
#
# journald looks up most of what it adds to a line when it comes to it, and of a task that has just ended some of that
# is gone (of 900 last lines, 43 had no invocation). The facility is the stream's own: it is never missing, and the
# journal finds all lines of all tasks by it.

RATE_INTERVAL = 2_000_000
"""Microseconds."""

RATE_BURST = 2000
"""Lines of each stream of a task that journald takes in an interval, and several times as many while it has room: four
with 4 GiB that it may still use, six with 1 TiB. The relay forwards 30 000 lines a second."""

FACILITY = 21
"""syslog's local5, as SYSLOG_FACILITY= has it: `journalctl --facility=local5` shows the consoles of all tasks."""

STDOUT_PRIORITY = 6
STDERR_PRIORITY = 4
"""syslog's "warning": what the tender's stderr is tagged with, and how it is known from the console (6, "info")."""


# LogExtraFields= of a task, each value one word: systemd (252 to 257) writes it into the unit's file without quotes.
#
# There a blank would end the value, and what follows could be another field of the author's choice.

LOG_NAMESPACE = "SOLO5_LOG_NAMESPACE"
"""The field of the journal namespace that a task's console is in. systemd has LogNamespace= for services alone."""

_ESCAPES = {" ": r"\x20", "\\": r"\x5c"}
_ESCAPED = re.compile(r"[ \\]")
_UNESCAPED = re.compile(r"\\x(20|5c)")


def assignment(name: str, value: str) -> bytes:
    r"""Return one field as every line in the journal has it: a blank is `\x20`, a backslash `\x5c`."""
    word = _ESCAPED.sub(lambda match: _ESCAPES[match[0]], value)
    return f"{name}={word}".encode()


def log_fields(assignments: Iterable[bytes]) -> dict[str, str]:
    """Return the fields of a unit by their names, values as they were before `assignment`."""
    texts = (bytes(item).decode("utf-8", "replace").partition("=") for item in assignments)
    return {name: _UNESCAPED.sub(lambda match: chr(int(match[1], 16)), word) for name, equals, word in texts if equals}


MOST = 32
LONGEST_VALUE = 256
"""Bytes of UTF-8. All labels together fit into an extended attribute, which is where those of a scope are."""

_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,63}", re.ASCII)
_RESERVED = re.compile(
    r"(SOLO5|NOMAD|SYSLOG|CODE|COREDUMP|OBJECT|USER_UNIT|USER_INVOCATION_ID|UNIT|INVOCATION_ID|MESSAGE|PRIORITY"
    r"|ERRNO|DOCUMENTATION|TID|JOB|JOURNAL|CURRENT_USE|MAX_USE|DISK|EXIT|LIMIT|AVAILABLE|N_DROPPED|N_RESTARTS)(_.*)?"
)
"""Of systemd.journal-fields(7) and of the messages of PID 1 and journald, whole words; and our own and Nomad's."""


def label(name: str, value: str) -> tuple[str, str]:
    """Check one label.

    Raises:
        InvalidRequestError: the name is no free journal field, or the value is too long or not printable.
    """
    if not _NAME.fullmatch(name) or _RESERVED.fullmatch(name):
        raise InvalidRequestError(
            f"label {name[:80]!r} is no free journal field: expected at most 64 capital letters, digits and '_', "
            "beginning with a letter and with no prefix of Nomad's, Solo5's or the journal's own fields."
        )
    if not value.isprintable() or len(value.encode("utf-8", "surrogateescape")) > LONGEST_VALUE:
        raise InvalidRequestError(
            f"label {name} is {value[:80]!r}: expected printable text of at most {LONGEST_VALUE} bytes."
        )
    return name, value


def labels(pairs: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Check all labels of a task.

    Raises:
        InvalidRequestError: one is not allowed, or there are too many.
    """
    found = tuple(label(name, value) for name, value in pairs)
    if len(found) > MOST:
        raise InvalidRequestError(f"the task has {len(found)} labels: expected at most {MOST}.")
    return found
