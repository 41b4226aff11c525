"""Disk locks: one task at a time has a disk, for as long as a process of the task lives.

Tenders lock nothing, so that two of them would write one file. A lock is an empty file of one task, locked by flock(2),
with a name in /run/solo5/disks for each disk. Its descriptor becomes the tender's standard input. The kernel releases
the lock with the last process that has the descriptor; the names are stale from then on. The descriptor is read-only
and no two tasks share a file, so a tender can do nothing with it but unlock its own disks. The file has the task's name
and its disks as JSON, for `solo5ctl inspect` and `solo5ctl disk ls`.

A partition is not locked while its disk is, nor a disk while one of its partitions is, nor a loop device while its file
is.

A disk that is only read, such as one that is copied, has a shared lock: any number of readers, and no task.

A disk that another task has is a TakenError, a directory that cannot be used a HostError.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from solo5_systemd.base.atomic_file import link_unnamed, open_unnamed
from solo5_systemd.base.errors import HostError, TakenError
from solo5_systemd.base.locks import closing, is_locked, lock_directory, try_lock
from solo5_systemd.base.locks import lock as file_lock
from solo5_systemd.settings.records import document
from solo5_systemd.storage import lock_records
from solo5_systemd.storage.lock_records import name_of
from solo5_systemd.storage.model import Disk
from solo5_systemd.storage.overlaps import check_distinct, overlapping


def lock(disks: Sequence[Disk], *, task: str = "") -> int:
    """Lock all disks until the returned descriptor, and every duplicate in any process, is closed.

    Returns:
        A descriptor, close-on-exec; a duplicate, such as the tender's standard input, keeps the lock.

    Raises:
        InvalidRequestError: two disks are one file.
        TakenError: another task has a disk.
        HostError: the directory cannot be used.
    """
    check_distinct(disks)
    names = [lock_records.LOCKS / name_of(disk.identity) for disk in disks]
    with _guarded() as directory:
        for disk, name in zip(disks, names, strict=True):
            if is_locked(name) or any(is_locked(directory / name_of(each)) for each in overlapping(disk)):
                raise taken(disk)
        record = {"task": task, "disks": [_disk_record(disk) for disk in disks], **_archives(disks)} if task else {}
        return _linked(names, json.dumps(record))


def lock_shared(disk: Disk) -> int:
    """Lock a disk for reading, beside other readers, until the returned descriptor is closed.

    Raises:
        TakenError: a task has the disk, and may write it.
        HostError: the directory cannot be used.
    """
    name = lock_records.LOCKS / name_of(disk.identity)
    with _guarded():
        if not is_locked(name):
            return _linked([name], "{}", shared=True)
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        if not try_lock(descriptor, shared=True):
            os.close(descriptor)
            raise taken(disk)
        return descriptor


@contextmanager
def _guarded() -> Iterator[Path]:
    directory = lock_records.LOCKS
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with closing(lock_directory(directory)):
            yield directory
    except OSError as error:
        raise HostError(f"disks cannot be locked in {directory}: {error.strerror}.") from error


def remove_stale() -> None:
    """Remove the lock files of disks that no task has locked.

    Raises:
        HostError: the directory cannot be used.
    """
    directory = lock_records.LOCKS
    try:
        with closing(lock_directory(directory)):
            for name in directory.iterdir():
                if not is_locked(name):
                    name.unlink()
    except FileNotFoundError:
        return
    except OSError as error:
        raise HostError(f"disks cannot be unlocked in {directory}: {error.strerror}.") from error


def taken(disk: Disk) -> TakenError:
    """Return the error of a disk that another task has."""
    return TakenError(
        f"{disk} is in use by another task: expected a disk without a lock.",
        "`solo5ctl ps` lists the tasks.",
    )


def _disk_record(disk: Disk) -> Mapping[str, str]:
    record = {"disk": disk.disk, "backing": disk.backing, "path": disk.source or disk.path, "sha256": disk.sha256}
    record |= {
        "size": str(disk.size or ""),
        "io": str(disk.io),
        "devices": " ".join(each.name for each in disk.devices),
    }
    return {key: str(value) for key, value in record.items() if value}


def _archives(disks: Sequence[Disk]) -> Mapping[str, object]:
    """Return how to read the files of archives again, for `outdated_archives`; a credential is for one start."""
    requests = [disk.sources for disk in disks if disk.sources and disk.sources.archive]
    found = [document(each) for each in requests if each.archive and not each.archive.credential]
    return {"archives": found} if found else {}


def _linked(names: Sequence[Path], content: str, *, shared: bool = False) -> int:
    """Create a locked file, and give it its names."""
    descriptor = _make_lock_file(content.encode())
    try:
        file_lock(descriptor, lock_records.LOCKS, shared=shared, timeout_s=0.0)  # no other process has the file
        for name in names:
            name.unlink(missing_ok=True)
            link_unnamed(descriptor, name)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _make_lock_file(content: bytes) -> int:
    """Create a file without a name (O_TMPFILE) and return a read-only descriptor."""
    with closing(open_unnamed(lock_records.LOCKS, 0o400)) as writable:
        os.write(writable, content)
        return os.open(f"/proc/self/fd/{writable}", os.O_RDONLY | os.O_CLOEXEC)
