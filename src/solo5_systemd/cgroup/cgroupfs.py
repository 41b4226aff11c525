"""The resource usage of tasks, from the cgroups of their units, with /proc and /sys for what these lack.

Parsers are imported where they are used, for startup time: a list of tasks takes none.
"""

import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from solo5_systemd.base.declared_units import task_of
from solo5_systemd.base.vanishing_files import read
from solo5_systemd.cgroup.hierarchy import unified, units

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from solo5_systemd.base.names import TaskName
    from solo5_systemd.cgroup.meter import Meter
    from solo5_systemd.cgroup.usage import Usage

PROC, BLOCKS = Path("/proc"), Path("/sys/dev/block")


class CgroupFs:
    """The unified cgroup hierarchy, with /proc and /sys for what it lacks."""

    def __init__(self) -> None:
        self._root = unified()

    def meter(self, control_group: str) -> "Meter":
        """Return a meter of memory and CPU time of a cgroup; an empty path gives a meter without samples."""
        from solo5_systemd.cgroup.meter import Meter

        return Meter(f"{self._root}/{control_group.lstrip('/')}" if control_group else None)

    async def usages(self) -> "Mapping[TaskName, Usage]":
        """Return a full sample of each running task, found below solo5.slice without a D-Bus call."""

        @cache
        def device(number: str) -> str:
            try:
                return (BLOCKS / number).readlink().name
            except OSError:  # the device was removed
                return number

        found: dict[TaskName, Usage] = {}
        for unit, group in units(self._root):
            if (task := task_of(unit)) is None:
                continue
            from solo5_systemd.cgroup.usage import ALL, usage

            files = {name: data for name in ALL if (data := read(f"{self._root}{group}/{name}")) is not None}
            if files:
                found[task] = usage(files, time.monotonic(), device)
        return found

    async def cpus(self, directory: str) -> str | None:
        """Return cpuset.cpus of another program's cgroup, such as `0-2,5`; None where it is empty or missing."""
        return (read(f"{directory}/cpuset.cpus") or b"").decode("ascii", "replace").strip() or None

    async def controllers(self) -> "Collection[str]":
        """Return the controllers of the unified hierarchy; none on a legacy or hybrid one."""
        return (read(f"{self._root}/cgroup.controllers") or b"").decode("ascii", "replace").split()

    async def total_memory(self) -> int:
        """Return the host's memory in bytes (MemTotal of proc(5), meminfo, in units of 1024)."""
        _, kib, _ = (PROC / "meminfo").read_text(encoding="ascii").partition("\n")[0].split()
        return int(kib) * 1024

    async def stalled(self, pid: int) -> bool:
        """Return whether a process is a zombie with live threads (proc(5), stat).

        Its main thread has exited, so PID 1 gets no SIGCHLD until the other threads exit.
        """
        fields = (read(f"{PROC}/{pid}/stat") or b"").rpartition(b") ")[2]
        return fields.startswith(b"Z") and int(fields.split()[17]) > 1
