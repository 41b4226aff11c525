"""Unit properties: the arguments of StartTransientUnit(), and the properties that an operator may set.

Names and D-Bus signatures are those of org.freedesktop.systemd1(5); textual forms are those of
systemd.resource-control(5) and systemd.exec(5), as in a unit file.
"""

import posixpath
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from solo5_systemd.errors import InvalidRequestError
from solo5_systemd.names import SLICE


@dataclass(frozen=True, kw_only=True)
class UnitFiles:
    """File descriptors for a unit's stdin and stderr; the caller closes its own copies after the start."""

    stdin: int | None = None
    stderr: int | None = None


class JobFailedError(Exception):
    """A job of systemd ended with another result than `done`.

    Attributes:
        unit: name of the unit.
        result: systemd's job result, such as `failed` or `dependency`.
    """

    def __init__(self, unit: str, result: str) -> None:
        super().__init__(f"{unit}: {result}")
        self.unit = unit
        self.result = result


INFINITY = (1 << 64) - 1
"""systemd's value for "no limit" in an unsigned 64-bit property."""


@dataclass(frozen=True)
class Property:
    """One property: D-Bus name, D-Bus signature, and the value in plain Python types."""

    name: str
    signature: str
    value: object


@dataclass(frozen=True, kw_only=True)
class TransientUnit:
    """The unit of one StartTransientUnit() call.

    Attributes:
        name: of the unit, with its suffix.
        properties: in the order in which they are sent.
        marks: fields of a scope, stored in an extended attribute of its cgroup: a scope has no LogExtraFields=.
    """

    name: str
    properties: tuple[Property, ...]
    marks: Mapping[str, str] = field(default_factory=dict)

    def value(self, name: str) -> object:
        """Return the value of a property, or None."""
        return next((p.value for p in self.properties if p.name == name), None)


def parse_property(assignment_key: str, text: str) -> Property:
    """Parse KEY=VALUE as an operator writes it.

    Raises:
        InvalidRequestError: a task may not set this property, or the value is malformed.
    """
    known = SETTABLE.get(assignment_key)
    if known is None:
        raise InvalidRequestError(
            f"unit property {assignment_key!r} cannot be set: expected one of {', '.join(sorted(SETTABLE))}."
        )
    try:
        return known(text)
    except ValueError as error:
        raise InvalidRequestError(f"unit property {assignment_key}={text}: expected {error}.") from error


_SIZES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"([0-9]{1,20})([KMGT]?)(?:i?B)?", re.ASCII)
_TIMES = {"us": 1, "ms": 10**3, "s": 10**6, "": 10**6, "min": 60 * 10**6, "h": 3600 * 10**6}
_TIME = re.compile(r"([0-9]{1,20})\s*(us|ms|s|min|h|)", re.ASCII)


def parse_size(text: str) -> int:
    """Return a size in bytes, with the suffixes K, M, G and T to the base of 1024 (systemd.syntax(7)).

    Raises:
        ValueError: malformed; its text is what was expected.
    """
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise ValueError("a size in bytes, or with a suffix such as 64M or 1G")
    return _fitting(int(match[1]) * _SIZES[match[2]])


def _fitting(number: int) -> int:
    if number >= INFINITY:
        raise ValueError("less than 2^64 - 1, systemd's value for no limit")
    return number


def _size(text: str) -> int:
    return INFINITY if text == "infinity" else parse_size(text)


def _count(text: str) -> int:
    if text == "infinity":
        return INFINITY
    if not re.fullmatch(r"[0-9]{1,20}", text, re.ASCII):
        raise ValueError("a whole number, or infinity")
    return _fitting(int(text))


def _microseconds(text: str) -> int:
    """Return a time in microseconds, whole milliseconds only: systemd serializes it with that precision."""
    if text == "infinity":
        return INFINITY
    match = _TIME.fullmatch(text.strip())
    if not match or int(match[1]) * _TIMES[match[2]] % _TIMES["ms"]:
        raise ValueError("a time in whole milliseconds, such as 500ms, 30s or 5min")
    return _fitting(int(match[1]) * _TIMES[match[2]])


def _percent_of_second(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,7}%", text, re.ASCII) or int(text[:-1]) == 0:
        raise ValueError("a percentage above zero of one processor, such as 50% or 200%")
    return int(text[:-1]) * 10_000


def _boolean(text: str) -> bool:
    words = {"yes": True, "true": True, "on": True, "1": True, "no": False, "false": False, "off": False, "0": False}
    if text.lower() not in words:
        raise ValueError("yes or no")
    return words[text.lower()]


def _only_yes(text: str) -> bool:
    if not _boolean(text):
        raise ValueError("yes: a task's sandbox can be made tighter, not wider")
    return True


