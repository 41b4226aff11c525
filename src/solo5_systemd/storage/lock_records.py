"""What lock files of disks contain: the task that has them, and its disks. Imports little, for `solo5ctl inspect`.

A directory that cannot be read is a HostError.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from solo5_systemd.base.errors import HostError
from solo5_systemd.base.locks import closing, is_locked, lock_directory

LOCKS = Path("/run/solo5/disks")

RECORD_MAX = 4 << 20
"""Bytes of a lock file that are read: of 63 disks, all with the paths of an archive."""


def holders() -> Mapping[tuple[int, int], str]:
    """Return the locked disks by identity, each with the name of its task; empty for a reader.

    Raises:
        HostError: the directory cannot be used.
    """
    return {identity: str(record.get("task", "")) for identity, record in _records().items()}


def disks_of(task: str) -> Sequence[Mapping[str, str]]:
    """Return the disks of a running task, as its lock file has them.

    Each has `disk`, `backing`, `path`, `sha256`, its limits as `io`, and the names of its `devices`.

    Raises:
        HostError: the directory cannot be used.
    """
    return [*disks_in(records_of_tasks().get(task, (set(), {}))[1])]


def disks_in(record: Mapping[str, object]) -> Iterator[Mapping[str, str]]:
    """Yield the disks of a lock file's record."""
    disks = record.get("disks")
    for disk in disks if isinstance(disks, list) else ():
        if isinstance(disk, dict):
            yield {str(key): str(value) for key, value in disk.items()}


def records_of_tasks() -> Mapping[str, tuple[set[tuple[int, int]], Mapping[str, object]]]:
    """Return the record of each running task, and the identities of its disks.

    Raises:
        HostError: the directory cannot be used.
    """
    found: dict[str, tuple[set[tuple[int, int]], Mapping[str, object]]] = {}
    for identity, record in _records().items():
        if task := str(record.get("task", "")):
            found.setdefault(task, (set(), record))[0].add(identity)
    return found


def devices_of_tasks() -> Mapping[str, Mapping[str, Sequence[str]]]:
    """Return the names of the disks on each block device, by running task and name of the device.

    Raises:
        HostError: the directory cannot be used.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for task, (_, record) in records_of_tasks().items():
        devices = found.setdefault(task, {})
        for disk in disks_in(record):
            for device in disk.get("devices", "").split():
                devices.setdefault(device, []).append(disk.get("disk", ""))
    return found


def _records() -> Mapping[tuple[int, int], Mapping[str, object]]:
    found: dict[tuple[int, int], Mapping[str, object]] = {}
    try:
        with closing(lock_directory(LOCKS)):
            for name in LOCKS.iterdir():
                if is_locked(name):
                    found[identity_of(name)] = read_record(name)
    except FileNotFoundError:
        return found
    except OSError as error:
        raise HostError(f"the locks of disks in {LOCKS} cannot be read: {error.strerror}.") from error
    return found


def read_record(name: Path) -> Mapping[str, object]:
    """Return the content of a lock file; empty if it is damaged, or the lock of a reader."""
    with suppress(ValueError), name.open("rb") as file:
        record = json.loads(file.read(RECORD_MAX))
        if isinstance(record, dict):
            return record
    return {}


def name_of(identity: tuple[int, int]) -> str:
    """Return the name of the lock file of the disk with an identity: device and inode."""
    device, inode = identity
    return f"{device:x}-{inode:x}"


def identity_of(name: Path) -> tuple[int, int]:
    """Return the identity of the disk whose lock file has a name; raises ValueError for another file."""
    device, _, inode = name.name.partition("-")
    return int(device, 16), int(inode, 16)


def is_any_locked(names: Iterable[str]) -> bool:
    """Return whether one of some disks is locked.

    Raises:
        OSError: the directory cannot be opened.
    """
    try:
        guard = lock_directory(LOCKS)
    except FileNotFoundError:
        return False
    with closing(guard):
        return any(is_locked(LOCKS / name) for name in names)
