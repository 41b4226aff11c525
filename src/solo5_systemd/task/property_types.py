"""Types of unit properties: a D-Bus signature, the textual form of a unit file, and the values that operators may set.

Signatures are those of org.freedesktop.systemd1(5); textual forms are those of systemd.syntax(7), systemd.exec(5) and
systemd.resource-control(5). Where a type has `parse`, it is the inverse of `format` or stricter than systemd.
"""

import posixpath
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from signal import Signals
from typing import Any, TypeVar

from solo5_systemd.base.names import SLICE
from solo5_systemd.settings.rate import per_second
from solo5_systemd.task.quantities import SIZES, bytes_of, parse_time_span, signal_number

T = TypeVar("T")

INFINITY = (1 << 64) - 1
"""systemd's value for "no limit" in an unsigned 64-bit property."""

CLONE_NEWUTS = 0x04000000
"""RestrictNamespaces= of a task: UTS namespaces only, which need a capability that it lacks. systemd (252 to 257)
serializes "no namespaces" as an empty value, which a daemon-reload reads as "all", user namespaces included."""

MS_REC = 0x4000

ANY_ADDRESS = [(2, bytes(4), 0), (10, bytes(16), 0)]
"""0.0.0.0/0 and ::/0 on D-Bus."""

_SECOND = 1_000_000
_MS = 1000


def _refuse(_text: str) -> object:
    raise ValueError("no value: this type is not set by operators")


@dataclass(frozen=True, kw_only=True)
class PropertyType:
    """A type of properties.

    Attributes:
        format: returns a value as text.
        parse: returns the value of a text; raises a ValueError whose text is what was expected.
    """

    signature: str
    format: Callable[[Any], str] = str
    parse: Callable[[str], object] = _refuse


# --- numbers ---------------------------------------------------------------------------------------------------------


def form(pattern: str, expected: str, value: Callable[[re.Match[str]], T]) -> Callable[[str], T]:
    """Return the parser of texts of one form: it returns `value` of the match, or raises ValueError `expected`."""

    def parse(text: str) -> T:
        match = re.fullmatch(pattern, text, re.ASCII)
        if match is None:
            raise ValueError(expected)
        return value(match)

    return parse


def _fitting(number: int) -> int:
    if number >= INFINITY:
        raise ValueError("less than 2^64 - 1, systemd's value for no limit")
    return number


def _limit(parse: Callable[[str], int]) -> Callable[[str], int]:
    return lambda text: INFINITY if text == "infinity" else _fitting(parse(text))


def _format_limit(value: int) -> str:
    """Return bytes in the largest unit of 1024 that they reach, if that is exact, else as a number."""
    factor, suffix = next((unit for unit in _LARGEST_FIRST if value >= unit[0]), (1, ""))
    return _format_count(value) if value % factor else f"{_format_count(value // factor)}{suffix}"


def _parse_size(text: str) -> int:
    number = bytes_of(text.strip())
    if number < 0:
        raise ValueError("a size in bytes, or with a suffix such as 64M or 1G")
    return number


def _format_count(value: int) -> str:
    return "infinity" if value == INFINITY else str(value)


_LARGEST_FIRST = [(factor, suffix) for suffix, factor in reversed(SIZES.items())]
_parse_count = form("[0-9]{1,20}", "a whole number, or infinity", lambda match: int(match[0]))

SIZE = PropertyType(signature="t", format=_format_limit, parse=_limit(_parse_size))
"""Bytes; suffixes are powers of 1024 (systemd.syntax(7))."""

COUNT = PropertyType(signature="t", format=_format_count, parse=_limit(_parse_count))


