"""Files of the kernel's, which may vanish at any moment."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

from solo5_systemd.names import SLICE

LARGEST = 1 << 14
"""Bytes; memory.stat, the largest, has two thousand."""

GONE = (errno.ENOENT, errno.ENODEV, errno.ESRCH, errno.EOPNOTSUPP)
"""What reading fails with where the unit has ended since it was looked up, or its controller is not enabled here."""


def opened(path: str) -> int:
    """A descriptor that reads.

    Raises:
        OSError: of `GONE`, and others.
    """
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def read(path: str) -> bytes | None:
    """A file once, without a buffer between; None where it is gone."""
    try:
        descriptor = opened(path)
        try:
            return os.read(descriptor, LARGEST)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno in GONE:
            return None
        raise


# Where the cgroups of our units are.

MOUNT = Path("/sys/fs/cgroup")


def unified(mount: Path = MOUNT) -> str:
    """The root of the unified hierarchy; on a hybrid host it is mounted one level deeper, without most controllers."""
    return str(mount if (mount / "cgroup.procs").exists() else mount / "unified")


def units(root: str, control_group: str = f"/{SLICE}") -> Iterator[tuple[str, str]]:
    """Each service and scope in a slice, and in the slices within it: its name, and its cgroup as ControlGroup= has it.

    Args:
        root: of the unified hierarchy.
        control_group: the slice's.
    """
    try:
        names = os.listdir(root + control_group)  # noqa: PTH208 - a thousand times cheaper
    except OSError:  # there is no slice before its first unit
        return
    for name in names:
        if name.endswith(".slice"):
            yield from units(root, f"{control_group}/{name}")
        elif name.endswith((".service", ".scope")):
            yield name, f"{control_group}/{name}"
