"""What went over the taps of all tasks: one read for the counters, one for each tap's owner."""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from solo5_systemd.names import DeviceName, TaskName
from solo5_systemd.network.ipam import TAP_PREFIX
from solo5_systemd.network.salvage import tap_owner
from solo5_systemd.network.traffic import Traffic, traffic


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
