"""What has been done to the file or device of a disk since the start of its task, as its path and size show it.

The task has the file of its start, whatever its path resolves to. A hole that is punched into it shows nowhere: its
sectors are zeros for the guest.

A device may be unplugged, detached, removed from under a task. The tender keeps the dead device open. Since the kernel
has set its size to 0 (Linux 6.1 and later), a read is at the end of the file, and a write has “No space left on
device”: no error number stands for a device that is gone.
"""

import os
import stat
from collections.abc import Collection, Mapping
from contextlib import suppress

from solo5_systemd.storage.block_devices import directory_of
from solo5_systemd.storage.model import Backing


def change_of(disk: Mapping[str, str], identities: Collection[tuple[int, int]]) -> str:
    """Return what has changed, as the end of a sentence; empty: nothing, or it is not known.

    Args:
        disk: as the lock file of its task has it.
    """
    path, size = disk.get("path", ""), disk.get("size", "")
    if disk.get("backing") == Backing.DEVICE:
        with suppress(OSError):
            return "its device is gone" if is_lost(path, identities) else ""
        return ""
    if not size or disk.get("backing") not in (Backing.FILE, Backing.NAMED):
        return ""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return "no file has its path any more"
    except OSError:
        return ""
    if not stat.S_ISREG(status.st_mode) or (status.st_dev, status.st_ino) not in identities:
        return "another file has its path"
    return "" if str(status.st_size) == size else f"its file has {status.st_size} bytes instead of {size}"


def is_lost(path: str, identities: Collection[tuple[int, int]]) -> bool:
    """Return whether a disk's device is gone: no node of it at its path, or a device without a size.

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
        return (directory_of(status.st_rdev) / "size").read_text().strip() == "0"
    return True
