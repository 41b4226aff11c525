"""Disk locks: one task at a time has a disk, for as long as a process of the task lives.

A lock is a file of one task, with its name and its disks as JSON; how it is held: `docs/decisions/disk-locks.md`. Its
names in /run/solo5/disks, one for each disk, are stale once the kernel has released the lock.

A disk that another task has, or the kernel uses, is a TakenError, a directory that cannot be used a HostError. What
only locks need is imported where it is used, for the startup time of `solo5ctl inspect`, which reads them.
"""

import json
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from solo5_systemd.base.atomic_file import link_unnamed, open_unnamed
from solo5_systemd.base.decode import Fields, json_document
from solo5_systemd.base.errors import InvalidRequestError, TakenError, host_errors
from solo5_systemd.base.locks import closing, closing_on_error, is_locked, lock_directory, try_lock
from solo5_systemd.base.locks import lock as file_lock

if TYPE_CHECKING:
    from solo5_systemd.storage.model import Disk

LOCKS = Path("/run/solo5/disks")

ENDED_TIMEOUT_S = 2.0
"""PID 1 closes the descriptors of an ended service in a thread, some time later; stdin has the disk lock."""

INTERVAL_S = 0.02


@dataclass(frozen=True, kw_only=True)
class Record:
    """The content of a lock file; empty of a reader, or of a process that is no task.

    Attributes:
        disks: each with what `_disk_record` has of it, without what is empty.
        archives: how to read the files of archives again, for `archive_files.outdated`.
    """

    task: str = ""
    disks: Sequence[Mapping[str, Any]] = ()
    archives: Sequence[object] = ()


def holders() -> Mapping[tuple[int, int], str]:
    """Return the locked disks by identity, each with the name of its task; empty for a reader."""
    return {identity_of(name): record.task for name, record in _records()}


def records_of_tasks() -> Mapping[str, Record]:
    """Return the record of each running task."""
    return {record.task: record for _, record in _records() if record.task}


def samples() -> Collection[Record]:
    """Return the record of one locked file on each file system with such files: a name begins with the device."""
    found: dict[str, Record] = {}
    with suppress(FileNotFoundError), closing(lock_directory(LOCKS)):  # without it, no disk was ever locked
        for name in os.listdir(LOCKS):  # noqa: PTH208 - names, for one system call
            device, _, inode = name.partition("-")
            if device not in found and inode != "0" and is_locked(LOCKS / name):  # 0: of a block device
                found[device] = read_record(LOCKS / name)
    return found.values()


def devices_of_tasks() -> Mapping[str, Mapping[str, Sequence[str]]]:
    """Return the names of the disks on each block device, by running task and name of the device."""
    found: dict[str, dict[str, list[str]]] = {}
    for task, record in records_of_tasks().items():
        devices = found.setdefault(task, {})
        for disk in record.disks:
            for device in disk.get("devices", "").split():
                devices.setdefault(device, []).append(disk["disk"])
    return found


def _records() -> Sequence[tuple[Path, Record]]:
    with (
        host_errors(f"the locks of disks in {LOCKS} cannot be read"),
        suppress(FileNotFoundError),  # no disk was ever locked
        closing(lock_directory(LOCKS)),
    ):
        return [(name, read_record(name)) for name in LOCKS.iterdir() if is_locked(name)]
    return ()


def read_record(name: Path) -> Record:
    """Return the content of a lock file, without what only a later version knows; empty if it is damaged."""
    with suppress(InvalidRequestError):
        fields = Fields(json_document(name.read_bytes(), "the record of a lock"))
        disks = tuple(each.having(*each) for each in fields.tables("disks"))
        return Record(task=fields.text("task", ""), disks=disks, archives=fields.items("archives", "a list", ()))
    return Record()


def name_of(identity: tuple[int, int]) -> str:
    """Return the name of the lock file of the disk with an identity: device and inode."""
    device, inode = identity
    return f"{device:x}-{inode:x}"


def identity_of(name: Path) -> tuple[int, int]:
    """Return the identity of the disk whose lock file has a name; raises ValueError for another file."""
    device, _, inode = name.name.partition("-")
    return int(device, 16), int(inode, 16)


def is_any_locked(names: Iterable[str]) -> bool:
    """Return whether one of some disks is locked; raises OSError where the directory cannot be opened."""
    try:
        guard = lock_directory(LOCKS)
    except FileNotFoundError:  # no disk was locked since the boot
        return False
    with closing(guard):
        return any(is_locked(LOCKS / name) for name in names)


