"""Snapshots of named disks: files in /var/lib/solo5/disks/.snapshots/DISK, which only root can open.

A snapshot shares blocks with its disk (FICLONE) where the file system can. Its name is that of no disk, so that no task
can use it. Names are made and removed with a lock on the directory of disks, for microseconds. While a snapshot is
made, a shared lock on its disk's directory keeps that, and the disk.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from solo5_systemd.base.atomic_file import link_unnamed, open_unnamed, sync_directory
from solo5_systemd.base.errors import HostError, NotFoundError, Solo5Error, TakenError, host_errors
from solo5_systemd.base.file_copies import Progress, can_share, copy_data, no_progress, share
from solo5_systemd.base.locks import closing, is_locked, lock_directory
from solo5_systemd.base.names import DiskName, SnapshotName, disk_name, snapshot_name
from solo5_systemd.base.paths import identity
from solo5_systemd.storage.locks import Record, holders, records_of_tasks
from solo5_systemd.storage.model import PRIVATE, SNAPSHOTS, Backing
from solo5_systemd.storage.named_disks import NamedDisk, NamedDisks, names_in, open_file, regular_file, write_content
from solo5_systemd.storage.new_file import create_file

_NEW = ".{}.solo5-restore"


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A snapshot of a named disk.

    Attributes:
        allocated: bytes of the file system, with those that it shares with the disk or other snapshots.
        made: microseconds since the epoch.
    """

    disk: DiskName
    name: SnapshotName
    path: str
    size: int
    allocated: int
    made: int

    def __str__(self) -> str:
        return f"{self.disk}@{self.name}"