def parse_cpus(text: str) -> bytes:
    """Return a list of processors such as `0-3,6` as the bit mask of AllowedCPUs= on D-Bus.

    Raises:
        ValueError: malformed; its text is what was expected.
    """
    mask = 0
    for part in text.replace(",", " ").split():
        match = re.fullmatch(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", part, re.ASCII)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first:
            raise ValueError("a list of processors such as 0-3,6")
        mask |= (1 << last + 1) - (1 << first)
    if not mask:
        raise ValueError("a list of processors such as 0-3,6")
    return mask.to_bytes((mask.bit_length() + 7) // 8, "little")


def _stop_signal(text: str) -> int:
    signals = {"SIGINT": 2, "INT": 2, "2": 2, "SIGTERM": 15, "TERM": 15, "15": 15}
    if text not in signals:
        raise ValueError("SIGINT or SIGTERM, the two signals that a tender handles")
    return signals[text]


def _slice(text: str) -> str:
    if not re.fullmatch(r"solo5(-[A-Za-z0-9_.]+)*\.slice", text, re.ASCII):
        raise ValueError(f"{SLICE} or a slice below it, such as solo5-batch.slice")
    return text


def _ranged(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,20}", text, re.ASCII) or not low <= int(text) <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return int(text)

    return parse


_PLAIN = r"""(?:(?!["'%\\])[!-~])"""
"""A printable ASCII character that systemd serializes unchanged: no quote, percent sign or backslash."""


def _apparmor_profile(text: str) -> tuple[bool, str]:
    """Parse AppArmorProfile=, with the prefix `-` for a profile that is optional."""
    name = text.removeprefix("-")
    if not re.fullmatch(rf"{_PLAIN}{{1,255}}", name, re.ASCII) or name == "unconfined":
        raise ValueError("the name of a loaded profile, with the prefix '-' if it is optional")
    return (name != text, name)


def _selinux_context(text: str) -> str:
    """Parse SELinuxContext=. Its prefix `-` works in unit files only, not on D-Bus."""
    if not re.fullmatch(rf"(?!-){_PLAIN}{{1,256}}", text, re.ASCII):
        raise ValueError("a context such as system_u:system_r:solo5_t:s0, without a '-' before it")
    return text


EXEC_PROPERTIES = frozenset(
    "AppArmorProfile LimitAS LimitCORE LimitDATA LimitFSIZE LimitMEMLOCK LimitNOFILE LimitNPROC LimitSTACK "
    "LogRateLimitBurst LogRateLimitIntervalSec MemoryDenyWriteExecute Nice OOMScoreAdjust SELinuxContext "
    "SystemCallFilter".split()
)
"""Properties of systemd.exec(5). A scope has none of them, since PID 1 does not execute its processes."""

SECURITY_MODULES: Mapping[str, str] = {"AppArmorProfile": "apparmor", "SELinuxContext": "selinux"}
"""Properties that systemd silently ignores if this security module is not enabled."""


def security_modules(assignments: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the properties that need a security module, each with the module, except optional ones (prefix `-`)."""
    return {key: SECURITY_MODULES[key] for key, text in assignments if key in SECURITY_MODULES and text[:1] != "-"}


def _deny_list(text: str) -> tuple[bool, list[str]]:
    calls = text.removeprefix("~").split()
    well_formed = all(re.fullmatch(r"@?[a-z0-9_-]+", call, re.ASCII) for call in calls)
    # An empty list is refused: systemd would reset the whole filter.
    if not text.startswith("~") or not calls or not well_formed:
        raise ValueError("a deny list of system calls, such as '~fork vfork'")
    return (False, calls)


def _bandwidth(text: str) -> list[tuple[str, int]]:
    path, _, size = text.rpartition(" ")
    # systemd writes the path into the unit file unquoted; the executor of 257 also rejects an equals sign.
    if not re.fullmatch(r"/[A-Za-z0-9/:._+@-]+", path, re.ASCII) or posixpath.normpath(path) != path:
        raise ValueError("a device of letters, digits and /:._+@- and bytes per second, such as '/dev/sda 10M'")
    return [(path, _at_least_1(parse_size(size)))]


def _at_least_1(number: int) -> int:
    if not number:
        raise ValueError("a size above zero")
    return number


def _as(name: str, signature: str, parse: Callable[[str], object]) -> Callable[[str], Property]:
    return lambda text: Property(name, signature, parse(text))


def _named(names: str, signature: str, parse: Callable[[str], object]) -> dict[str, Callable[[str], Property]]:
    return {name: _as(name, signature, parse) for name in names.split()}


SETTABLE: Mapping[str, Callable[[str], Property]] = {
    **_named("MemoryHigh MemoryLow MemoryMin MemorySwapMax", "t", _size),
    **_named("LimitAS LimitCORE LimitDATA LimitFSIZE LimitMEMLOCK LimitSTACK", "t", _size),
    **_named("LimitNOFILE LimitNPROC TasksMax", "t", _count),
    **_named("CPUWeight IOWeight", "t", _ranged(1, 10000)),
    **_named("AllowedCPUs AllowedMemoryNodes", "ay", parse_cpus),
    **_named("IOReadBandwidthMax IOWriteBandwidthMax IOReadIOPSMax IOWriteIOPSMax", "a(st)", _bandwidth),
    **_named("CPUAccounting IOAccounting", "b", _boolean),
    **_named("MemoryDenyWriteExecute", "b", _only_yes),
    "AppArmorProfile": _as("AppArmorProfile", "(bs)", _apparmor_profile),
    "CPUQuota": _as("CPUQuotaPerSecUSec", "t", _percent_of_second),
    "CPUQuotaPeriodSec": _as("CPUQuotaPeriodUSec", "t", _microseconds),
    "KillSignal": _as("KillSignal", "i", _stop_signal),
    "LogRateLimitBurst": _as("LogRateLimitBurst", "u", _ranged(0, (1 << 32) - 1)),
    "LogRateLimitIntervalSec": _as("LogRateLimitIntervalUSec", "t", _microseconds),
    "Nice": _as("Nice", "i", _ranged(-20, 19)),
    "OOMScoreAdjust": _as("OOMScoreAdjust", "i", _ranged(-1000, 1000)),
    "RuntimeMaxSec": _as("RuntimeMaxUSec", "t", _microseconds),
    "SELinuxContext": _as("SELinuxContext", "s", _selinux_context),
    "Slice": _as("Slice", "s", _slice),
    "SystemCallFilter": _as("SystemCallFilter", "(bas)", _deny_list),
    "TimeoutStopSec": _as("TimeoutStopUSec", "t", _microseconds),
}