def number(signature: str, low: int, high: int) -> PropertyType:
    """Return the type of the whole numbers from `low` to `high`."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,20}", text, re.ASCII) or not low <= int(text) <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return int(text)

    return PropertyType(signature=signature, parse=parse)


WEIGHT = number("t", 1, 10000)


def _parse_time(text: str) -> int:
    """Return a time in microseconds, whole milliseconds only: systemd serializes it with that precision."""
    microseconds = parse_time_span(text)
    if microseconds % _MS:
        raise ValueError("a time in whole milliseconds, such as 500ms, 30s or 5min")
    return microseconds


def _format_time(microseconds: int) -> str:
    if microseconds == INFINITY:
        return "infinity"
    return f"{microseconds // _MS}ms" if microseconds % _SECOND else f"{microseconds // _SECOND}s"


TIME = PropertyType(signature="t", format=_format_time, parse=_limit(_parse_time))
"""Microseconds, whole milliseconds."""

PROCESSOR_TIME = PropertyType(
    signature="t",
    format=lambda value: f"{value * 100 / _SECOND:g}%",
    parse=form(
        "0{0,6}([1-9][0-9]{0,6})%",
        "a percentage above zero of one processor, such as 50% or 200%",
        lambda match: int(match[1]) * (_SECOND // 100),
    ),
)
"""Microseconds per second; as text, percent of one processor."""

CAPABILITIES = PropertyType(signature="t", format=lambda value: "" if value == 0 else f"{value:#x}")
NAMESPACES = PropertyType(signature="t", format=lambda value: {CLONE_NEWUTS: "uts"}[value])
MASK = PropertyType(signature="t", format=lambda value: f"{value:#x}")
MODE = PropertyType(signature="u", format=lambda value: f"{value:04o}")
INTEGER = PropertyType(signature="i")
PIDS = PropertyType(signature="au")


# --- booleans --------------------------------------------------------------------------------------------------------


def _parse_boolean(text: str) -> bool:
    words = {"yes": True, "true": True, "on": True, "1": True, "no": False, "false": False, "off": False, "0": False}
    if text.lower() not in words:
        raise ValueError("yes or no")
    return words[text.lower()]


def _parse_only_yes(text: str) -> bool:
    if not _parse_boolean(text):
        raise ValueError("yes: a task's sandbox can be made tighter, not wider")
    return True


BOOLEAN = PropertyType(signature="b", format=lambda value: "yes" if value else "no", parse=_parse_boolean)
ONLY_YES = replace(BOOLEAN, parse=_parse_only_yes)


# --- processors, signals, slices -------------------------------------------------------------------------------------


def _parse_cpus(text: str) -> bytes:
    """Return a list of processors such as `0-3,6` as the bit mask of AllowedCPUs= on D-Bus."""
    mask = 0
    for part in text.replace(",", " ").split() or [""]:
        match = re.fullmatch(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", part, re.ASCII)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first:
            raise ValueError("a list of processors such as 0-3,6")
        mask |= (1 << last + 1) - (1 << first)
    return mask.to_bytes((mask.bit_length() + 7) // 8, "little")


def _format_cpus(value: bytes) -> str:
    mask = int.from_bytes(value, "little")
    return " ".join(str(cpu) for cpu in range(mask.bit_length()) if mask >> cpu & 1)


CPUS = PropertyType(signature="ay", format=_format_cpus, parse=_parse_cpus)
"""A bit mask; as text, the indices of its set bits."""


_STOP_SIGNALS = (Signals.SIGHUP, Signals.SIGINT, Signals.SIGTERM)


def _parse_stop_signal(text: str) -> int:
    number = signal_number(text)
    if number not in _STOP_SIGNALS:
        raise ValueError("SIGHUP, SIGINT or SIGTERM, which end a tender")
    return number


STOP_SIGNAL = PropertyType(signature="i", format=lambda value: Signals(value).name, parse=_parse_stop_signal)


TASK_SLICE = PropertyType(
    signature="s",
    parse=form(
        r"solo5(-[A-Za-z0-9_.]+)*\.slice",
        f"{SLICE} or a slice below it, such as solo5-batch.slice",
        lambda match: match[0],
    ),
)


# --- text and lists of words -----------------------------------------------------------------------------------------

TEXT = PropertyType(signature="s")

_BARE = re.compile(r"[A-Za-z0-9_@%+=:,./{}~-]+", re.ASCII)
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}


def quoted(word: str) -> str:
    """Return a word quoted as in systemd.syntax(7), if it needs quotes; invalid UTF-8 stays, which no file can have."""
    if _BARE.fullmatch(word):
        return word
    return '"' + "".join(map(_escaped, word)) + '"'


def _escaped(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    return char if char.isprintable() or 0xD800 <= ord(char) <= 0xDFFF else f"\\U{ord(char):08x}"


def _format_words(value: Any) -> str:
    return " ".join(quoted(str(word)) for word in value)


WORDS = PropertyType(signature="as", format=_format_words)
ASSIGNMENTS = PropertyType(
    signature="aay",
    format=lambda value: _format_words(
        each.decode("utf-8", "backslashreplace").replace("%", "%%") for each in value if not each.endswith(b"=")
    ),
)
"""KEY=VALUE as bytes; those without a value have no meaning, and are left out of the text."""


def _format_commands(value: Any) -> str:
    """Format path, argv and flags: with `@`, argv begins with another name than the path; with `:`, `$` is plain."""
    [(path, words, flags)] = value
    return (":" if flags else "") + _format_words(words if path == words[0] else (f"@{path}", *words))


COMMANDS = PropertyType(signature="a(sasb)", format=_format_commands)
COMMANDS_WITH_FLAGS = PropertyType(signature="a(sasas)", format=_format_commands)

_PLAIN = r"""(?:(?!["'%\\])[!-~])"""
"""A printable ASCII character that systemd serializes unchanged: no quote, percent sign or backslash."""


def _parse_apparmor_profile(text: str) -> tuple[bool, str]:
    """Parse AppArmorProfile=, with the prefix `-` for a profile that is optional."""
    name = text.removeprefix("-")
    if not re.fullmatch(rf"{_PLAIN}{{1,255}}", name, re.ASCII) or name == "unconfined":
        raise ValueError("the name of a loaded profile, with the prefix '-' if it is optional")
    return (name != text, name)


APPARMOR_PROFILE = PropertyType(
    signature="(bs)", format=lambda value: ("-" if value[0] else "") + value[1], parse=_parse_apparmor_profile
)
"""Ignore failure (written as `-`), name."""


SELINUX_CONTEXT = PropertyType(
    signature="s",
    parse=form(  # its prefix `-` works in unit files only, not on D-Bus
        rf"(?!-){_PLAIN}{{1,256}}",
        "a context such as system_u:system_r:solo5_t:s0, without a '-' before it",
        lambda match: match[0],
    ),
)


def _parse_deny_list(text: str) -> tuple[bool, list[str]]:
    calls = text.removeprefix("~").split()
    well_formed = all(re.fullmatch(r"@?[a-z0-9_-]+", call, re.ASCII) for call in calls)
    # An empty list is refused: systemd would reset the filter.
    if not text.startswith("~") or not calls or not well_formed:
        raise ValueError("a deny list of system calls, such as '~fork vfork'")
    return (False, calls)


FILTER = PropertyType(signature="(bas)", format=lambda value: ("" if value[0] else "~") + " ".join(value[1]) or "none")
"""An allow list, or a deny list after `~`."""

SYSTEM_CALLS = replace(FILTER, parse=_parse_deny_list)
"""Operators set deny lists only."""


# --- files, devices, addresses ---------------------------------------------------------------------------------------


def _pairs(separator: str) -> Callable[[Any], str]:
    return lambda value: " ".join(separator.join(str(part) for part in pair) for pair in value)


DEVICES = PropertyType(signature="a(ss)", format=_pairs(" "))
"""Device, access."""

MOUNTS = PropertyType(signature="a(ss)", format=_pairs(":"))
"""Directory, mount options."""


def _format_binds(value: Any) -> str:
    """Format binds; on D-Bus no flag means that one is not recursive, in a unit file that is an option."""
    return " ".join(
        ("-" if optional else "") + quoted(f"{source}:{there}" + ("" if flags & MS_REC else ":norbind"))
        for source, there, optional, flags in value
    )


BINDS = PropertyType(signature="a(ssbt)", format=_format_binds)
"""Source, destination, ignore a missing source (`-`), mount flags."""


def _parse_bandwidth(text: str) -> list[tuple[str, int]]:
    path, _, rate = text.rpartition(" ")
    # systemd writes the path into the unit file unquoted; the executor of 257 also rejects an equals sign.
    if not re.fullmatch(r"/[A-Za-z0-9/:._+@-]+", path, re.ASCII) or posixpath.normpath(path) != path:
        raise ValueError("a device of letters, digits and /:._+@- and bytes per second, such as '/dev/sda 10M'")
    number = per_second(rate)
    if number <= 0:
        raise ValueError("a rate above zero, per second, such as 500 or 10M (powers of 1000)")
    return [(path, _fitting(number))]


BANDWIDTH = PropertyType(signature="a(st)", format=_pairs(" "), parse=_parse_bandwidth)
"""Device, bytes or operations per second."""


ADDRESSES = PropertyType(signature="a(iayu)", format=lambda _: "any")
"""Family, address, prefix length: of ANY_ADDRESS, the only value in use."""
