"""Which file backs which BLOCK_BASIC device, and the rules a tender has for it."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath

from solo5_systemd.errors import InvalidRequestError
from solo5_systemd.names import DeviceName

SECTOR_SIZE = 512
"""Bytes, where none is asked for; the tenders' own default."""

MAX_SECTOR_SIZE = 32768
"""Bytes; the tenders hold it in 16 bits."""


@dataclass(frozen=True, kw_only=True)
class DiskRequest:
    """One manifest BLOCK_BASIC device and the file or block device behind it.

    Attributes:
        disk: the device's name in the manifest.
        path: of the file or device node, as the caller sees it.
        sector_size: in bytes, None: 512.
        roots: directories below one of which it must lie, links followed; none at all: it may lie anywhere.
        allocation: those of the roots in which Nomad keeps the files of the task's allocation; a file of root's there
            is given to the tenders' user.
    """

    disk: DeviceName
    path: str
    sector_size: int | None = None
    roots: tuple[str, ...] = ()
    allocation: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Disk:
    """A disk that was found to keep the rules.

    Attributes:
        disk: the device's name in the manifest.
        path: of the file or device node, absolute, without symbolic links.
        sector_size: in bytes.
        device: major and minor number of a block device, None for a file.
        identity: equal for two disks exactly where they are one: device and inode of a file, the device number
            and zero of a block device.
        filesystem: identifier of the file's file system (statvfs(3), f_fsid); 0: it has none.
        exposed: a user other than root may change what `path` leads to, or a unit file would not give it back as it is.
    """

    disk: DeviceName
    path: str
    sector_size: int
    device: tuple[int, int] | None
    identity: tuple[int, int]
    filesystem: int = 0
    exposed: bool = False


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The disks of one task by paths that only root may change.

    Attributes:
        disks: all of the task's, in their order.
        directory: that of the bind mounts, None: every path was such a one already.
        descriptor: holds the directory's lock; negative where there is none.
    """

    disks: tuple[Disk, ...]
    directory: PurePath | None = None
    descriptor: int = -1


def sector_size(request: DiskRequest) -> int:
    """The sector size to use, in bytes.

    Raises:
        InvalidRequestError: one that no tender takes.
    """
    size = SECTOR_SIZE if request.sector_size is None else request.sector_size
    if not SECTOR_SIZE <= size <= MAX_SECTOR_SIZE or size.bit_count() != 1:
        raise InvalidRequestError(
            f"disk {request.disk}: sector size {size} does not exist: "
            f"expected a power of two from {SECTOR_SIZE} to {MAX_SECTOR_SIZE}."
        )
    return size


def check_size(request: DiskRequest, size: int) -> None:
    """Check the size (bytes) of what is behind a disk.

    Raises:
        InvalidRequestError: not a whole number of sectors, or none at all.
    """
    sector = sector_size(request)
    if size == 0 or size % sector:
        raise InvalidRequestError(
            f"disk {request.disk}: {request.path!r} has {size} bytes: expected one or more whole sectors of {sector}."
        )


def check_distinct(disks: Iterable[Disk]) -> None:
    """Check that no two disks of a task are one file.

    Raises:
        InvalidRequestError: two are.
    """
    seen: dict[tuple[int, int], Disk] = {}
    for disk in disks:
        other = seen.setdefault(disk.identity, disk)
        if other is not disk:
            raise InvalidRequestError(
                f"disks {other.disk} and {disk.disk} are both {disk.path!r}: expected a file for each."
            )
