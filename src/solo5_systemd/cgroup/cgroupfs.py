"""Read a unit's cgroup, which may vanish at any moment."""

import errno
import time
from pathlib import Path

from solo5_systemd.cgroup.usage import Usage, usage

FILES = (
    "memory.current",
    "memory.peak",
    "memory.max",
    "memory.stat",
    "memory.swap.current",
    "memory.events",
    "cpu.stat",
    "io.stat",
    "pids.current",
)


class CgroupFs:
    """The unified hierarchy; on a hybrid host it is mounted one level deeper, without most controllers."""

    def __init__(self, root: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> None:
        self._root = root if (root / "cgroup.procs").exists() else root / "unified"
        self._proc = proc

    async def usage(self, control_group: str) -> Usage | None:
        """A sample; None where the cgroup is gone."""
        directory = self._root / control_group.lstrip("/")
        files = {name: text for name in FILES if (text := _read(directory / name)) is not None}
        return usage(files, time.monotonic()) if files else None

    async def cpus(self, directory: str) -> str | None:
        """The processors of a cpuset that somebody else keeps, such as `0-2,5`; None where it names none.

        Args:
            directory: of the cgroup, an absolute path.
        """
        return (_read(Path(directory) / "cpuset.cpus") or "").strip() or None

    async def total_memory(self) -> int:
        """Bytes that the host has (proc(5), meminfo: in units of 1024)."""
        _, kib, _ = (self._proc / "meminfo").read_text(encoding="ascii").partition("\n")[0].split()
        return int(kib) * 1024

    async def stalled(self, pid: int) -> bool:
        """A zombie leader: its main thread is dead, others live, and nobody will ever be told (proc(5), stat)."""
        text = _read(self._proc / str(pid) / "stat")
        if text is None:
            return False
        fields = text.rpartition(")")[2].split()
        state, threads = fields[0], int(fields[17])
        return state == "Z" and threads > 1


def _read(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        # The unit ended between our look-up and this read, or its controller is not enabled here.
        if error.errno in (errno.ENOENT, errno.ENODEV, errno.ESRCH, errno.EOPNOTSUPP):
            return None
        raise
