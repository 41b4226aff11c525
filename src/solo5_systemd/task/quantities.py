"""Parse sizes, time spans, processors, weights, whole numbers; and name what a parser was given in its errors.

A parser of a setting takes a text. It raises a ValueError with the end of a sentence, “is not a size: expected …”, or
what the parser of a part raises; `value_of` makes one error of both.
"""

import re
import signal
from collections.abc import Callable
from typing import TypeVar

from solo5_systemd.base.errors import InvalidRequestError

T = TypeVar("T")

LARGEST_SIZE = (1 << 63) - 1
"""Bytes. systemd reads a property of 2^64-1 as "no limit"; half of that is beyond any machine."""

SIZES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"([0-9]{1,20})(?:([KMGT])(?:I?B)?|B)?", re.ASCII | re.IGNORECASE)

DECIMAL = r"[0-9]{1,6}(\.[0-9]{1,6})?"
"""A positive decimal number, for `re.ASCII`."""

_UNITS = {
    1: "usec us µs μs",
    1000: "msec ms",
    10**6: "seconds second sec s",
    60 * 10**6: "minutes minute min m",
    3600 * 10**6: "hours hour hr h",
    86400 * 10**6: "days day d",
    7 * 86400 * 10**6: "weeks week w",
    2629800 * 10**6: "months month M",
    31557600 * 10**6: "years year y",
}
"""Names of systemd.time(7) by microseconds."""

_FACTORS = {"": 10**6, **{name: factor for factor, names in _UNITS.items() for name in names.split()}}
_PART = r"\s*([0-9]{1,15})(?:\.([0-9]{1,6}))?\s*([A-Za-zµμ]*)\s*"  # compiled at its first use, for startup time
_TEXT_MAX = 100

MAX_US = (1 << 63) - 1


def value_of(parse: Callable[[str], T], text: str, what: str) -> T:
    """Return the value of a text; an error begins with `what` it is the value of, such as `--net`, and the text.

    Raises:
        InvalidRequestError: it is malformed.
    """
    try:
        return parse(text)
    except ValueError as error:
        raise InvalidRequestError(f"{what} {text!r} {error}.") from error
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{what} {text!r}: {error.sentence}", error.hint) from error


def bytes_of(text: str) -> int:
    """Return the bytes of `134217728`, `64M`, `64MiB` or `1g`; suffixes are powers of 1024. -1: it is no size."""
    match = _SIZE.fullmatch(text)
    return int(match[1]) * SIZES[(match[2] or "").upper()] if match else -1


def size(text: str) -> int:
    """Return the bytes of a size above zero, LARGEST_SIZE at most."""
    number = bytes_of(text)
    if not 0 < number <= LARGEST_SIZE:
        raise ValueError("is not a size: expected a positive integer in bytes, or with a suffix, such as 64M or 1G")
    return number


def cpus(text: str) -> float:
    """Return a CPU quota in processors, from `1.5`; the smallest of cgroup v2 is 1 ms in 100 ms."""
    if not re.fullmatch(DECIMAL, text, re.ASCII) or float(text) < 0.01:
        raise ValueError("is not a number of processors: expected 0.01 or more, such as 1.5")
    return float(text)


def seconds(text: str) -> float:
    """Return the seconds of `10min` (systemd.time(7))."""
    try:
        return parse_time_span(text) / 10**6
    except ValueError as error:
        raise ValueError(f"is not a time: expected {error}") from error


def integer(text: str, low: int, high: int) -> int:
    """Return a whole number from `low` to `high`."""
    if not re.fullmatch(r"[0-9]{1,10}", text, re.ASCII) or not low <= int(text) <= high:
        raise ValueError(f"is out of range: expected an integer from {low} to {high}")
    return int(text)


def signal_number(text: str) -> int:
    """Return the number of `TERM`, `SIGTERM`, `term` or `15`; 0: there is no such signal. Some have no name."""
    numbers = {name.removeprefix("SIG"): int(number) for name, number in signal.Signals.__members__.items()}
    numbers |= {str(int(number)): int(number) for number in signal.valid_signals()}
    return numbers.get(text.strip().upper().removeprefix("SIG"), 0)


def parse_time_span(text: str) -> int:
    """Return the microseconds of `5min 20s`, `1h30m`, `90` or `1.5s` (systemd.time(7)).

    A number without a unit is seconds, a fraction below 1 µs is cut off.

    Raises:
        ValueError: it is malformed; the message is what was expected.
    """
    expected = "a time span such as 30s, 5min or '1min 30s'"
    if len(text) > _TEXT_MAX or not text.strip():
        raise ValueError(expected)
    total, at = 0, 0
    while at < len(text):
        part = re.compile(_PART).match(text, at)
        if not part or part[3] not in _FACTORS:
            raise ValueError(expected)
        fraction = int((part[2] or "0").ljust(6, "0"))
        total += int(part[1]) * _FACTORS[part[3]] + fraction * _FACTORS[part[3]] // 10**6
        at = part.end()
    if total > MAX_US:
        raise ValueError(expected)
    return total
