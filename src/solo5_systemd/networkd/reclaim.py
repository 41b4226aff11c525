"""The memory of a task that sleeps: the kernel swaps it out, where the task may be swapped (MemorySwapMax=)."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

MOUNT = "/sys/fs/cgroup"
CHUNK = 4 << 20
"""Bytes of one request. A task that is woken meanwhile waits for no more."""


def reclaim(control_group: str, wanted: Callable[[], bool], mount: str = MOUNT) -> int:
    """Have the kernel reclaim the memory of a cgroup (memory.reclaim of cgroup v2, Linux 5.19).

    Args:
        control_group: ControlGroup= of the unit.
        wanted: returns whether the task sleeps still.
        mount: of cgroup v2.

    Returns:
        The bytes by which the cgroup has less memory than before; 0 where it may not be swapped, or the kernel cannot.
    """
    directory = Path(f"{mount}{control_group}")
    with suppress(OSError, ValueError):  # cgroup v1; the unit is over
        if (directory / "memory.swap.max").read_text().strip() == "0":
            return 0
        before = left = int((directory / "memory.current").read_text())
        descriptor = os.open(directory / "memory.reclaim", os.O_WRONLY | os.O_CLOEXEC)
        try:
            with suppress(OSError):  # EAGAIN: no more can be reclaimed
                while wanted() and left > 0:
                    os.write(descriptor, f"{min(left, CHUNK)}".encode())
                    left = int((directory / "memory.current").read_text())
        finally:
            os.close(descriptor)
        return max(0, before - int((directory / "memory.current").read_text()))
    return 0
