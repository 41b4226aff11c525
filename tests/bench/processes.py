"""What our processes take, as the kernel counts it."""

import asyncio
import contextlib
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

UNITS = ("solo5-networkd.service", "solo5-relay.service")
TICK = 1000 / os.sysconf("SC_CLK_TCK")
"""Milliseconds."""


CGROUP_ROOT = Path("/sys/fs/cgroup")
CGROUPS = {
    "PID 1": "init.scope",
    "dbus-daemon": "system.slice/dbus.service",
    "solo5-networkd": "system.slice/solo5-networkd.service",
    "solo5-relay": "system.slice/solo5-relay.service",
    "journald": "system.slice/systemd-journald.service",
    "sandbox and tender": "solo5.slice/solo5-shared.slice",
}
NETWORK_UNITS, REST = "network units", "everything else"


def ours(plugin: int) -> dict[str, int]:
    """Which of our processes run, by name."""
    found = {"plugin": plugin} | {unit.removesuffix(".service"): _main_pid(unit) for unit in UNITS}
    return {name: pid for name, pid in found.items() if pid}


def used(pid: int) -> float:
    """Return the milliseconds of processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()  # from the third field on: proc(5)
    return (int(fields[11]) + int(fields[12])) * TICK


def ran(pid: int) -> float:
    """Return the milliseconds that the threads of a process have run, to the nanosecond (proc(5), schedstat).

    utime and stime, which `used` reads, are sampled by the timer interrupt: a process that a timer wakes seems to run
    for a whole tick.
    """
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e6


async def watched(plugin: int, seconds: float) -> dict[str, float]:
    """Return the milliseconds that each of our processes runs within so many seconds, by name.

    A service without tasks exits at some time; one that does so in these seconds has no value.
    """
    before = {(name, pid): ran(pid) for name, pid in ours(plugin).items()}
    await asyncio.sleep(seconds)
    still = ours(plugin)
    return {name: ran(pid) - earlier for (name, pid), earlier in before.items() if still.get(name) == pid}


def spent(pids: Mapping[str, int]) -> dict[str, int]:
    """Return the microseconds of CPU time of this machine so far, by process or cgroup, without kernel threads.

    Args:
        pids: processes without a cgroup of their own, by name.
    """
    found = {name: _of_cgroup(cgroup) for name, cgroup in CGROUPS.items()}
    found[NETWORK_UNITS] = _of_cgroup("solo5.slice") - found["sandbox and tender"]
    found |= {name: round(used(pid) * 1000) for name, pid in pids.items()}
    found[REST] = _of_cgroup("") - sum(found.values())
    return found


def difference(after: Mapping[str, int], before: Mapping[str, int], also: Mapping[str, int]) -> dict[str, int]:
    """Return the CPU time in between; `also` are parts of the rest."""
    found = {name: after[name] - before[name] for name in after}
    return {**found, **also, REST: found[REST] - sum(also.values())}


def _of_cgroup(path: str) -> int:
    """Return microseconds; 0 for a service that does not run."""
    try:
        text = (CGROUP_ROOT / path / "cpu.stat").read_text()
    except FileNotFoundError:
        return 0
    return int(text.split()[1])  # usage_usec comes first


@contextlib.contextmanager
def frozen() -> Iterator[None]:
    """Freeze the two services: they would spend CPU time on links, rules and journal lines of the floor."""
    files = [CGROUP_ROOT / CGROUPS[unit.removesuffix(".service")] / "cgroup.freeze" for unit in UNITS]
    running = [file for file in files if file.exists()]
    for file in running:
        file.write_text("1")
    try:
        yield
    finally:
        for file in running:
            file.write_text("0")


def memory(pid: int, part: str = "Pss") -> float:
    """Proportional set size, in MB; `Pss_Anon`: without the pages of programs and libraries, that others have too."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(f"{part}:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"/proc/{pid}/smaps_rollup has no {part}")


def count() -> int:
    """Of all processes on the machine."""
    return sum(path.name.isdigit() for path in Path("/proc").iterdir())


def whole(*argv: str) -> float:
    """Return the milliseconds from the start of a process to its end."""
    begun = time.perf_counter()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - begun) * 1000


def _main_pid(unit: str) -> int:
    show = ["systemctl", "show", "--property", "MainPID", "--value", unit]
    return int(subprocess.run(show, check=True, capture_output=True, text=True).stdout)
