"""Reads of cgroup files, and the cgroups of the package's units."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

from solo5_systemd.names import SLICE

READ_SIZE = 1 << 14
"""Bytes of one read(2); memory.stat, the largest file, has some two thousand."""

VANISHED = (errno.ENOENT, errno.ENODEV, errno.ESRCH, errno.EOPNOTSUPP)
"""The errnos of a read where the cgroup was removed, or its controller is not enabled."""


def open_file(path: str) -> int:
    """Open a file for reading and return its descriptor.

    Raises:
        OSError: one of `VANISHED`, or another.
    """
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def read(path: str) -> bytes | None:
    """Return the content of a file; None for an errno of `VANISHED`."""
    try:
        descriptor = open_file(path)
        try:
            return os.read(descriptor, READ_SIZE)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno in VANISHED:
            return None
        raise


MOUNT = Path("/sys/fs/cgroup")


def unified(mount: Path = MOUNT) -> str:
    """Return the root of the unified hierarchy; on a hybrid host it is `unified/`, without most controllers."""
    return str(mount if (mount / "cgroup.procs").exists() else mount / "unified")


def control_group(slice_unit: str, unit: str) -> str:
    """Return ControlGroup= of a unit in a slice; each `-` in a slice's name is a level (systemd.slice(5))."""
    words = slice_unit.removesuffix(".slice").split("-")
    levels = ["-".join(words[: count + 1]) for count in range(len(words))] if slice_unit != "-.slice" else []
    return "".join(f"/{level}.slice" for level in levels) + f"/{unit}"


def units(root: str, control_group: str = f"/{SLICE}") -> Iterator[tuple[str, str]]:
    """Yield the services and scopes below a slice, recursively, as unit name and ControlGroup= value.

    Args:
        root: the root of the unified hierarchy.
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