def lock(disks: "Sequence[Disk]", *, task: str = "", unused: bool = False, timeout_s: float = 0.0) -> int:
    """Lock all disks until the returned descriptor, and every duplicate in any process, is closed.

    Args:
        unused: check that the kernel does not use them either (`block_devices.check_unused`).
        timeout_s: how long to wait for another task, such as one that has just ended.

    Raises:
        InvalidRequestError: two disks are one file.
        TakenError: another task has a disk, or the kernel uses it.
    """
    end = time.monotonic() + timeout_s
    while True:
        try:
            return _lock(disks, task, unused=unused)
        except TakenError:
            if time.monotonic() >= end:
                raise
        time.sleep(INTERVAL_S)


def _lock(disks: "Sequence[Disk]", task: str, *, unused: bool) -> int:
    from solo5_systemd.settings.records import document
    from solo5_systemd.storage.block_devices import check_distinct, check_unused, overlapping

    check_distinct(disks)
    for disk in disks if unused else ():
        check_unused(disk)
    names = [LOCKS / name_of(disk.identity) for disk in disks]
    with _guarded():
        for disk, name in zip(disks, names, strict=True):
            if is_locked(name) or any(is_locked(LOCKS / name_of(each)) for each in overlapping(disk)):
                raise taken(disk)
        own = disks if task else ()
        archives = [document(each.sources) for each in own if each.sources]
        return _linked(names, Record(task=task, disks=[*map(_disk_record, own)], archives=archives))


def lock_shared(disk: "Disk") -> int:
    """Lock a disk for reading, beside other readers, until the returned descriptor is closed."""
    from solo5_systemd.storage.block_devices import check_unused

    check_unused(disk)
    name = LOCKS / name_of(disk.identity)
    with _guarded():
        if not is_locked(name):
            return _linked([name], Record(), shared=True)
        with closing_on_error(os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)) as descriptor:
            if not try_lock(descriptor, shared=True):  # it is a task's, and not that of other readers
                raise taken(disk)
        return descriptor


def remove_names(disks: "Iterable[Disk]") -> None:
    """Remove the names of a lock that the caller has, of disks that it has deleted."""
    with _guarded():
        for disk in disks:
            (LOCKS / name_of(disk.identity)).unlink(missing_ok=True)


def remove_stale() -> None:
    """Remove the lock files of disks that no task has locked."""
    with _guarded():
        for name in LOCKS.iterdir():
            if not is_locked(name):
                name.unlink()


def taken(disk: "Disk") -> TakenError:
    """Return the error of a disk that another task has."""
    return TakenError(f"{disk} is in use by another task.", "`solo5ctl ps` lists the tasks.")


@contextmanager
def _guarded() -> Iterator[None]:
    with host_errors(f"disks cannot be locked in {LOCKS}"):
        LOCKS.mkdir(mode=0o700, parents=True, exist_ok=True)
        with closing(lock_directory(LOCKS)):
            yield


def _disk_record(disk: "Disk") -> Mapping[str, str]:
    record = {
        "disk": disk.disk,
        "identity": name_of(disk.identity),
        "backing": disk.backing,
        "path": disk.source or disk.path,
        "sha256": disk.sha256,
        "size": disk.size or "",
        "io": disk.io,
        "devices": " ".join(disk.devices.values()),
    }
    return {key: text for key, value in record.items() if (text := str(value))}


def _linked(names: Sequence[Path], record: Record, *, shared: bool = False) -> int:
    """Create a locked file (O_TMPFILE), give it its names, and return a read-only descriptor."""
    from solo5_systemd.base.file_copies import write_all

    with closing(open_unnamed(LOCKS, 0o400)) as writable:
        write_all(writable, json.dumps(vars(record)).encode(), 0)
        opened = os.open(f"/proc/self/fd/{writable}", os.O_RDONLY | os.O_CLOEXEC)
    with closing_on_error(opened) as descriptor:
        file_lock(descriptor, LOCKS, shared=shared, timeout_s=0.0)  # no other process has the file
        for name in names:  # a name that is there already is that of an ended task: the caller holds the directory
            name.unlink(missing_ok=True)
            link_unnamed(descriptor, name)
    return descriptor
