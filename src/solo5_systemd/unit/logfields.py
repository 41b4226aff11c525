"""LogExtraFields= of a task, each value one word: systemd (252 to 257) writes it into the unit's file without quotes.

There a blank would end the value, and what follows could be another field of the author's choice.
"""

import re
from collections.abc import Iterable

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
