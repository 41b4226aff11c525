"""Block devices: those under a file, and those that share data with a disk.

The devices under a file are as systemd finds them for IOReadBandwidthMax= (systemd.resource-control(5)): from the
device of the file system, or a device node itself, to the whole disk of a partition, and on to the one device under a
device-mapper or md device. `io.max` has no partitions, and I/O is limited on the last device of the chain.

Why what shares data with a disk in use is in use: `docs/decisions/disk-locks.md`. A device that vanished, or sysfs that
is not mounted, is an OSError.
"""

import errno
import fcntl
import os
import stat
import struct
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from solo5_systemd.base import paths
from solo5_systemd.base.errors import InvalidRequestError, TakenError
from solo5_systemd.base.locks import closing
from solo5_systemd.base.paths import identity
from solo5_systemd.storage.model import Disk

BTRFS_FS_INFO = 0x8400941F
"""ioctl(2) BTRFS_IOC_FS_INFO, from linux/btrfs.h; the result begins with two numbers of 64 bits and the UUID."""

_FS_INFO_SIZE = 1024
_FS_ID = slice(16, 32)


def devices_of(descriptor: int) -> dict[str, str]:
    """Return the devices under an open (O_PATH) file, directory or block device, as of `Disk.devices`.

    None is under a file system of several devices, or in memory, of a network, of FUSE or of layers (overlay).
    """
    status = os.fstat(descriptor)
    number = status.st_rdev if stat.S_ISBLK(status.st_mode) else status.st_dev
    # A file system without a device of its own, or of several, has major number 0.
    found = f"{os.major(number)}:{os.minor(number)}" if os.major(number) else _btrfs_device(descriptor)
    return chain(found) if found else {}


def directory_of(number: int) -> Path:
    """Return the directory of a block device in sysfs, by its device number."""
    return paths.SYS / f"dev/block/{os.major(number)}:{os.minor(number)}"


def chain(number: str) -> dict[str, str]:
    """Return a device (`254:1`), as the whole disk that it is or is a part of, and those under it."""
    found = [whole((paths.SYS / "dev/block" / number).resolve(strict=True))]
    # Several devices: the limit is on the one that is made of them.
    while len(below := {whole(each.resolve()) for each in (found[-1] / "slaves").glob("*")}) == 1:
        found += below
    return {(each / "dev").read_text().strip(): each.name for each in found}


def whole(directory: Path) -> Path:
    """Return the directory of the disk that a partition is on, or of the device itself."""
    return directory.parent if (directory / "partition").exists() else directory


def _btrfs_device(descriptor: int) -> str | None:
    """Return the number of a Btrfs's device, since st_dev of its files is anonymous; None for several, or no Btrfs."""
    devices = list((paths.SYS / "fs/btrfs" / name / "devices").glob("*")) if (name := btrfs_of(descriptor)) else ()
    return (devices[0] / "dev").read_text().strip() if len(devices) == 1 else None


def btrfs_of(descriptor: int) -> str:
    """Return the UUID of the Btrfs of an open (O_PATH) file or directory; empty: it is on another file system."""
    info = bytearray(_FS_INFO_SIZE)
    with closing(os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)) as opened:
        try:
            fcntl.ioctl(opened, BTRFS_FS_INFO, info)
        except OSError as error:
            if error.errno in (errno.ENOTTY, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):  # only Btrfs knows it
                return ""
            raise
    return str(uuid.UUID(bytes=bytes(info[_FS_ID])))


LOOP_GET_STATUS64 = 0x4C05
"""ioctl(2), from linux/loop.h; the result begins with st_dev, st_ino and st_rdev of what is attached."""

_LOOP_INFO_SIZE = 232
_ATTACHED = struct.Struct("=QQQ")
_DELETED = " (deleted)"

Identity = tuple[int, int]


def check_distinct(disks: Iterable[Disk]) -> None:
    """Check that the disks of a task are different files; raises InvalidRequestError if two are one."""
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
    if disk.is_private or disk.planned:  # the start makes it, so nothing else uses it
        return
    if (use := kernel_use(disk)) is not None:
        how, hint = use
        raise TakenError(f"{disk} is {how}: expected a disk that nothing else uses.", hint)


def kernel_use(disk: Disk) -> tuple[str, str] | None:
    """Return how the kernel uses a disk, as the end of a sentence, and what to do; None if it does not."""
    if disk.device is not None and _is_claimed(disk.path):
        return "mounted, or a part of another device", "`lsblk` shows what uses it."
    shared = {disk.identity, *overlapping(disk)}
    for loop in (paths.SYS / "block").glob("loop*/loop"):
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
            if not inode:  # a device, which may be on others
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
    """Return the identity of a loop device's file or device, by its path if it has no node; raises OSError for none."""
    with suppress(FileNotFoundError):
        with closing(os.open(paths.DEV / directory.name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)) as descriptor:
            info = bytearray(_LOOP_INFO_SIZE)
            fcntl.ioctl(descriptor, LOOP_GET_STATUS64, info)
        device, inode, number = _ATTACHED.unpack_from(info)
        return (number, 0) if number else (device, inode)
    return identity(Path((directory / "loop/backing_file").read_text().rstrip("\n").removesuffix(_DELETED)).stat())
