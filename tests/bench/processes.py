"""What our processes take, as the kernel counts it."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

UNITS = ("solo5-networkd.service", "solo5-relay.service")
TICK = 1000 / os.sysconf("SC_CLK_TCK")
"""Milliseconds."""


@dataclass(frozen=True, kw_only=True)
class Used:
    """Of one process: milliseconds of processor time, and page faults of the children that it has had."""

    cpu: float
    children: int


def ours(plugin: int) -> dict[str, int]:
    """Which of our processes run, by name."""
    found = {"plugin": plugin} | {unit.removesuffix(".service"): _main_pid(unit) for unit in UNITS}
    return {name: pid for name, pid in found.items() if pid}


def used(pid: int) -> Used:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()  # from the third field on: proc(5)
    return Used(cpu=(int(fields[11]) + int(fields[12])) * TICK, children=int(fields[8]))


def memory(pid: int) -> float:
    """Proportional set size, in MB."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"/proc/{pid}/smaps_rollup has no Pss")


def count() -> int:
    """Of all processes on the machine."""
    return sum(path.name.isdigit() for path in Path("/proc").iterdir())


def _main_pid(unit: str) -> int:
    show = ["systemctl", "show", "--property", "MainPID", "--value", unit]
    return int(subprocess.run(show, check=True, capture_output=True, text=True).stdout)
