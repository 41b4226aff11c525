"""Which archives of running tasks are older than their files: a guest keeps the archive of its start.

The lock file of a task has the SHA-256 of its archives and how to read their files again. What has been reported is an
extended attribute of the lock file (`trusted.`, which no tender can read), so that a restarted driver neither loses a
change nor repeats it.
"""

import asyncio
import json
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from solo5_systemd.errors import HostError, Solo5Error
from solo5_systemd.files.removals import FirstChanges
from solo5_systemd.locks import closing, lock_directory
from solo5_systemd.names import TaskName
from solo5_systemd.storage.archive import Entry, parse_sources
from solo5_systemd.storage.archive_files import Visit, digest_of, parents
from solo5_systemd.storage.lock_records import LOCKS, is_locked, read_record, records_of_tasks
from solo5_systemd.storage.model import UNREADABLE, ArchiveChange, ArchiveRequest, DiskRequest

WATCHES_MAX = 4096
"""Directories that are watched: the limit of inotify is one of all processes of root, also PID 1."""

WATCHES_OF_ARCHIVE_MAX = 256

LOOK_S = 1.0
"""Seconds after which a look leaves the other archives to the next one: a job may change 16 MiB all the time."""

REPORTED = "trusted.solo5.reported"
"""Extended attribute of a lock file: JSON, the last reported state of each archive by the name of its disk."""


class WatchLimitError(Exception):
    """There are too many directories to watch."""


@dataclass(kw_only=True, eq=False)
class _Archive:
    """An archive of a running task.

    Attributes:
        disk: its name in the manifest.
        lock: the lock file.
        inode: its number.
        request: how to read its files again.
        start: SHA-256 of the task's own archive.
        reported: the last reported state.
        watches: of its directories.
        changes: looks since the first change that was not read yet; None: there is none.
        failures: looks in a row in which its files could not be read.
    """

    disk: str
    lock: Path
    inode: int
    request: DiskRequest
    start: str
    reported: str
    watches: set[int] = field(default_factory=set)
    changes: int | None = 1
    failures: int = 0


class ArchiveWatch:
    """The changes of the files of archives. A look costs one system call for each task with an archive, at most.

    An archive is read again only after an event of inotify(7), in the next look but one: a template with
    `change_mode = "restart"` has ended its task by then. An archive that cannot be watched is read in each look.

    Args:
        locks: the directory of disk locks.
    """

    def __init__(self, locks: Path = LOCKS) -> None:
        self._locks = locks
        self._seen: frozenset[tuple[str, int]] = frozenset()  # names and inodes of lock files
        self._others: dict[str, list[_Archive]] = {}
        self._tasks: dict[str, list[_Archive]] = {}
        self._changes = FirstChanges()
        self._owners: dict[int, set[_Archive]] = {}

    def look(self, tasks: Collection[str]) -> Sequence[ArchiveChange]:
        """Return what has changed since the last report.

        Args:
            tasks: the running tasks of the caller; others are left alone.

        Raises:
            OSError: the locks cannot be read.
        """
        self._find(tasks)
        for watch in self._changes.read():
            for archive in self._owners.pop(watch, ()):
                archive.watches.discard(watch)
                archive.changes = 0 if archive.changes is None else archive.changes
        due = [(task, each) for task, archives in self._tasks.items() for each in archives if each.changes is not None]
        due.sort(key=lambda each: -(each[1].changes or 0))
        begun = time.monotonic()
        found: list[ArchiveChange] = []
        for task, archive in due:
            archive.changes = (archive.changes or 0) + 1
            if archive.changes > 1 and time.monotonic() - begun < LOOK_S:
                found += self._read(task, archive)
        return found

    def reported(self, change: ArchiveChange) -> None:
        """Store that a change has been reported."""
        for archive in self._tasks.get(change.task, ()):
            if archive.disk == change.disk:
                with suppress(OSError):  # its task has ended, or the file system has no such attributes
                    known = {**_reported(archive.lock), change.disk: change.state}
                    os.setxattr(archive.lock, REPORTED, json.dumps(known).encode())

    def _find(self, tasks: Collection[str]) -> None:
        """Read the lock files that are new; forget the tasks that are not running."""
        try:
            with os.scandir(self._locks) as entries:
                seen = frozenset((entry.name, entry.inode()) for entry in entries)
        except FileNotFoundError:
            seen = frozenset()
        if new := seen - self._seen:
            with closing(lock_directory(self._locks)):
                for name, inode in new:
                    self._add(self._locks / name, inode)
        self._seen = seen
        for task in [each for each in self._tasks if each not in tasks]:
            self._forget(task)
        for task, (first, *_) in tuple(self._others.items()):
            if (first.lock.name, first.inode) not in seen:
                del self._others[task]
            elif task in tasks:
                self._tasks[task] = self._others.pop(task)

    def _add(self, lock: Path, inode: int) -> None:
        with suppress(OSError):  # removed just now
            record = read_record(lock)
            task = str(record.get("task", ""))
            archives = list(_archives(record, lock, inode))
            if not archives or not is_locked(lock):
                return
            if task not in self._tasks or self._tasks[task][0].inode != inode:  # a lock file has a name for each disk
                self._forget(task)
                self._others[task] = archives

    def _forget(self, task: str) -> None:
        for archive in self._tasks.pop(task, ()):
            self._unwatch(archive)

    def _unwatch(self, archive: _Archive) -> None:
        for watch in archive.watches:
            owners = self._owners[watch]
            owners.discard(archive)
            if not owners:
                del self._owners[watch]
                self._changes.unwatch(watch)
        archive.watches.clear()

    def _read(self, task: str, archive: _Archive) -> Iterator[ArchiveChange]:
        """Read the files of an archive, with watches that begin before: no change is between them."""
        state = self._state(archive)
        if state is None or state == archive.reported:
            return
        archive.reported = state
        yield ArchiveChange(task=task, disk=archive.disk, state=state, outdated=state != archive.start)

    def _state(self, archive: _Archive) -> str | None:
        """Return the state of the files; None: not known, in which case the next look repeats it."""
        self._unwatch(archive)
        request, watched = archive.request, True

        def watch(directory: int) -> None:
            nonlocal watched
            try:
                self._watch(archive, directory)
            except (OSError, WatchLimitError):
                watched = False

        def visit(entry: Entry, source: int) -> None:
            if entry.is_directory:
                watch(source)

        archive.changes = None
        try:
            for directory in parents(request):
                watch(directory)
            state = _digest(request, visit)
        except (Solo5Error, OSError):
            archive.failures += 1
            if archive.failures == 1:  # perhaps it was being written
                archive.changes = 1
                return None
            state = UNREADABLE
        else:
            archive.failures = 0
        if not watched:
            archive.changes = 1
            self._unwatch(archive)
        return state

    def _watch(self, archive: _Archive, directory: int) -> None:
        if len(archive.watches) >= WATCHES_OF_ARCHIVE_MAX or len(self._owners) >= WATCHES_MAX:
            raise WatchLimitError
        watch = self._changes.watch(directory)
        self._owners.setdefault(watch, set()).add(archive)
        archive.watches.add(watch)


