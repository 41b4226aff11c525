"""What went over a task's NICs, as the guest sees it, from what the kernel counts at their taps.

What the host receives from a tap is what the guest has sent.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from solo5_systemd.names import DeviceName, TaskName
from solo5_systemd.network.ipam import TAP_PREFIX
from solo5_systemd.network.lease_recovery import tap_owner


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """One direction; `drops`: frames that were thrown away, on the host's side, before they came through."""

    bytes: int
    packets: int
    errors: int
    drops: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Of one NIC."""

    received: Counters
    sent: Counters


def traffic(table: str) -> Iterator[tuple[str, Traffic]]:
    """Each link of /proc/net/dev (proc(5)), as the guest behind it would count: two lines of head, then `LINK: …`.

    Bytes, packets, errors and drops come first of the eight columns that each direction has.
    """
    for line in table.splitlines()[2:]:
        link, _, columns = line.rpartition(":")
        words = columns.split()
        if len(words) >= 12 and all(map(str.isdecimal, words)):
            yield link.strip(), Traffic(received=_counters(words[8:]), sent=_counters(words))


def _counters(words: list[str]) -> Counters:
    of_bytes, packets, errors, drops = map(int, words[:4])
    return Counters(bytes=of_bytes, packets=packets, errors=errors, drops=drops)


# What went over the taps of all tasks: one read for the counters, one for each tap's owner.


def read_traffic(
    table: Path = Path("/proc/net/dev"), links: Path = Path("/sys/class/net")
) -> dict[TaskName, Mapping[DeviceName, Traffic]]:
    """By task and NIC; the kernel alone is asked, whose mark on a tap says whose it is."""
    found: defaultdict[TaskName, dict[DeviceName, Traffic]] = defaultdict(dict)
    for link, counted in traffic(table.read_text(encoding="utf-8", errors="replace")):
        owner = owner_of(links / link) if link.startswith(TAP_PREFIX) else None
        if owner is not None:
            task, nic = owner
            found[task][nic] = counted
    return dict(found)


def owner_of(link: Path) -> tuple[TaskName, DeviceName] | None:
    """Task and NIC that a tap was made for, by our mark on it; None where there is none, or the link has gone.

    Args:
        link: its directory below /sys/class/net.
    """
    try:
        return tap_owner((link / "ifalias").read_text(encoding="utf-8", errors="replace").rstrip("\n"))
    except OSError:
        return None
