"""Taps by their aliases, and traffic counters of NICs, from the kernel's counters of taps (/proc/net/dev).

Directions are the guest's: what the host receives from a tap, the guest has sent.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from solo5_systemd.base.names import DeviceName, TaskName

TAP_PREFIX = "s5-"
"""The beginning of the names of taps, by which those are found that have no lease any more."""

LINKS = Path("/sys/class/net")
_COUNTERS = Path("/proc/net/dev")
_ALIAS = re.compile(r"solo5 task (\S+) NIC ([A-Za-z0-9]+)", re.ASCII)


def tap_alias(task: TaskName, nic: DeviceName) -> str:
    """Return the link alias (IFLA_IFALIAS) of a NIC's tap, as `ip link` shows it."""
    return f"solo5 task {task} NIC {nic}"


class Counters(NamedTuple):
    """The counters of one direction; `drops` are frames that the host's end of the tap has dropped."""

    bytes: int
    packets: int
    errors: int
    drops: int


class Traffic(NamedTuple):
    """The counters of one NIC, from the guest's view."""

    received: Counters
    sent: Counters


def parse_net_dev(table: str) -> Iterator[tuple[str, Traffic]]:
    """Parse /proc/net/dev (proc(5)) and yield each link with its counters, directions exchanged.

    Format: two header lines, then `LINK: …` with eight columns for each direction. The first four are bytes, packets,
    errors and drops.
    """
    for line in table.splitlines()[2:]:
        link, _, columns = line.rpartition(":")
        words = columns.split()
        if len(words) >= 12 and all(map(str.isdecimal, words)):
            yield link.strip(), Traffic(received=_counters(words[8:]), sent=_counters(words))


def _counters(words: list[str]) -> Counters:
    of_bytes, packets, errors, drops = map(int, words[:4])
    return Counters(bytes=of_bytes, packets=packets, errors=errors, drops=drops)


def read_traffic() -> dict[TaskName, Mapping[DeviceName, Traffic]]:
    """Return the counters of all NICs, by task and NIC: one read of /proc/net/dev, and one of each tap's alias."""
    found: defaultdict[TaskName, dict[DeviceName, Traffic]] = defaultdict(dict)
    for link, counted in parse_net_dev(_COUNTERS.read_text(encoding="utf-8", errors="replace")):
        owner = read_tap_owner(LINKS / link) if link.startswith(TAP_PREFIX) else None
        if owner is not None:
            task, nic = owner
            found[task][nic] = counted
    return dict(found)


def read_tap_owner(link: Path) -> tuple[TaskName, DeviceName] | None:
    """Return the task and NIC in the alias of a tap in `LINKS`; None for another form, or where it no longer exists."""
    try:
        with open(f"{link}/ifalias", "rb", buffering=0) as file:  # noqa: PTH123 - a quarter of the time: one of each NIC
            alias = file.read()
    except OSError:
        return None
    match = _ALIAS.fullmatch(alias.decode("utf-8", "replace").rstrip("\n"))
    return (TaskName(match[1]), DeviceName(match[2])) if match else None
