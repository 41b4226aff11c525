"""The state of disks: full, without their device, replaced, in use. A tender reports a number, and no disk.

The disks of an ended task are those of its last lock file, which has lost its lock and has its names until another task
has the disk, or `remove_stale`. A task has the file of its start, whatever its path resolves to.

No error number stands for a device that was unplugged: the kernel sets its size to 0 (Linux 6.1 and later), so that a
read of the tender is at the end of the file, and a write has “No space left on device”.
"""

import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from solo5_systemd.base.errors import InvalidRequestError, host_errors
from solo5_systemd.base.locks import closing
from solo5_systemd.base.names import DeviceName
from solo5_systemd.base.paths import PLACE, identity, open_path
from solo5_systemd.storage import locks
from solo5_systemd.storage.block_devices import btrfs_of, directory_of, kernel_use, overlapping, whole
from solo5_systemd.storage.locks import Record, holders, name_of, read_record
from solo5_systemd.storage.model import COPIES, SNAPSHOTS, Backing, Disk, FailedDisk

FULL_MAX = 1 << 20
"""Bytes. A file system is full with less, and less than 1 % of it: some keep a reserve for themselves."""


def full_disks(records: Mapping[str, Record]) -> dict[tuple[str, str], FailedDisk]:
    """Return the full disks of running tasks, by task and disk."""
    found: dict[tuple[str, str], FailedDisk] = {}
    for task, record in records.items():
        for disk in record.disks:
            with suppress(OSError):
                if (full := _full(task, disk)) is not None:
                    found[task, full.disk] = full
    return found


def failed_disks(task: str) -> Iterator[FailedDisk]:
    """Yield the disks of a task's last run whose device is gone, or whose full file system may have to give blocks."""
    for disk in _last(task).disks:
        if (full := _full(task, disk)) is not None:
            yield full
        elif disk["backing"] == Backing.DEVICE and _is_lost(disk):
            yield FailedDisk(task=task, disk=disk["disk"], path=disk["path"])


def _last(task: str) -> Record:
    """Return the newest record of a task."""
    found: dict[int, Record] = {0: Record()}
    names: dict[int, Path] = {}
    with suppress(FileNotFoundError), os.scandir(locks.LOCKS) as entries:
        names = {entry.inode(): Path(entry.path) for entry in entries}  # a lock has a name for each of its disks
    is_of_task = f'"task": {json.dumps(task)}'.encode()  # few are parsed: many tasks end by one file system at once
    for name in names.values():
        with suppress(FileNotFoundError):  # removed meanwhile
            if is_of_task in name.read_bytes() and (record := read_record(name)).task == task:
                found[name.stat().st_mtime_ns] = record
    return found[max(found)]


def _full(task: str, disk: Mapping[str, str]) -> FailedDisk | None:
    """Return a disk as full; None if it is not, or is no file, or its path resolves to another one by now."""
    if disk["backing"] == Backing.COPY or _may_grow(disk):
        with suppress(FileNotFoundError):
            if (free := _free_if_full(disk)) is not None:
                return FailedDisk(task=task, disk=disk["disk"], path=disk["path"], free=free)
    return None


def may_be_full(sample: Record) -> bool:
    """Return whether the file system of a disk may be full: not if the disk is at its path, and there is space."""
    try:
        return not sample.disks or any(_free_if_full(disk) is not None or _is_moved(disk) for disk in sample.disks)
    except OSError:
        return True


def _is_moved(disk: Mapping[str, str]) -> bool:
    """Return whether a file is not at its path any more, which may be on another file system, as after an unmount."""
    return disk["backing"] in (Backing.FILE, Backing.NAMED) and not _is_disk(os.lstat(disk["path"]), disk)


def _free_if_full(disk: Mapping[str, str]) -> int | None:
    """Return the free bytes of a file system if it is full; None: it is not, or the disk is memory or a device."""
    if disk["backing"] in (Backing.ARCHIVE, Backing.DEVICE):
        return None
    # A copy has no name any more; its file system is that of the others.
    space = os.statvfs(COPIES if disk["backing"] == Backing.COPY else disk["path"])
    free, total = space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize
    return free if not free or free < min(FULL_MAX, total // 100) else None


def _may_grow(disk: Mapping[str, str]) -> bool:
    """Return whether a file is the disk, and a write may need a block.

    Into a hole, beside what a snapshot has, or on Btrfs, which writes no block in its place: once written, what was
    preallocated needs other blocks, too.
    """
    with suppress(FileNotFoundError), closing(os.open(disk["path"], PLACE)) as file:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or not _is_disk(status, disk):
            return False
        directory, _, name = disk["path"].rpartition("/")
        has_snapshots = disk["backing"] == Backing.NAMED and Path(directory, SNAPSHOTS, name).is_dir()
        return has_snapshots or status.st_blocks * 512 < status.st_size or bool(btrfs_of(file))
    return False


def _is_disk(status: os.stat_result, disk: Mapping[str, str]) -> bool:
    return name_of(identity(status)) == disk["identity"]


def change_of(disk: Mapping[str, str]) -> str:
    """Return what has changed of a disk in a lock file, as the end of a sentence; empty: nothing, or unknown."""
    size = disk.get("size")
    if disk["backing"] == Backing.DEVICE:
        with suppress(OSError):
            return "its device is gone" if _is_lost(disk) else ""
        return ""
    # Of a private disk, the record has the path of its source.
    if not size or disk["backing"] not in (Backing.FILE, Backing.NAMED):
        return ""
    try:
        status = os.lstat(disk["path"])
    except (FileNotFoundError, NotADirectoryError):
        return "no file has its path any more"
    except OSError:
        return ""
    if not _is_disk(status, disk):
        return "another file has its path"
    return "" if str(status.st_size) == size else f"its file has {status.st_size} bytes instead of {size}"


def _is_lost(disk: Mapping[str, str]) -> bool:
    """Return whether a disk's device is gone: no node of it at its path, or a device without a size."""
    try:
        status = os.lstat(disk["path"])
    except (FileNotFoundError, NotADirectoryError):
        return True
    if not _is_disk(status, disk):
        return True
    with suppress(FileNotFoundError):
        return (directory_of(status.st_rdev) / "size").read_text().strip() == "0"
    return True


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
    """Return what is at a path, which may be a symbolic link, such as `/dev/vg/web`.

    Raises:
        InvalidRequestError: neither a regular file nor a block device.
        NotFoundError: it does not exist.
        HostError: it cannot be read.
    """
    descriptor, path = open_path(repr(text), text, ())
    with closing(descriptor), host_errors(f"{text!r} cannot be read"):
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) and not stat.S_ISBLK(status.st_mode):
            raise InvalidRequestError(f"{text!r} is no disk: expected a regular file or a block device.")
        size, sector = status.st_size, None
        if stat.S_ISBLK(status.st_mode):  # by sysfs: an open may act on a device
            directory = directory_of(status.st_rdev).resolve(strict=True)
            size = int((directory / "size").read_text()) * 512  # whatever the device's own sectors are
            sector = int((whole(directory) / "queue/logical_block_size").read_text())
    number = (os.major(status.st_rdev), os.minor(status.st_rdev)) if stat.S_ISBLK(status.st_mode) else None
    disk = Disk(disk=DeviceName("disk"), path=path, device=number, identity=identity(status))
    held = holders()
    use = kernel_use(disk)
    return DiskPath(
        path=path,
        backing=Backing.FILE if number is None else Backing.DEVICE,
        size=size,
        sector_size=sector,
        task=next((held[each] for each in (disk.identity, *overlapping(disk)) if each in held), None),
        use="" if use is None else use[0],
    )
