"""Which disks of an ended task are on a full file system: its tender reports an error number, and no disk.

The disks are those of the task's last lock file, which has lost its lock and has its names until another task has the
disk, or `remove_stale`.
"""

import os
import stat
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from solo5_systemd.storage.lock_records import LOCKS, read_record
from solo5_systemd.storage.model import Backing, FullDisk

COPIES = Path("/var/lib/solo5/copies")

TIMEOUT_S = 2.0
"""How long the end of a task waits for file systems, one of which may hang."""

FULL_MAX = 1 << 20
"""Bytes. A file system is full with less, and less than 1 % of it: some keep a reserve for themselves."""


class DiskSpace:
    """The space of disks on this host, without an event loop; implements `backends.DiskSpace`."""

    def __init__(self, locks: Path = LOCKS, copies: Path = COPIES, timeout: float = TIMEOUT_S) -> None:
        self._locks = locks
        self._copies = copies
        self._timeout = timeout

    async def full_disks(self, task: str) -> Sequence[FullDisk]:
        """Return the disks of a task's last run whose file system is full; none where that is not known in time."""
        return self.find(task)

    def find(self, task: str) -> Sequence[FullDisk]:
        """Return the same; a system call that hangs is left behind in its thread."""
        found: list[FullDisk] = []

        def find() -> None:
            with suppress(OSError):  # not root, or a file system that has failed
                found.extend(full_disks(task, self._locks, self._copies))

        looking = threading.Thread(target=find, name="disk-space", daemon=True)
        looking.start()
        looking.join(self._timeout)
        return () if looking.is_alive() else tuple(found)


class DiskSpaceInThread(DiskSpace):
    """The same in an event loop, which goes on meanwhile."""

    async def full_disks(self, task: str) -> Sequence[FullDisk]:
        """See `DiskSpace.full_disks`."""
        import asyncio  # here: `solo5ctl inspect` has no event loop

        return await asyncio.to_thread(self.find, task)


def full_disks(task: str, locks: Path = LOCKS, copies: Path = COPIES) -> Iterator[FullDisk]:
    """Yield the disks of a task's last run that are on a full file system and have not all of their blocks.

    Raises:
        OSError: a file cannot be read.
    """
    identities, record = _last(task, locks)
    disks = record.get("disks")
    for disk in disks if isinstance(disks, list) else ():
        if isinstance(disk, dict):
            found = _full({str(key): str(value) for key, value in disk.items()}, identities, copies)
            if found is not None:
                yield found


def _last(task: str, locks: Path) -> tuple[set[tuple[int, int]], Mapping[str, object]]:
    """Return the newest record of a task, and the identities of its disks: the names of the record's file."""
    names: dict[int, set[tuple[int, int]]] = {}
    last: tuple[int, int, Mapping[str, object]] = (0, 0, {})
    for name in locks.iterdir() if locks.is_dir() else ():
        with suppress(FileNotFoundError, ValueError):
            status, record = name.stat(), read_record(name)
            device, _, inode = name.name.partition("-")
            if record.get("task") == task:
                names.setdefault(status.st_ino, set()).add((int(device, 16), int(inode, 16)))
                last = max(last, (status.st_mtime_ns, status.st_ino, record), key=lambda each: each[:2])
    return names.get(last[1], set()), last[2]


def _full(disk: Mapping[str, str], identities: set[tuple[int, int]], copies: Path) -> FullDisk | None:
    """Return a disk as full; None if it is not, or is no file, or its path leads to another one by now."""
    path = disk.get("path", "")
    backing = disk.get("backing")
    if backing == Backing.ARCHIVE:
        return None
    if backing == Backing.COPY:  # it has no name any more; its file system is that of the others
        return _of(disk, path, os.statvfs(copies))
    with suppress(FileNotFoundError):
        status = os.lstat(path)
        is_disk = stat.S_ISREG(status.st_mode) and (status.st_dev, status.st_ino) in identities
        if is_disk and status.st_blocks * 512 < status.st_size:
            return _of(disk, path, os.statvfs(path))
    return None


def _of(disk: Mapping[str, str], path: str, space: os.statvfs_result) -> FullDisk | None:
    free, total = space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize
    if free and free >= min(FULL_MAX, total // 100):
        return None
    return FullDisk(disk=disk.get("disk", ""), path=path, free=free)
