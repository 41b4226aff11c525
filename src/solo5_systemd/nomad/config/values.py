"""Options that have a few words to choose from."""

import re
from enum import StrEnum
from typing import TypeVar

from solo5_systemd.decode import Fields

E = TypeVar("E", bound=StrEnum)


class Logging(StrEnum):
    """Where a console goes besides the journal: to Nomad's log files, or nowhere."""

    NOMAD = "nomad"
    JOURNALD = "journald"


def choice(fields: Fields, key: str, words: type[E]) -> E | None:
    """One of the words; None where none is given.

    Raises:
        Solo5Error: another word.
    """
    if not fields.has(key):
        return None
    return _word(fields, key, fields.text(key), words, f'{key} = "{next(iter(words))}"')


def choices(fields: Fields, key: str, words: type[E]) -> tuple[E, ...]:
    """Return some of the words; none where none is given.

    Raises:
        Solo5Error: another word.
    """
    such_as = f'{key} = ["{next(iter(words))}"]'
    return tuple(_word(fields, key, text, words, such_as) for text in fields.texts(key, ()))


def _word(fields: Fields, key: str, text: str, words: type[E], such_as: str) -> E:
    try:
        return words(text)
    except ValueError as error:
        known = ", ".join(f'"{word}"' for word in words)
        raise fields.wrong(key, text, f"one of {known}, such as {such_as}") from error


# Go's durations, which Nomad's users write everywhere: `30s`, `1h30m`, `250ms` (package time, ParseDuration).

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_LONGEST = 100
_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h)", re.ASCII)


def seconds(text: str) -> float:
    """The duration in seconds.

    Raises:
        ValueError: it is none, or negative; says what was expected.
    """
    parts = list(_PART.finditer(text)) if len(text) <= _LONGEST else []  # digits without a unit take their square
    if not parts or "".join(part[0] for part in parts) != text:
        raise ValueError(f"{text!r} is no duration: expected a number and a unit, such as 30s, 5m or 24h")
    return sum(float(part[1]) * _UNITS[part[2]] for part in parts)
