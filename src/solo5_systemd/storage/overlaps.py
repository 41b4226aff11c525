"""Disks that share their data with another file or device: a partition and its disk, a loop device and its file.

A lock has the identity of one of them only. What the kernel itself uses, such as a device with a mounted file system,
is in use as well, although no task has it.
"""

import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from solo5_systemd.errors import TakenError
from solo5_systemd.files.procfs import identity
from solo5_systemd.storage.model import Disk

LOOP_GET_STATUS64 = 0x4C05
"""ioctl(2), from linux/loop.h; the result begins with device and inode of the file, as stat(2) has them."""

_LOOP_INFO_SIZE = 232
_FILE = struct.Struct("=QQ")
_DELETED = " (deleted)"

Identity = tuple[int, int]


def overlapping(disk: Disk, sys: Path = Path("/sys"), dev: Path = Path("/dev")) -> Iterator[Identity]:
    """Yield the identities of what has data of a block device: its disk or its partitions, the file of a loop device.

    Args:
        disk: a checked disk; a file has none.
        sys: where sysfs is mounted.
        dev: the directory of device nodes.
    """
    if disk.device is None:
        return
    major, minor = disk.device
    directory = (sys / f"dev/block/{major}:{minor}").resolve()
    if (directory / "partition").exists():
        directory = directory.parent
        yield from _device(directory)
    else:
        for partition in directory.glob("*/partition"):
            yield from _device(partition.parent)
    if (directory / "loop").exists():
        with suppress(OSError):
            yield _backing_file(directory, dev)


def check_unused(disk: Disk, sys: Path = Path("/sys"), dev: Path = Path("/dev")) -> None:
    """Check that the kernel does not use a disk: as a file system, as a part of another device, as a loop device.

    Raises:
        TakenError: it does.
    """
    if disk.is_private or disk.planned:
        return
    if disk.device is not None:
        if _is_claimed(disk.path):
            raise _used(disk, "mounted, or a part of another device", "`lsblk` shows what uses it.")
        return
    for loop in (sys / "block").glob("loop*/loop"):
        if (loop.parent / "ro").read_text().strip() == "1":  # it cannot write
            continue
        with suppress(OSError):
            if _backing_file(loop.parent, dev) == disk.identity:
                name = loop.parent.name
                raise _used(
                    disk, f"attached to {name}", f"Use /dev/{name} as the disk, or detach it: losetup -d {name}"
                )


def _used(disk: Disk, how: str, hint: str) -> TakenError:
    return TakenError(f"disk {disk.disk}: {disk.path!r} is {how}: expected a disk that nothing else uses.", hint)


def _is_claimed(path: str) -> bool:
    """Return whether the kernel refuses an exclusive open of a block device; another error is the tender's."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_EXCL | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW))
    except OSError as error:
        return error.errno == errno.EBUSY
    return False


def _device(directory: Path) -> Iterator[Identity]:
    with suppress(OSError, ValueError):  # removed meanwhile
        major, minor = map(int, (directory / "dev").read_text().split(":"))
        yield os.makedev(major, minor), 0


def _backing_file(directory: Path, dev: Path) -> Identity:
    """Return the identity of a loop device's file; by its path, if there is no device node.

    Raises:
        OSError: it has none any more.
    """
    with suppress(FileNotFoundError):
        descriptor = os.open(dev / directory.name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            info = bytearray(_LOOP_INFO_SIZE)
            fcntl.ioctl(descriptor, LOOP_GET_STATUS64, info)
        finally:
            os.close(descriptor)
        device, inode = _FILE.unpack_from(info)
        return device, inode
    return identity(Path((directory / "loop/backing_file").read_text().rstrip("\n").removesuffix(_DELETED)).stat())
