"""Which disks of a task are on a full file system, or have lost their device: a tender reports a number, and no disk.

The disks of an ended task are those of its last lock file, which has lost its lock and has its names until another task
has the disk, or `remove_stale`. A task that goes on is found by its file system: `DiskSpace.look`.
"""

import os
import stat
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from solo5_systemd.base.errors import HostError
from solo5_systemd.base.event_loop import off_the_loop
from solo5_systemd.storage import lock_records
from solo5_systemd.storage.changed_files import is_lost
from solo5_systemd.storage.lock_records import disks_in, identity_of, read_record, records_of_tasks
from solo5_systemd.storage.model import COPIES, SNAPSHOTS, Backing, FailedDisk, FullDiskChange

TIMEOUT_S = 2.0
"""How long the end of a task waits for file systems, one of which may hang."""

FULL_MAX = 1 << 20
"""Bytes. A file system is full with less, and less than 1 % of it: some keep a reserve for themselves."""


class DiskSpace:
    """The space of disks on this host. An event loop goes on meanwhile.

    A look at the disks of running tasks costs one statvfs(2) for each file system with disks.
    """

    def __init__(self) -> None:
        self._seen: frozenset[str] = frozenset()
        self._paths: dict[int, str] = {}
        self._full: Mapping[tuple[str, str], FailedDisk] = {}
        self._looking: threading.Thread | None = None
        self._found: list[FullDiskChange] = []

    async def failed_disks(self, task: str) -> Sequence[FailedDisk]:
        """Return the disks of a task's last run that have failed; none where that is not known in time.

        A system call that hangs is left behind in its thread.
        """
        found: list[FailedDisk] = []

        def find() -> None:
            with suppress(OSError):  # not root, or a file system that has failed
                found.extend(failed_disks(task))

        thread = await off_the_loop(lambda: self._run(find))
        return () if thread.is_alive() else tuple(found)

    async def changes(self) -> Sequence[FullDiskChange]:
        """Return the disks of running tasks whose file system has become full, or has space again, since the last call.

        Raises:
            HostError: a file system does not answer.
        """
        return await off_the_loop(self._changes)

    def _changes(self) -> Sequence[FullDiskChange]:
        """Return the same; one thread at most is left behind in a system call that hangs."""
        if self._looking is not None and self._looking.is_alive():
            self._looking.join(TIMEOUT_S)
        else:
            self._looking = self._run(self._look)
        if self._looking.is_alive():
            raise HostError(
                f"the file system of a disk has not answered for {TIMEOUT_S:.0f} s: expected its free space.",
                "A network file system may have lost its server: df",
            )
        found, self._found = self._found, []
        return tuple(found)

    def _look(self) -> None:
        with suppress(OSError, HostError):  # not root
            self._found += self.look()

    def _run(self, function: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=function, name="disk-space", daemon=True)
        thread.start()
        thread.join(TIMEOUT_S)
        return thread

    def look(self) -> Iterator[FullDiskChange]:
        """Yield what has changed since the last look; raises OSError or HostError where the locks cannot be read."""
        self._find_file_systems()
        # The records of all tasks are read only as long as a file system is full.
        found = self._full_disks() if any(self._are_full()) else {}
        before, self._full = self._full, found
        for key, disk in found.items():
            if key not in before:
                yield FullDiskChange(task=key[0], disk=disk, full=True)
        for key, disk in before.items():
            if key not in found:
                yield FullDiskChange(task=key[0], disk=disk, full=False)

    def _find_file_systems(self) -> None:
        """Read the lock files that are new, for a path on each file system."""
        try:
            names = frozenset(os.listdir(lock_records.LOCKS))  # noqa: PTH208 - names, for one system call
        except FileNotFoundError:
            names = frozenset()
        for name in names - self._seen:
            with suppress(OSError):
                for disk in disks_in(read_record(lock_records.LOCKS / name)):
                    if (path := _place(disk)) is not None:
                        self._paths[os.stat(path).st_dev] = path  # noqa: PTH116
        self._seen = names

    def _are_full(self) -> Iterator[bool]:
        for device, path in tuple(self._paths.items()):
            try:
                if os.stat(path).st_dev != device:  # noqa: PTH116
                    raise FileNotFoundError(path)
                yield _is_full(os.statvfs(path))
            except OSError:  # removed, or unmounted: the locks have the path of another disk there, if there is one
                del self._paths[device]
                self._seen = frozenset()

    def _full_disks(self) -> Mapping[tuple[str, str], FailedDisk]:
        found: dict[tuple[str, str], FailedDisk] = {}
        for task, (identities, record) in records_of_tasks().items():
            for disk in disks_in(record):
                with suppress(OSError):
                    if (full := _full(disk, identities)) is not None:
                        found[task, full.disk] = full
        return found


def failed_disks(task: str) -> Iterator[FailedDisk]:
    """Yield the disks of a task's last run that are on a full file system and have not all of their blocks.

    And those whose block device is gone. Raises OSError where a file cannot be read.

    Raises:
        OSError: a file cannot be read.
    """
    identities, record = _last(task)
    for disk in disks_in(record):
        path = disk.get("path", "")
        if (full := _full(disk, identities)) is not None:
            yield full
        elif disk.get("backing") == Backing.DEVICE and is_lost(path, identities):
            yield FailedDisk(disk=disk.get("disk", ""), path=path)


def _last(task: str) -> tuple[set[tuple[int, int]], Mapping[str, object]]:
    """Return the newest record of a task, and the identities of its disks: the names of the record's file."""
    names: dict[int, set[tuple[int, int]]] = {}
    last: tuple[int, int, Mapping[str, object]] = (0, 0, {})
    for name in lock_records.LOCKS.iterdir() if lock_records.LOCKS.is_dir() else ():
        with suppress(FileNotFoundError, ValueError):
            status, record = name.stat(), read_record(name)
            if record.get("task") == task:
                names.setdefault(status.st_ino, set()).add(identity_of(name))
                last = max(last, (status.st_mtime_ns, status.st_ino, record), key=lambda each: each[:2])
    return names.get(last[1], set()), last[2]


def _full(disk: Mapping[str, str], identities: set[tuple[int, int]]) -> FailedDisk | None:
    """Return a disk as full; None if it is not, or is no file, or its path resolves to another one by now."""
    path = disk.get("path", "")
    place = _place(disk)
    if place is None or (place == path and not _may_grow(path, disk, identities)):
        return None
    with suppress(FileNotFoundError):
        space = os.statvfs(place)
        if _is_full(space):
            return FailedDisk(disk=disk.get("disk", ""), path=path, free=_free(space))
    return None


def _place(disk: Mapping[str, str]) -> str | None:
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


def _free(space: os.statvfs_result) -> int:
    return space.f_bavail * space.f_frsize


def _is_full(space: os.statvfs_result) -> bool:
    free, total = _free(space), space.f_blocks * space.f_frsize
    return not free or free < min(FULL_MAX, total // 100)
