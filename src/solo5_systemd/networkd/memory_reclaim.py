"""The memory of a task that sleeps: the kernel swaps it out, where the task may be swapped (MemorySwapMax=)."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

MOUNT = "/sys/fs/cgroup"
CHUNK = 4 << 20
"""Bytes of one request. A task that is woken meanwhile waits for no more."""

WRITING_INTERVAL_S = 0.2
"""Between two requests while pages are written to the swap: the kernel frees them at the first one afterwards."""

FRUITLESS_MAX = 10
"""Requests one after the other that free nothing: the swap is slower than that, or the pages stay."""


def reclaim(control_group: str, wanted: Callable[[], bool]) -> int:
    """Have the kernel reclaim the memory of a cgroup (memory.reclaim of cgroup v2, Linux 5.19).

    Args:
        control_group: ControlGroup= of the unit.
        wanted: returns whether the task sleeps still.

    Returns:
        The bytes by which the cgroup has less memory than before; 0 where it may not be swapped, or the kernel cannot.
    """
    directory = Path(f"{MOUNT}{control_group}")
    with suppress(OSError, ValueError):  # cgroup v1; the unit is over
        if (directory / "memory.swap.max").read_text().strip() == "0":
            return 0
        before = left = int((directory / "memory.current").read_text())
        descriptor = os.open(directory / "memory.reclaim", os.O_WRONLY | os.O_CLOEXEC)
        try:
            fruitless = 0
            while wanted() and left > 0 and fruitless < FRUITLESS_MAX:
                try:
                    os.write(descriptor, f"{min(left, CHUNK)}".encode())
                except BlockingIOError:  # EAGAIN: no more can be reclaimed now
                    if not _in_swap_cache(directory):
                        break
                    time.sleep(WRITING_INTERVAL_S)
                last, left = left, int((directory / "memory.current").read_text())
                fruitless = 0 if left < last else fruitless + 1
        finally:
            os.close(descriptor)
        return max(0, before - int((directory / "memory.current").read_text()))
    return 0


def _in_swap_cache(directory: Path) -> int:
    """Return the bytes of pages that are in the swap, or are written to it, and in memory as well."""
    lines = (directory / "memory.stat").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("swapcached ")), 0)
