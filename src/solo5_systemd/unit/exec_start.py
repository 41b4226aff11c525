"""ExecStart= of a command line in which a dollar is text, for each systemd.

PID 1 puts variables of the unit in the place of `$NAME`. Two things keep it from that, and each survives a
daemon-reload on one side of version 254 only. Before, a dollar is doubled; the flag `no-env-expand` is written into the
unit's file under a name that systemd does not read, and the unit becomes one of "bad-setting". Since, the flag is
written as systemd reads it; a doubled dollar is doubled again at each reload.
"""

import re
from collections.abc import Iterable
from typing import Any

from solo5_systemd.unit.properties import Property

FLAG_SINCE = 254


def exec_start(line: Iterable[str]) -> Property:
    """Return ExecStart= of a command line, dollars doubled."""
    words = list(line)
    return Property("ExecStart", "a(sasb)", [(words[0], [word.replace("$", "$$") for word in words], False)])


def has_dollars(entry: Property) -> bool:
    """Return whether a property is an ExecStart= whose form depends on systemd's version."""
    return entry.name == "ExecStart" and any("$" in word for word in _command(entry)[1])


def release_of(version: str) -> int:
    """Return the number in PID 1's version, such as 257 of `257.7-1~deb13u1` or 258 of `v258~rc1`; 0: it has none."""
    match = re.search("[0-9]+", version)
    return int(match[0]) if match else 0


def for_release(entry: Property, release: int) -> Property:
    """Return what `exec_start` made as this systemd keeps it over a daemon-reload.

    Args:
        entry: the property.
        release: systemd's, such as 257.
    """
    if release < FLAG_SINCE:
        return entry
    path, words, _ = _command(entry)
    literal = [word.replace("$$", "$") for word in words]
    return Property("ExecStartEx", "a(sasas)", [(path, literal, ["no-env-expand"])])


def _command(entry: Property) -> tuple[str, list[str], bool]:
    commands: Any = entry.value
    [command] = commands
    path, words, lenient = command
    return path, words, lenient
