"""What of the file system a task's tender sees."""

import os
from pathlib import Path

KERNELS = ("proc", "dev", "sys")


def files_of(pid: int) -> set[str]:
    """Every file with content in a process's root, the kernel's own file systems apart."""
    root = Path(f"/proc/{pid}/root")
    found = set()
    for directory, below, files in os.walk(root):
        below[:] = [each for each in below if Path(directory, each) not in {root / name for name in KERNELS}]
        paths = [Path(directory, each) for each in files]
        found |= {f"/{path.relative_to(root)}" for path in paths if path.stat().st_size}
    return found
