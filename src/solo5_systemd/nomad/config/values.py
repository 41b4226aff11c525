"""Values of options: enumerations and durations."""

import re
from enum import StrEnum
from typing import TypeVar

from solo5_systemd.decode import Fields

E = TypeVar("E", bound=StrEnum)


class Logging(StrEnum):
    """The console's destination besides the journal: Nomad's log files, or none."""

    NOMAD = "nomad"
    JOURNALD = "journald"


def choice(fields: Fields, key: str, words: type[E]) -> E | None:
    """Return the value of an enumerated option; None if it is not set.

    Raises:
        Solo5Error: it is not one of the words.
    """
    if not fields.has(key):
        return None
    return _word(fields, key, fields.text(key), words, f'{key} = "{next(iter(words))}"')


def choices(fields: Fields, key: str, words: type[E]) -> tuple[E, ...]:
    """Return the values of an option that is a list of enumerated words; empty if it is not set.

    Raises:
        Solo5Error: one of them is not one of the words.
    """
    such_as = f'{key} = ["{next(iter(words))}"]'
    return tuple(_word(fields, key, text, words, such_as) for text in fields.texts(key, ()))


def _word(fields: Fields, key: str, text: str, words: type[E], such_as: str) -> E:
    try:
        return words(text)
    except ValueError as error:
        known = ", ".join(f'"{word}"' for word in words)
        raise fields.wrong(key, text, f"one of {known}, such as {such_as}") from error


_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION_MAX = 100
"""Characters of a duration."""

_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h)", re.ASCII)


def seconds(text: str) -> float:
    """Return a Go duration in seconds, such as `30s`, `1h30m`, `250ms` (package time, ParseDuration).

    Raises:
        ValueError: it is malformed or negative; the message has the expected form.
    """
    # The bound: the search is quadratic in a run of digits without a unit.
    parts = list(_PART.finditer(text)) if len(text) <= _DURATION_MAX else []
    if not parts or "".join(part[0] for part in parts) != text:
        raise ValueError(f"{text!r} is not a duration: expected a number and a unit, such as 30s, 5m or 24h")
    return sum(float(part[1]) * _UNITS[part[2]] for part in parts)