class ArchiveWatchInThread:
    """The same in an event loop, which goes on meanwhile; implements `backends.Archives`."""

    def __init__(self) -> None:
        self._watch = ArchiveWatch()

    async def changes(self, tasks: Collection[TaskName]) -> Sequence[ArchiveChange]:
        """See `ArchiveWatch.look`.

        Raises:
            HostError: the locks cannot be read.
        """
        try:
            return await asyncio.to_thread(self._watch.look, tasks)
        except OSError as error:
            raise HostError(f"the locks of disks in {LOCKS} cannot be read: {error.strerror}.") from error

    async def reported(self, change: ArchiveChange) -> None:
        """See `ArchiveWatch.reported`."""
        await asyncio.to_thread(self._watch.reported, change)


def outdated(task: str, directory: Path = LOCKS) -> Mapping[str, bool]:
    """Return whether the files of each archive of a running task have another SHA-256 now.

    Files that cannot be archived are another state, too. Archives of credentials are absent.

    Raises:
        HostError: the directory of locks cannot be read.
    """
    _, record = records_of_tasks(directory).get(task, (set(), {}))
    return {each.disk: _digest_now(each.request) != each.start for each in _archives(record, directory, 0)}


def _digest_now(request: DiskRequest) -> str:
    try:
        return _digest(request, lambda _entry, _source: None)
    except (Solo5Error, OSError):
        return UNREADABLE


def _digest(request: DiskRequest, visit: Visit) -> str:
    return digest_of(request, request.archive or ArchiveRequest(), visit)


def _archives(record: Mapping[str, object], lock: Path, inode: int) -> Iterator[_Archive]:
    """Yield the archives of a lock file's record."""
    sources, disks = record.get("archives"), record.get("disks")
    if not isinstance(sources, dict) or not isinstance(disks, list):
        return
    starts = {disk.get("disk"): disk.get("sha256", "") for disk in disks if isinstance(disk, dict)}
    reported = _reported(lock)
    for disk, document in sources.items():
        request = parse_sources(str(disk), document)
        if request is not None and (start := str(starts.get(disk, ""))):
            yield _Archive(
                disk=str(disk), lock=lock, inode=inode, request=request, start=start, reported=reported.get(disk, start)
            )


def _reported(lock: Path) -> Mapping[str, str]:
    with suppress(OSError, ValueError):
        found = json.loads(os.getxattr(lock, REPORTED))
        if isinstance(found, dict):
            return {str(disk): str(state) for disk, state in found.items()}
    return {}
