"""Resource usage of units, from their cgroups, which may be removed at any moment."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

from solo5_systemd.cgroup.hierarchy import MOUNT, read, unified, units
from solo5_systemd.names import TaskName, task_of_unit

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from solo5_systemd.cgroup.meter import Meter
    from solo5_systemd.cgroup.usage import Usage

# The parsers of samples are imported where they are used, for startup time: a list of tasks takes none.


class CgroupFs:
    """The unified cgroup hierarchy, with /proc and /sys for what it lacks; implements `backends.Usages`."""

    def __init__(self, mount: Path = MOUNT, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> None:
        self._root = unified(mount)
        self._proc = proc
        self._blocks = sys / "dev/block"

    def meter(self, control_group: str) -> "Meter":
        """Return a meter of memory and CPU time of a cgroup; an empty path gives a meter without samples."""
        from solo5_systemd.cgroup.meter import Meter

        return Meter(f"{self._root}/{control_group.lstrip('/')}" if control_group else None)

    async def usages(self) -> "Mapping[TaskName, Usage]":
        """Return a full sample of each running task, found below solo5.slice without a D-Bus call."""
        tasks = ((task_of_unit(unit), group) for unit, group in units(self._root))
        found = ((task, self._usage(self._root + group)) for task, group in tasks if task is not None)
        return {task: sample for task, sample in found if sample is not None}

    def _usage(self, directory: str) -> "Usage | None":
        from solo5_systemd.cgroup.usage import ALL, usage

        files = {name: data for name in ALL if (data := read(f"{directory}/{name}")) is not None}
        return usage(files, time.monotonic(), self._device) if files else None

    def _device(self, number: str) -> str:
        try:
            return (self._blocks / number).readlink().name
        except OSError:  # the device was removed
            return number

    async def cpus(self, directory: str) -> str | None:
        """Return cpuset.cpus of another program's cgroup, such as `0-2,5`; None where it is empty or missing.

        Args:
            directory: absolute path of the cgroup.
        """
        return (read(f"{directory}/cpuset.cpus") or b"").decode("ascii", "replace").strip() or None

    async def controllers(self) -> "Collection[str]":
        """Return the controllers of the unified hierarchy; none on a legacy or hybrid one."""
        return (read(f"{self._root}/cgroup.controllers") or b"").decode("ascii", "replace").split()

    async def total_memory(self) -> int:
        """Return the host's memory in bytes (MemTotal of proc(5), meminfo, in units of 1024)."""
        _, kib, _ = (self._proc / "meminfo").read_text(encoding="ascii").partition("\n")[0].split()
        return int(kib) * 1024

    async def stalled(self, pid: int) -> bool:
        """Return whether a process is a zombie with live threads (proc(5), stat).

        Its main thread has exited, so PID 1 gets no SIGCHLD until the other threads exit.
        """
        data = read(f"{self._proc}/{pid}/stat")
        if data is None:
            return False
        fields = data.rpartition(b")")[2].split()
        state, threads = fields[0], int(fields[17])
        return state == b"Z" and threads > 1
