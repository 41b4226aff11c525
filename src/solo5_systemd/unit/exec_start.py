"""ExecStart= of a command line without variable expansion, for each release of systemd.

PID 1 expands `$NAME`. There are two ways to prevent it, and each survives a daemon-reload on one side of version 254
only. Before 254, `$$` works; the flag `no-env-expand` is serialized under a name that systemd does not parse, and the
unit becomes "bad-setting". Since 254, the flag is serialized correctly; `$$` is doubled again at each reload.
"""

import re
from collections.abc import Iterable
from typing import Any

from solo5_systemd.unit.properties import Property, unit_property

FLAG_SINCE = 254


def exec_start(line: Iterable[str]) -> Property:
    """Return ExecStart= of a command line, with each `$` doubled."""
    words = list(line)
    return unit_property("ExecStart", [(words[0], [word.replace("$", "$$") for word in words], False)])


def has_dollars(entry: Property) -> bool:
    """Return whether a property is an ExecStart= whose form depends on systemd's version."""
    return entry.name == "ExecStart" and any("$" in word for word in _command(entry)[1])


def release_of(version: str) -> int:
    """Return the release in PID 1's version: 257 of `257.7-1~deb13u1`, 258 of `v258~rc1`; 0 without a number."""
    match = re.search("[0-9]+", version)
    return int(match[0]) if match else 0


def for_release(entry: Property, release: int) -> Property:
    """Return the form of an `exec_start` that survives a daemon-reload of this systemd.

    Args:
        entry: the property that `exec_start` returned.
        release: of systemd, such as 257.
    """
    if release < FLAG_SINCE:
        return entry
    path, words, _ = _command(entry)
    literal = [word.replace("$$", "$") for word in words]
    return unit_property("ExecStartEx", [(path, literal, ["no-env-expand"])])


def _command(entry: Property) -> tuple[str, list[str], bool]:
    commands: Any = entry.value
    [command] = commands
    path, words, lenient = command
    return path, words, lenient
