"""Where the cgroups of our units are."""

import os
from collections.abc import Iterator
from pathlib import Path

from solo5_systemd.names import SLICE

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
