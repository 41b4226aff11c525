"""Which file backs which BLOCK_BASIC device, and the rules a tender has for it."""

from collections.abc import Iterable
from dataclasses import dataclass

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
        own: those of the roots that hold the files of this task alone; such a file is given to the tenders' user.
        shared: those that the tasks of an allocation share; only root's files there are given to the tenders' user.
    """

    disk: DeviceName
    path: str
    sector_size: int | None = None
    roots: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()


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
        pin: a directory that holds a second name of the file while its task starts, since others may change what
            `path` leads to; None: they may not.
    """

    disk: DeviceName
    path: str
    sector_size: int
    device: tuple[int, int] | None
    identity: tuple[int, int]
    pin: str | None = None


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
