"""Disks that share their data with another disk of their task, or with a file or device.

A partition and its disk, a loop device and its file or device, a mapped device and those under it.

A lock has the identity of one of them only. What the kernel itself uses, such as a device with a mounted file system,
is in use as well, although no task has it.
"""

import errno
import fcntl
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from solo5_systemd.base import procfs
from solo5_systemd.base.errors import InvalidRequestError, TakenError
from solo5_systemd.base.locks import closing
from solo5_systemd.base.procfs import identity
from solo5_systemd.storage.block_devices import directory_of
from solo5_systemd.storage.model import Disk

LOOP_GET_STATUS64 = 0x4C05
"""ioctl(2), from linux/loop.h; the result begins with st_dev, st_ino and st_rdev of what is attached."""

_LOOP_INFO_SIZE = 232
_ATTACHED = struct.Struct("=QQQ")
_DELETED = " (deleted)"

Identity = tuple[int, int]


def check_distinct(disks: Iterable[Disk]) -> None:
    """Check that the disks of a task are different files.

    Raises:
        InvalidRequestError: two disks are the same file.
    """
    seen: dict[Identity, Disk] = {}
    for disk in disks:
        other = seen.setdefault(disk.identity, disk)
        if other is not disk:
            raise InvalidRequestError(
                f"disks {other.disk} and {disk.disk} are both {disk.path!r}: expected a file for each."
            )


def overlapping(disk: Disk) -> Iterator[Identity]:
    """Yield the identities of all files and devices that share data with a block device, in any number of layers."""
    if disk.device is not None:
        yield from _of_device(disk.identity[0])


def check_unused(disk: Disk) -> None:
    """Check that the kernel does not use a disk: as a file system, as a part of another device, as a loop device.

    Raises:
        TakenError: it does.
    """
    if disk.is_private or disk.planned:
        return
    if (use := kernel_use(disk)) is not None:
        how, hint = use
        raise TakenError(f"{disk} is {how}: expected a disk that nothing else uses.", hint)


def kernel_use(disk: Disk) -> tuple[str, str] | None:
    """Return how the kernel uses a disk, as the end of a sentence, and what to do; None if it does not."""
    if disk.device is not None and _is_claimed(disk.path):
        return "mounted, or a part of another device", "`lsblk` shows what uses it."
    shared = {disk.identity, *overlapping(disk)}
    for loop in (procfs.SYS / "block").glob("loop*/loop"):
        directory = loop.parent.resolve()
        with suppress(OSError):  # detached meanwhile
            is_read_only = (directory / "ro").read_text().strip() == "1"
            if is_read_only or not shared.isdisjoint(_number(directory)):  # the disk itself, or below it
                continue
            if _attached(directory) in shared:
                name = directory.name
                return f"attached to {name}", f"Use /dev/{name} as the disk, or detach it: losetup -d {name}"
    return None


def _is_claimed(path: str) -> bool:
    """Return whether the kernel refuses an exclusive open of a block device; another error is the tender's."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_EXCL | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW))
    except OSError as error:
        return error.errno == errno.EBUSY
    return False


def _of_device(number: int) -> Iterator[Identity]:
    """Yield what shares data with a device: its disk or its partitions, and what is below them."""
    directory = directory_of(number).resolve()
    below = [directory]
    if (directory / "partition").exists():
        below.append(directory.parent)
        yield from _number(directory.parent)
    else:
        for partition in directory.glob("*/partition"):
            yield from _number(partition.parent)
    for each in below:
        for device, inode in _below(each):
            yield device, inode
            if not inode:
                yield from _of_device(device)


def _below(directory: Path) -> Iterator[Identity]:
    """Yield what a loop device is attached to, or the devices of a mapped one."""
    for slave in directory.glob("slaves/*"):
        yield from _number(slave)
    if (directory / "loop").exists():
        with suppress(OSError):
            yield _attached(directory)


def _number(directory: Path) -> Iterator[Identity]:
    with suppress(OSError, ValueError):  # removed meanwhile
        major, minor = map(int, (directory / "dev").read_text().split(":"))
        yield os.makedev(major, minor), 0


def _attached(directory: Path) -> Identity:
    """Return the identity of a loop device's file or block device; by its path, if there is no device node.

    Raises:
        OSError: it has none any more.
    """
    with suppress(FileNotFoundError):
        with closing(os.open(procfs.DEV / directory.name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)) as descriptor:
            info = bytearray(_LOOP_INFO_SIZE)
            fcntl.ioctl(descriptor, LOOP_GET_STATUS64, info)
        device, inode, number = _ATTACHED.unpack_from(info)
        return (number, 0) if number else (device, inode)
    return identity(Path((directory / "loop/backing_file").read_text().rstrip("\n").removesuffix(_DELETED)).stat())
