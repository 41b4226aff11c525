"""The cgroups of units: their files, resource usage and attributes. A cgroup may be removed at any moment.

Parsers are imported where they are used, for startup time: a list of tasks takes none.
"""

import errno
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from solo5_systemd.base.declared_units import task_of
from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.locks import closing
from solo5_systemd.base.names import SLICE, TaskName

if TYPE_CHECKING:
    from collections.abc import Collection

    from solo5_systemd.cgroup.meter import Meter
    from solo5_systemd.cgroup.usage import Usage


MOUNT = Path("/sys/fs/cgroup")
PROC, BLOCKS = Path("/proc"), Path("/sys/dev/block")

READ_SIZE = 1 << 16
"""Bytes of one read(2); memory.stat, the largest file of a cgroup, has some two thousand."""

VANISHED = (errno.ENOENT, errno.ENODEV, errno.ESRCH, errno.EOPNOTSUPP)
"""The errnos of a read where the cgroup was removed, or its controller is not enabled."""


def open_file(path: str) -> int:
    """Open a file for reading and return its descriptor.

    Raises:
        OSError: one of `VANISHED`, or another.
    """
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def read(path: str) -> bytes | None:
    """Return the content of a file of a cgroup, or of one that PID 1 exports; None for an errno of `VANISHED`."""
    try:
        with closing(open_file(path)) as descriptor:
            return os.read(descriptor, READ_SIZE)
    except OSError as error:
        if error.errno in VANISHED:
            return None
        raise


def unified() -> str:
    """Return the root of the unified hierarchy; on a hybrid host it is `unified/`, without most controllers."""
    return str(MOUNT if (MOUNT / "cgroup.procs").exists() else MOUNT / "unified")


def control_group(slice_unit: str, unit: str) -> str:
    """Return ControlGroup= of a unit in a slice; each `-` in a slice's name is a level (systemd.slice(5))."""
    words = slice_unit.removesuffix(".slice").split("-")
    levels = ["-".join(words[: count + 1]) for count in range(len(words))] if slice_unit != "-.slice" else []
    return "".join(f"/{level}.slice" for level in levels) + f"/{unit}"


def units(root: str, control_group: str = f"/{SLICE}") -> Iterator[tuple[str, str]]:
    """Yield the services and scopes below a slice, recursively, as unit name and ControlGroup= value.

    Args:
        control_group: ControlGroup= of the slice.
    """
    try:
        names = os.listdir(root + control_group)  # noqa: PTH208 - a thousand times cheaper
    except OSError:  # the slice has no cgroup before its first unit
        return
    for name in names:
        if name.endswith(".slice"):
            yield from units(root, f"{control_group}/{name}")
        elif name.endswith((".service", ".scope")):
            yield name, f"{control_group}/{name}"


ATTRIBUTE = "user.solo5.log_fields"
"""A JSON object. The namespace is that of systemd's own cgroup attributes: user.invocation_id, user.delegate."""


def write_fields(directory: str, fields: Mapping[str, str]) -> None:
    """Set the log fields of a scope, which has no LogExtraFields=; only root can set the attribute, any user reads it.

    It is removed with the cgroup, so that it always belongs to the present run of the scope. Errors are ignored: the
    cgroup was removed, or the kernel has no such xattrs.
    """
    import json

    with suppress(OSError):
        os.setxattr(directory, ATTRIBUTE, json.dumps(dict(fields)).encode())


def read_fields(directory: str) -> Mapping[str, str]:
    """Return the log fields of a scope's cgroup; empty without a valid attribute."""
    from solo5_systemd.base.decode import Fields, json_document

    try:
        fields = Fields(json_document(os.getxattr(directory, ATTRIBUTE), ATTRIBUTE))
        return {key: fields.text(key) for key in fields}
    except (OSError, InvalidRequestError):
        return {}


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
        _, kib, _ = (PROC / "meminfo").read_text(encoding="ascii").partition("\n")[0].split()
        return int(kib) * 1024

    async def stalled(self, pid: int) -> bool:
        """Return whether a process is a zombie with live threads (proc(5), stat).

        Its main thread has exited, so PID 1 gets no SIGCHLD until the other threads exit.
        """
        data = read(f"{PROC}/{pid}/stat")
        if data is None:
            return False
        fields = data.rpartition(b")")[2].split()
        state, threads = fields[0], int(fields[17])
        return state == b"Z" and threads > 1
