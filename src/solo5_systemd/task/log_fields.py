"""LogExtraFields= of a task, and its labels: the journal fields that a job's author may choose.

Every line of a task carries fields of its stream (facility, priority), not only those that journald looks up when it
reads the line: of a task that has just ended some of these are missing (43 of 900 last lines had no invocation ID).
The facility is part of the stream, so `SYSLOG_FACILITY=` finds every line of every task.

journald appends the fields of a stream to its own, so a second MESSAGE= or SYSLOG_FACILITY= would forge an entry.
Field names that journald, systemd or this package read are therefore refused.
"""

import re
from collections.abc import Iterable

from solo5_systemd.base.errors import InvalidRequestError

FACILITY = 21
"""SYSLOG_FACILITY= of all consoles, local5: `journalctl --facility=local5` shows the lines of all tasks."""

STDOUT_PRIORITY = 6
STDERR_PRIORITY = 4
"""PRIORITY= of the console (info) and of the tender's stderr (warning), by which the two are distinguished."""

TENDER = "SOLO5_TENDER"
"""The field with the tender, by which an exit status or a signal is read."""

LOG_NAMESPACE = "SOLO5_LOG_NAMESPACE"
"""The field with the journal namespace of a task's console; a scope has no LogNamespace= to read it from."""

OF_PLACEHOLDERS = {
    "hostname": "SOLO5_HOSTNAME",
    "dns": "SOLO5_DNS",
    "search": "SOLO5_DNS_SEARCH",
    "ntp": "SOLO5_NTP",
    "hosts": "SOLO5_HOSTS",
}
"""The fields with the values of placeholders, if an argument has them; lists have commas."""

NETWORK_NAMESPACE = "SOLO5_NETWORK_NAMESPACE"
"""The field with the path of the network namespace that a task shares with other programs."""

_ESCAPES = {" ": r"\x20", "\\": r"\x5c"}
_UNESCAPED = re.compile(r"\\x(20|5c)")


def assignment(name: str, value: str) -> bytes:
    r"""Return one element of LogExtraFields=, with blanks as `\x20` and backslashes as `\x5c`.

    systemd (252 to 257) writes the value unquoted into the unit file, where a blank would begin another field.
    """
    word = re.sub(r"[ \\]", lambda match: _ESCAPES[match[0]], value)
    return f"{name}={word}".encode()


def log_fields(assignments: Iterable[bytes]) -> dict[str, str]:
    """Return the fields of LogExtraFields= by name, with the escapes of `assignment` undone."""
    fields = {}
    for item in assignments:
        name, equals, word = bytes(item).decode("utf-8", "replace").partition("=")
        if equals:
            fields[name] = unescaped(word) if "\\" in word else word
    return fields


def unescaped(word: str) -> str:
    """Return the value of a field without the escapes of `assignment`."""
    return _UNESCAPED.sub(lambda match: chr(int(match[1], 16)), word)


MAX_LABELS = 32
MAX_VALUE_BYTES = 256
"""Bytes of UTF-8. All labels of a scope have to fit into an extended attribute."""

FIELD_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,63}", re.ASCII)
_RESERVED = (  # compiled at its first use, for startup time
    r"(SOLO5|NOMAD|SYSLOG|CODE|COREDUMP|OBJECT|USER_UNIT|USER_INVOCATION_ID|UNIT|INVOCATION_ID|MESSAGE|PRIORITY"
    r"|ERRNO|DOCUMENTATION|TID|JOB|JOURNAL|CURRENT_USE|MAX_USE|DISK|EXIT|LIMIT|AVAILABLE|N_DROPPED|N_RESTARTS)(_.*)?"
)
"""Prefixes of systemd.journal-fields(7), of messages of PID 1 and journald, of Nomad and of this package."""


def label(name: str, value: str) -> tuple[str, str]:
    """Check one label, and return it.

    Raises:
        InvalidRequestError: the name is reserved or malformed, or the value is too long or not printable.
    """
    if not FIELD_NAME.fullmatch(name) or re.fullmatch(_RESERVED, name):
        raise InvalidRequestError(
            f"label {name[:80]!r} is not a free journal field: expected at most 64 capital letters, digits and '_', "
            "beginning with a letter and with no prefix of Nomad's, Solo5's or the journal's own fields."
        )
    if not value.isprintable() or len(value.encode("utf-8", "surrogateescape")) > MAX_VALUE_BYTES:
        raise InvalidRequestError(
            f"label {name} is {value[:80]!r}: expected printable text of at most {MAX_VALUE_BYTES} bytes."
        )
    return name, value


def labels(pairs: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Check all labels of a task, and return them.

    Raises:
        InvalidRequestError: one is refused, or there are more than MAX_LABELS.
    """
    found = tuple(label(name, value) for name, value in pairs)
    if len(found) > MAX_LABELS:
        raise InvalidRequestError(f"the task has {len(found)} labels: expected at most {MAX_LABELS}.")
    return found
