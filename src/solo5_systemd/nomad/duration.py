"""Go's durations, which Nomad's users write everywhere: `30s`, `1h30m`, `250ms` (package time, ParseDuration)."""

import re

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