class Snapshots:
    """The snapshots of named disks, whose quotas are those of a disk that is restored.

    Raises:
        NotFoundError: (a method) there is no such disk or snapshot.
        TakenError: a task or another process has the disk, a new snapshot's name is taken, or a disk has snapshots.
        HostError: the file system returned an error or cannot share blocks, or a quota would be exceeded.
    """

    def __init__(self, disks: NamedDisks) -> None:
        self._disks = disks
        self._directory = self._disks.directory

    def all(self) -> tuple[Snapshot, ...]:
        """Return all snapshots, sorted by disk and time."""
        disks = names_in(self._directory / SNAPSHOTS, "snapshots", disk_name)
        return tuple(each for disk in disks for each in self.of(disk))

    def of(self, disk: DiskName) -> tuple[Snapshot, ...]:
        """Return the snapshots of a disk, sorted by time."""
        found = (self._described(disk, name) for name in names_in(self._place(disk), "snapshots", snapshot_name))
        return tuple(sorted((each for each in found if each is not None), key=lambda each: (each.made, each.name)))

    def take(
        self, disk: DiskName, name: SnapshotName, *, copy: bool = False, progress: Progress = no_progress
    ) -> Snapshot:
        """Make a snapshot of a disk that no task has.

        Args:
            copy: copy the data, without holes, where the file system cannot share blocks.
        """
        with self._disks.opened(disk, os.O_RDONLY, shared=True) as source, self._made(disk) as place:

            def write(target: int) -> None:
                if not share(source, target):
                    if not copy:
                        raise _cannot_share(disk, self._directory)
                    copy_data(source, target, os.fstat(source).st_size, progress, hashed=False)

            with closing(os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as directory:
                if not create_file(directory, name, write):
                    raise _taken(disk, name)
        return self.get(disk, name)

    def get(self, disk: DiskName, name: SnapshotName) -> Snapshot:
        """Return one snapshot."""
        found = self._described(disk, name)
        if found is None:
            raise NotFoundError(f"disk {disk!r} has no snapshot {name!r}.", "List them: solo5ctl disk ls --snapshots")
        return found

    @contextmanager
    def of_task(self, task: str, name: SnapshotName) -> Iterator["Instant"]:
        """Prepare snapshots of all named disks of a running task; a HostError also if it has ended."""
        with ExitStack() as stack:
            held = records_of_tasks().get(task, Record()).disks
            disks = tuple(disk_name(Path(each["path"]).name) for each in held if self._is_named(each))
            others = tuple(each for each in held if not self._is_named(each) and each["backing"] not in PRIVATE)
            if not disks:
                raise HostError(f"task {task} has no named disk any more.", "Repeat the command.")
            parts = []
            for disk in disks:
                source = stack.enter_context(_opened(self._directory / disk))
                place = stack.enter_context(self._made(disk))
                if self._described(disk, name) is not None:  # so that no task is frozen in vain
                    raise _taken(disk, name)
                target = stack.enter_context(closing(open_unnamed(place, 0o600)))
                parts.append(_Part(disk, source, target, place / name))
                _share(parts[-1], can_share)
            yield Instant(self, task, parts, others)

    def restore(self, disk: DiskName, name: SnapshotName, progress: Progress = no_progress) -> NamedDisk:
        """Replace the content of a disk that no task has by that of a snapshot, at once, also at a loss of power.

        After an error, the disk is as before.
        """
        with self._disks.opened(disk, os.O_RDONLY, shared=False) as replaced, ExitStack() as stack:
            self.get(disk, name)
            source = stack.enter_context(_opened(self._place(disk) / name))
            size = os.fstat(source).st_size
            claims, path, what = self._disks.claims, f"{self._directory}/{disk}", f"disk {disk!r}"
            more = size - os.fstat(replaced).st_size
            claims.check(path, more, what)

            def write(target: int) -> None:
                if not share(source, target):
                    copy_data(source, target, size, progress, hashed=False)
                # Until the file has replaced it.
                stack.enter_context(claims.admitted(path, size, more, what, new=target))

            new = self._directory / _NEW.format(disk)
            new.unlink(missing_ok=True)  # of a restore that was killed
            stack.callback(new.unlink, missing_ok=True)
            directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            create_file(stack.enter_context(closing(directory)), new.name, write)
            new.replace(path)
            os.fsync(directory)
        return self._disks.get(disk)

    def export(self, disk: DiskName, name: SnapshotName, target: int, progress: Progress = no_progress) -> str:
        """Write the content of a snapshot to a file or pipe; an empty regular file gets its holes.

        Without a lock: nothing writes a snapshot, a task may have the disk, and a snapshot that is removed meanwhile is
        written to its end.

        Returns:
            The SHA-256 of the content, in hexadecimal digits.
        """
        self.get(disk, name)
        errors = host_errors(f"snapshot {disk}@{name} cannot be exported")
        with _opened(self._place(disk) / name) as source, errors:
            return write_content(source, target, progress)

    def remove(self, disk: DiskName, name: SnapshotName) -> None:
        """Remove a snapshot."""
        with self._exclusive():
            self.get(disk, name)
            with host_errors(f"snapshot {disk}@{name} cannot be removed"):
                (self._place(disk) / name).unlink()
            self._prune(disk)

    def remove_disk(self, disk: DiskName, *, snapshots: bool = False) -> None:
        """Remove a disk that no task has, with its snapshots or, without `snapshots`, only if it has none."""
        place = self._place(disk)
        with self._exclusive(), self._disks.opened(disk, os.O_RDONLY, shared=False):
            if is_locked(place):
                sentence = f"disk {disk!r}: a snapshot of it is being made."
                raise TakenError(sentence, "Repeat the command.")
            names = names_in(place, "snapshots", str)
            if names and not snapshots:
                raise TakenError(
                    f"disk {disk!r} has snapshots ({len(names)}).",
                    f"To remove them with it: solo5ctl disk rm --snapshots {disk}",
                )
            for name in names:
                (place / name).unlink()
            self._prune(disk)
            (self._directory / _NEW.format(disk)).unlink(missing_ok=True)  # of a restore that was killed
            (self._directory / disk).unlink()  # last: no later disk of its name has its snapshots

    def _is_named(self, record: Mapping[str, str]) -> bool:
        return record["backing"] == Backing.NAMED and Path(record["path"]).parent == self._directory

    def _place(self, disk: DiskName) -> Path:
        return self._directory / SNAPSHOTS / disk

    @contextmanager
    def _made(self, disk: DiskName) -> Iterator[Path]:
        """Make the directory of a disk's snapshots, and keep it; one that is empty after the block is removed."""
        place = self._place(disk)
        try:
            with host_errors(f"disk {disk!r}: no snapshot can be made in {place}"):
                with self._exclusive():
                    place.parent.mkdir(mode=0o700, exist_ok=True)
                    place.mkdir(mode=0o700, exist_ok=True)
                    kept = lock_directory(place, shared=True)  # others are shared, or held within `_exclusive`
                with closing(kept):
                    sync_directory(self._directory)
                    sync_directory(place.parent)
                    yield place
        finally:
            with self._exclusive():
                self._prune(disk)

    def _prune(self, disk: DiskName) -> None:
        """Remove directories without snapshots, within `_exclusive`."""
        with suppress(OSError):
            if is_locked(self._place(disk)):  # another snapshot of the disk is being made
                return
            self._place(disk).rmdir()
            (self._directory / SNAPSHOTS).rmdir()

    def _described(self, disk: DiskName, name: SnapshotName) -> Snapshot | None:
        path = self._place(disk) / name
        status = regular_file(path, f"snapshot {disk}@{name}")
        return status and Snapshot(
            disk=disk,
            name=name,
            path=str(path),
            size=status.st_size,
            allocated=status.st_blocks * 512,
            made=status.st_mtime_ns // 1000,
        )

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Lock the directory of disks while names of snapshots are made or removed: no copy is made meanwhile."""
        with ExitStack() as stack:
            # Without the directory, no disk was ever made: the block finds none.
            with host_errors(f"the disks in {self._directory} cannot be used"), suppress(FileNotFoundError):
                stack.enter_context(closing(lock_directory(self._directory)))
            yield


class _Part(NamedTuple):
    """A disk's file, a new file without a name, and the path that it will have."""

    disk: DiskName
    source: int
    target: int
    path: Path


def _share(part: _Part, share: Callable[[int, int], bool]) -> None:
    """Share the blocks of the disk's file by `file_copies.share` or `can_share`; raises HostError."""
    with host_errors(f"disk {part.disk!r}: no snapshot can be made"):
        if not share(part.source, part.target):
            raise _cannot_share(part.disk, part.path.parents[2], held=True)


@dataclass(frozen=True)
class Instant:
    """Snapshots of one instant: `prepare` before the task is frozen, `take` meanwhile, `keep` afterwards.

    What they raise: HostError, and `keep` a TakenError for a name that is taken.

    Those left out are the records of the task's disks by path.
    """

    _snapshots: Snapshots
    _task: str
    _parts: Sequence[_Part]
    left_out: Sequence[Mapping[str, str]]

    def prepare(self) -> None:
        """Check that the task still has the disks, and write their dirty pages, for which a reflink would wait."""
        held = holders()
        for part in self._parts:
            if held.get(identity(os.fstat(part.source))) != self._task:
                raise HostError(f"disk {part.disk!r} is no longer that of task {self._task}.", "Repeat the command.")
            with host_errors(f"disk {part.disk!r}: no snapshot can be made"):
                os.fdatasync(part.source)

    def take(self) -> None:
        """Share all blocks of the disks; one run of a task has the same disks all the time."""
        for part in self._parts:
            _share(part, share)

    def keep(self) -> tuple[Snapshot, ...]:
        """Write the snapshots to stable storage, and give them their names: all, or none after an error."""
        with ExitStack() as stack, host_errors("the snapshots cannot be written"):
            for part in self._parts:
                os.fchmod(part.target, 0o600)
                os.fchown(part.target, os.geteuid(), -1)
                os.fsync(part.target)
            for part in self._parts:
                try:
                    link_unnamed(part.target, part.path)
                except FileExistsError as error:  # it was made since `of_task` looked
                    raise _taken(part.disk, SnapshotName(part.path.name)) from error
                stack.callback(part.path.unlink, missing_ok=True)
                sync_directory(part.path.parent)
            stack.pop_all()
        return tuple(self._snapshots.get(part.disk, SnapshotName(part.path.name)) for part in self._parts)


def _opened(path: Path) -> AbstractContextManager[int]:
    return closing(open_file(path, os.O_RDONLY, repr(str(path))))


def _cannot_share(disk: DiskName, directory: Path, *, held: bool = False) -> Solo5Error:
    hint = (
        "Stop the task, and copy the data: solo5ctl disk snapshot --copy"
        if held
        else f"To copy the data: solo5ctl disk snapshot --copy {disk}"
    )
    return HostError(
        f"disk {disk!r}: the file system of {directory} shares no blocks: expected one with reflinks, such as XFS or "
        "Btrfs.",
        hint,
    )


def _taken(disk: DiskName, name: SnapshotName) -> TakenError:
    return TakenError(f"disk {disk!r} has a snapshot {name!r} already: expected a new name.")
