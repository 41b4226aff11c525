"""Block devices of disks that the machine has lost: unplugged, detached, removed from under a task.

The tender keeps the dead device open. Since the kernel has set its size to 0 (Linux 6.1 and later), a read is at the
end of the file, and a write has “No space left on device”: no error number stands for a device that is gone.
"""

import os
import stat
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path


def is_lost(path: str, identities: Collection[tuple[int, int]], sys: Path = Path("/sys")) -> bool:
    """Return whether a disk's device is gone: no node of it at its path, or a device without a size.

    Args:
        path: of the device node.
        identities: of the task's disks.
        sys: where sysfs is mounted.

    Raises:
        OSError: the path cannot be looked at.
    """
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    if not stat.S_ISBLK(status.st_mode) or (status.st_rdev, 0) not in identities:
        return True
    with suppress(FileNotFoundError):
        number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
        return (sys / "dev/block" / number / "size").read_text().strip() == "0"
    return True
