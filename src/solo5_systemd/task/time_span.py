"""Time spans of systemd.time(7): `5min 20s`, `1h30m`, `90`, `1.5s`."""

import re

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
"""Names by microseconds."""

_FACTORS = {"": 10**6, **{name: factor for factor, names in _UNITS.items() for name in names.split()}}
_PART = re.compile(r"\s*([0-9]{1,15})(?:\.([0-9]{1,6}))?\s*([A-Za-zµμ]*)\s*")
_TEXT_MAX = 100

MAX_US = (1 << 63) - 1


def parse_time_span(text: str) -> int:
    """Return the microseconds of a time span; a number without a unit is seconds, a fraction below 1 µs is cut off.

    Raises:
        ValueError: it is malformed; the message is what was expected.
    """
    expected = "a time span such as 30s, 5min or '1min 30s'"
    if len(text) > _TEXT_MAX or not text.strip():
        raise ValueError(expected)
    total, at = 0, 0
    while at < len(text):
        part = _PART.match(text, at)
        if not part or part[3] not in _FACTORS:
            raise ValueError(expected)
        fraction = int((part[2] or "0").ljust(6, "0"))
        total += int(part[1]) * _FACTORS[part[3]] + fraction * _FACTORS[part[3]] // 10**6
        at = part.end()
    if total > MAX_US:
        raise ValueError(expected)
    return total
