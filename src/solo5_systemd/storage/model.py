"""Disk requests and checked disks, with the rules of tenders for them."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath

from solo5_systemd.errors import InvalidRequestError
from solo5_systemd.names import DeviceName

SECTOR_SIZE = 512
"""Default sector size in bytes, as in the tenders."""

MAX_SECTOR_SIZE = 32768
"""Bytes; the tenders store it in 16 bits."""


@dataclass(frozen=True, kw_only=True)
class NewFile:
    """A file that a start creates where a disk has none.

    Attributes:
        size: bytes, whole sectors.
        preallocate: allocate its blocks (fallocate(2)); False: a sparse file.
    """

    size: int
    preallocate: bool = False


@dataclass(frozen=True, kw_only=True)
class DiskRequest:
    """A BLOCK_BASIC device of a manifest, and the file or block device for it.

    Attributes:
        disk: the device's name in the manifest.
        path: of the file or device node, in the caller's mount namespace.
        sector_size: in bytes; None: 512.
        roots: directories, of which one must contain the path with symbolic links resolved; empty: no restriction.
        allocation: those of the roots with the files of the task's allocation; a file there that root owns is given to
            the task's user.
        create: the file to create if there is none; its directory exists, below one of the roots. None: create none.
    """

    disk: DeviceName
    path: str
    sector_size: int | None = None
    roots: tuple[str, ...] = ()
    allocation: tuple[str, ...] = ()
    create: NewFile | None = None


@dataclass(frozen=True, kw_only=True)
class Disk:
    """A checked disk.

    Attributes:
        disk: the device's name in the manifest.
        path: of the file or device node, absolute, without symbolic links.
        sector_size: in bytes.
        device: major and minor number of a block device, None for a file.
        identity: device and inode of a file, or device number and zero of a block device; equal for the same disk only.
        filesystem: f_fsid of the file system (statvfs(3)); 0 without one.
        exposed: a user other than root may change what `path` leads to, or the path has characters that a unit file
            cannot hold.
        missing: the file to create before the disk is used; `identity` is (0, 0) until then. None: there is one.
    """

    disk: DeviceName
    path: str
    sector_size: int
    device: tuple[int, int] | None
    identity: tuple[int, int]
    filesystem: int = 0
    exposed: bool = False
    missing: NewFile | None = None


@dataclass(frozen=True, kw_only=True)
class BoundDisks:
    """The disks of one task, at paths that only root may change.

    Attributes:
        disks: all disks of the task, in order.
        directory: the directory of the bind mounts; None where no disk needed one.
        descriptor: has the lock of the directory; negative without a directory.
    """

    disks: tuple[Disk, ...]
    directory: PurePath | None = None
    descriptor: int = -1


def sector_size(request: DiskRequest) -> int:
    """Return the requested sector size in bytes, or the default.

    Raises:
        InvalidRequestError: not a power of two within the tenders' range.
    """
    size = SECTOR_SIZE if request.sector_size is None else request.sector_size
    if not SECTOR_SIZE <= size <= MAX_SECTOR_SIZE or size.bit_count() != 1:
        raise InvalidRequestError(
            f"disk {request.disk}: sector size {size} is not supported: "
            f"expected a power of two from {SECTOR_SIZE} to {MAX_SECTOR_SIZE}."
        )
    return size


def check_size(request: DiskRequest, size: int) -> None:
    """Check the size (bytes) of a disk.

    Raises:
        InvalidRequestError: zero, or not a multiple of the sector size.
    """
    sector = sector_size(request)
    if size == 0 or size % sector:
        raise InvalidRequestError(
            f"disk {request.disk}: {request.path!r} has {size} bytes: expected one or more whole sectors of {sector}."
        )


def check_distinct(disks: Iterable[Disk]) -> None:
    """Check that the disks of a task are different files.

    Raises:
        InvalidRequestError: two disks are the same file.
    """
    seen: dict[tuple[int, int], Disk] = {}
    for disk in disks:
        other = seen.setdefault(disk.identity, disk)
        if other is not disk:
            raise InvalidRequestError(
                f"disks {other.disk} and {disk.disk} are both {disk.path!r}: expected a file for each."
            )
