"""The block devices under a file, as systemd finds them for IOReadBandwidthMax= (systemd.resource-control(5)).

From the device of the file system, or a device node itself, to the whole disk of a partition, and on to the one device
under a device-mapper or md device. `io.max` has no partitions, and I/O is limited on the last device of the chain.

A device that vanished, or sysfs that is not mounted, is an OSError.
"""

import errno
import fcntl
import os
import stat
import uuid
from pathlib import Path

from solo5_systemd.base import procfs
from solo5_systemd.storage.io_limits import BlockDevice

BTRFS_FS_INFO = 0x8400941F
"""ioctl(2) BTRFS_IOC_FS_INFO, from linux/btrfs.h; the result begins with two numbers of 64 bits and the UUID."""

_FS_INFO_SIZE = 1024
_FS_ID = slice(16, 32)
_LAYERS_MAX = 8


def devices_of(descriptor: int) -> tuple[BlockDevice, ...]:
    """Return the devices under an open (O_PATH) file, directory or block device, each on the next one.

    None is under a file system of several devices, or in memory, of a network, of FUSE or of layers (overlay).

    Raises:
        OSError: a device vanished, or sysfs is not mounted.
    """
    status = os.fstat(descriptor)
    number = status.st_rdev if stat.S_ISBLK(status.st_mode) else status.st_dev
    if os.major(number):
        return chain(f"{os.major(number)}:{os.minor(number)}")
    if (single := _btrfs_device(descriptor)) is None:
        return ()
    return chain(single)


def directory_of(number: int) -> Path:
    """Return the directory of a block device in sysfs, by its device number."""
    return procfs.SYS / f"dev/block/{os.major(number)}:{os.minor(number)}"


def chain(number: str) -> tuple[BlockDevice, ...]:
    """Return a device (`254:1`), as the whole disk that it is or is a part of, and those under it.

    Raises:
        OSError: there is no such device.
    """
    directory = whole((procfs.SYS / "dev/block" / number).resolve(strict=True))
    found = [directory]
    while len(found) < _LAYERS_MAX:
        below = {whole(each.resolve()) for each in (directory / "slaves").glob("*")}
        if len(below) != 1:  # several devices: the limit is on the one that is made of them
            break
        [directory] = below
        found.append(directory)
    return tuple(BlockDevice(number=(each / "dev").read_text().strip(), name=each.name) for each in found)


def whole(directory: Path) -> Path:
    """Return the directory of the disk that a partition is on, or of the device itself."""
    return directory.parent if (directory / "partition").exists() else directory


def _btrfs_device(descriptor: int) -> str | None:
    """Return the number of a Btrfs's device, since st_dev of its files is anonymous; None for several, or no Btrfs."""
    opened = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    info = bytearray(_FS_INFO_SIZE)
    try:
        fcntl.ioctl(opened, BTRFS_FS_INFO, info)
    except OSError as error:
        if error.errno in (errno.ENOTTY, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
            return None
        raise
    finally:
        os.close(opened)
    return btrfs_device(bytes(info[_FS_ID]))


def btrfs_device(identifier: bytes) -> str | None:
    """Return the number of the only device of a Btrfs, by the 16 bytes of its UUID; None if it has several.

    Raises:
        OSError: sysfs has no such device.
    """
    devices = list((procfs.SYS / "fs/btrfs" / str(uuid.UUID(bytes=identifier)) / "devices").glob("*"))
    return (devices[0] / "dev").read_text().strip() if len(devices) == 1 else None
