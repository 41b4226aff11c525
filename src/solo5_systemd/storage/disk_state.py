"""The state of disks: full, without their device, replaced, in use. A tender reports a number, and no disk.

The disks of an ended task are those of its last lock file, which has lost its lock and has its names until another task
has the disk, or `remove_stale`. A task that goes on is found by its file system: `disk_space`.

A task has the file of its start, whatever its path resolves to. A hole that is punched into it shows nowhere: its
sectors are zeros for the guest.

A device may be unplugged, detached, removed from under a task. The tender keeps the dead device open. Since the kernel
has set its size to 0 (Linux 6.1 and later), a read is at the end of the file, and a write has “No space left on
device”: no error number stands for a device that is gone.
"""

import os
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from solo5_systemd.base.errors import InvalidRequestError, host_errors
from solo5_systemd.base.locks import closing
from solo5_systemd.base.names import DeviceName
from solo5_systemd.base.paths import identity, open_path
from solo5_systemd.storage import locks
from solo5_systemd.storage.block_devices import directory_of, kernel_use, overlapping, whole
from solo5_systemd.storage.locks import disks_in, holders, identity_of, read_record, records_of_tasks
from solo5_systemd.storage.model import COPIES, SNAPSHOTS, Backing, Disk, FailedDisk

FULL_MAX = 1 << 20
"""Bytes. A file system is full with less, and less than 1 % of it: some keep a reserve for themselves."""


def full_disks() -> Mapping[tuple[str, str], FailedDisk]:
    """Return the full disks of running tasks, by task and disk; raises HostError where the locks cannot be read."""
    found: dict[tuple[str, str], FailedDisk] = {}
    for task, (identities, record) in records_of_tasks().items():
        for disk in disks_in(record):
            with suppress(OSError):
                if (full := _full(disk, identities)) is not None:
                    found[task, full.disk] = full
    return found


def failed_disks(task: str) -> Iterator[FailedDisk]:
    """Yield the disks of a task's last run that are on a full file system and have not all of their blocks.

    And those whose block device is gone.

    Raises:
        OSError: a file cannot be read.
    """
    identities, record = _last(task)
    for disk in disks_in(record):
        path = disk.get("path", "")
        if (full := _full(disk, identities)) is not None:
            yield full
        elif disk.get("backing") == Backing.DEVICE and _is_lost(path, identities):
            yield FailedDisk(disk=disk.get("disk", ""), path=path)


def _last(task: str) -> tuple[set[tuple[int, int]], Mapping[str, object]]:
    """Return the newest record of a task, and the identities of its disks: the names of the record's file."""
    names: dict[int, set[tuple[int, int]]] = {}
    last: tuple[int, int, Mapping[str, object]] = (0, 0, {})
    for name in locks.LOCKS.iterdir() if locks.LOCKS.is_dir() else ():
        with suppress(FileNotFoundError, ValueError):  # removed meanwhile, or no lock file
            status, record = name.stat(), read_record(name)
            if record.get("task") == task:
                names.setdefault(status.st_ino, set()).add(identity_of(name))
                last = max(last, (status.st_mtime_ns, status.st_ino, record), key=lambda each: each[:2])
    return names.get(last[1], set()), last[2]


def _full(disk: Mapping[str, str], identities: set[tuple[int, int]]) -> FailedDisk | None:
    """Return a disk as full; None if it is not, or is no file, or its path resolves to another one by now."""
    path, place = disk.get("path", ""), place_of(disk)
    if place is None or (place == path and not _may_grow(path, disk, identities)):
        return None
    with suppress(FileNotFoundError):
        if (free := free_if_full(place)) is not None:
            return FailedDisk(disk=disk.get("disk", ""), path=path, free=free)
    return None


def place_of(disk: Mapping[str, str]) -> str | None:
    """Return a path on the file system of a disk; None if it is memory."""
    backing = disk.get("backing")
    if backing == Backing.COPY:  # it has no name any more; its file system is that of the others
        return COPIES
    return None if backing == Backing.ARCHIVE else disk.get("path")


def _may_grow(path: str, disk: Mapping[str, str], identities: set[tuple[int, int]]) -> bool:
    """Return whether a file is the disk, and a write may need a block: into a hole, or beside what a snapshot has."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(status.st_mode) or (status.st_dev, status.st_ino) not in identities:
        return False
    directory, _, name = path.rpartition("/")
    has_snapshots = disk.get("backing") == Backing.NAMED and Path(directory, SNAPSHOTS, name).is_dir()
    return has_snapshots or status.st_blocks * 512 < status.st_size


def free_if_full(path: str) -> int | None:
    """Return the free bytes of a full file system; None: it is not full."""
    space = os.statvfs(path)
    free, total = space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize
    return free if not free or free < min(FULL_MAX, total // 100) else None


def change_of(disk: Mapping[str, str], identities: Collection[tuple[int, int]]) -> str:
    """Return what has changed, as the end of a sentence; empty: nothing, or it is not known.

    Args:
        disk: as the lock file of its task has it.
    """
    path, size = disk.get("path", ""), disk.get("size", "")
    if disk.get("backing") == Backing.DEVICE:
        with suppress(OSError):
            return "its device is gone" if _is_lost(path, identities) else ""
        return ""
    # Of a private disk, the record has the path of its source.
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


def _is_lost(path: str, identities: Collection[tuple[int, int]]) -> bool:
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
