"""Converts D-Bus unit properties to unit file directives (systemd.directives(7)).

`--dry-run` prints `TimeoutStopSec=10s`, not `TimeoutStopUSec` and 10000000.
"""

import re
from collections.abc import Callable, Mapping
from ipaddress import ip_network
from signal import Signals
from typing import Any

from solo5_systemd.cli.render import size
from solo5_systemd.unit.properties import INFINITY, Property

_SECOND = 1_000_000
_MS = 1000
_BARE = re.compile(r"[A-Za-z0-9_@%+=:,./{}~-]+", re.ASCII)
_SIZES = re.compile(r"Memory(Max|High|Low|Min|SwapMax)|Limit(AS|CORE|DATA|FSIZE|MEMLOCK|STACK)")


def directive(entry: Property) -> str:
    """Return a property as a line of a unit file.

    A value with an unknown D-Bus signature is printed with `str`.
    """
    name, value = entry.name, entry.value
    special = _SPECIAL.get(name)
    if special is not None:
        return f"{_NAMES.get(name, name)}={special(value)}"
    if name.endswith("USec"):
        return f"{name.removesuffix('USec')}Sec={_time(_number(value))}"
    write = _size if _SIZES.fullmatch(name) else _BY_SIGNATURE.get(entry.signature, str)
    return f"{name}={write(value)}"


def plain_value(value: object) -> object:
    """Return a D-Bus value that JSON can represent: bytes are decoded to text."""
    if isinstance(value, bytes | bytearray):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, list | tuple):
        return [plain_value(each) for each in value]
    return value


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _time(microseconds: int) -> str:
    if microseconds == INFINITY:
        return "infinity"
    if microseconds % _SECOND == 0:
        return f"{microseconds // _SECOND}s"
    return f"{microseconds // _MS}ms" if microseconds % _MS == 0 else f"{microseconds}us"


def _size(value: Any) -> str:
    """Return bytes with a suffix of 1024 if that is exact, else as a number."""
    if value == INFINITY:
        return "infinity"
    lossless = any(value >= factor and value % factor == 0 for factor in (1 << 10, 1 << 20, 1 << 30, 1 << 40))
    return size(value) if lossless and "." not in size(value) else str(value)


def _integer(value: Any) -> str:
    return "infinity" if value == INFINITY else str(value)


def _boolean(value: Any) -> str:
    return "yes" if value else "no"


def _words(value: Any) -> str:
    return " ".join(_quoted(str(word)) for word in value)


def _quoted(word: str) -> str:
    """Return a word quoted as in systemd.syntax(7), if it needs quotes."""
    if _BARE.fullmatch(word):
        return word
    escaped = "".join(c if c.isprintable() and c not in '"\\' else _ESCAPES.get(c, f"\\u{ord(c):04x}") for c in word)
    return f'"{escaped}"'


_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}


def _listed(value: Any) -> str:
    """Format (bas): an allow list, or a deny list after `~`."""
    allow, names = value
    return ("" if allow else "~") + " ".join(names)


def _lenient(value: Any) -> str:
    """Format (bs): ignore failure (written as `-`), value."""
    ignored, text = value
    return ("-" if ignored else "") + str(text)


def _pairs(separator: str) -> Callable[[Any], str]:
    return lambda value: " ".join(separator.join(str(part) for part in pair) for pair in value)


def _binds(value: Any) -> str:
    """Format a(ssbt): source, destination, ignore a missing source (`-`), mount flags."""
    return " ".join(
        ("-" if optional else "") + _quoted(source if source == there else f"{source}:{there}")
        for source, there, optional, _ in value
    )


def _processors(value: Any) -> str:
    """Format ay: a bit mask, as the indices of its set bits."""
    mask = int.from_bytes(value, "little")
    return " ".join(str(cpu) for cpu in range(mask.bit_length()) if mask >> cpu & 1)


def _addresses(value: Any) -> str:
    """Format a(iayu): family, address, prefix length; `any` is 0.0.0.0/0 and ::/0."""
    networks = [ip_network((bytes(address), length)) for _, address, length in value]
    if len(networks) == 2 and not any(network.prefixlen for network in networks):
        return "any"
    return " ".join(map(str, networks))


def _commands(value: Any) -> str:
    """Format a(sasb): path, argv, ignore failure (`-`)."""
    return "; ".join(("-" if lenient else "") + _words(words) for _, words, lenient in value)


_BY_SIGNATURE: Mapping[str, Callable[[Any], str]] = {
    "b": _boolean,
    "t": _integer,
    "as": _words,
    "aay": lambda value: _words(each.decode("utf-8", "backslashreplace") for each in value),
    "(bas)": _listed,
    "(bs)": _lenient,
    "a(ss)": _pairs(" "),
    "a(st)": _pairs(" "),
    "a(ssbt)": _binds,
}

_NAMES = {
    "CPUQuotaPerSecUSec": "CPUQuota",
    "PrivateTmpEx": "PrivateTmp",
    "ProtectControlGroupsEx": "ProtectControlGroups",
}

_SPECIAL: Mapping[str, Callable[[Any], str]] = {
    "AllowedCPUs": _processors,
    "AllowedMemoryNodes": _processors,
    "ExecStart": _commands,
    "IPAddressAllow": _addresses,
    "IPAddressDeny": _addresses,
    "KillSignal": lambda value: Signals(value).name,
    "CPUQuotaPerSecUSec": lambda value: f"{value * 100 / _SECOND:g}%",
    "CapabilityBoundingSet": lambda value: "" if value == 0 else f"{value:#x}",
    "RestrictNamespaces": lambda value: "yes" if value == 0 else f"{value:#x}",
    "TemporaryFileSystem": _pairs(":"),
    "UMask": lambda value: f"{value:04o}",
}
