"""Files and block devices that can be disks by their path: size and holder, for `solo5ctl disk inspect`."""

import os
import stat
from dataclasses import dataclass

from solo5_systemd.base.errors import HostError, InvalidRequestError
from solo5_systemd.base.names import DeviceName
from solo5_systemd.base.procfs import identity, open_path
from solo5_systemd.storage.block_devices import directory_of, whole
from solo5_systemd.storage.lock_records import holders
from solo5_systemd.storage.model import Backing, Disk
from solo5_systemd.storage.overlaps import kernel_use, overlapping

ANY_DISK = DeviceName("disk")
"""The name of a disk that no manifest has."""


@dataclass(frozen=True, kw_only=True)
class DiskPath:
    """A file or block device.

    Attributes:
        path: without symbolic links.
        sector_size: of a block device, in bytes: its logical block; None of a file.
        task: that has it, or shares data with it, such as its partition; empty: a reader; None: none.
        use: how the kernel uses it; empty: not.
    """

    path: str
    backing: Backing
    size: int
    sector_size: int | None
    task: str | None
    use: str


def inspect_path(text: str) -> DiskPath:
    """Return what is at a path.

    Args:
        text: a path, which may be a symbolic link, such as `/dev/vg/web`.

    Raises:
        InvalidRequestError: neither a regular file nor a block device.
        NotFoundError: it does not exist.
        HostError: it cannot be read.
    """
    descriptor, path = open_path(repr(text), text, ())
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) and not stat.S_ISBLK(status.st_mode):
            raise InvalidRequestError(f"{text!r} is no disk: expected a regular file or a block device.")
        size, sector = _geometry(status)
    except OSError as error:
        raise HostError(f"{text!r} cannot be read: {error.strerror}.") from error
    finally:
        os.close(descriptor)
    is_device = stat.S_ISBLK(status.st_mode)
    disk = Disk(
        disk=ANY_DISK,
        path=path,
        device=(os.major(status.st_rdev), os.minor(status.st_rdev)) if is_device else None,
        identity=identity(status),
        backing=Backing.DEVICE if is_device else Backing.FILE,
    )
    held = holders()
    tasks = [held[each] for each in (disk.identity, *overlapping(disk)) if each in held]
    use = kernel_use(disk)
    return DiskPath(
        path=path,
        backing=disk.backing,
        size=size,
        sector_size=sector,
        task=tasks[0] if tasks else None,
        use="" if use is None else use[0],
    )


def _geometry(status: os.stat_result) -> tuple[int, int | None]:
    """Return the size, and the logical block of a device as sysfs has it: no open, which may act on a device."""
    if stat.S_ISREG(status.st_mode):
        return status.st_size, None
    directory = directory_of(status.st_rdev).resolve(strict=True)
    sectors = int((directory / "size").read_text())  # of 512 bytes, whatever the device's own are
    return sectors * 512, int((whole(directory) / "queue/logical_block_size").read_text())
