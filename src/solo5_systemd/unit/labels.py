"""A task's labels: further journal fields, which a job's author may choose within bounds.

journald appends the fields of a stream to those that it sets itself, so a second MESSAGE= or SYSLOG_FACILITY= would
forge an entry. Names that journald, systemd or this project reads are therefore refused.
"""

import re
from collections.abc import Iterable

from solo5_systemd.errors import InvalidRequestError

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
