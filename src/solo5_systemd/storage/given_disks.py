"""The files that list the given disks of each user, so that they are reclaimed before the user has another task.

    /var/lib/solo5/users/UID       one line of JSON for each disk: path, device, inode, file system, mount point, owner

The owner of a disk outlives a boot, and so does this file (`docs/decisions/given-disks.md`).
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from solo5_systemd.base.atomic_file import replace_file, sync_directory
from solo5_systemd.base.locks import closing, lock_directory
from solo5_systemd.storage.model import GivenDisk

GIVEN_DISKS = Path("/var/lib/solo5/users")


def add(uid: int, given: Sequence[GivenDisk]) -> None:
    """Add disks to a user's file; on stable storage when this returns."""
    present = tuple(read(uid))
    added = tuple(each for each in given if each not in present)
    if not added:
        return
    if not GIVEN_DISKS.is_dir():
        GIVEN_DISKS.mkdir(mode=0o700, parents=True, exist_ok=True)
        sync_directory(GIVEN_DISKS.parent)
    with _locked(shared=True):  # the task's file keeps other additions for this user out
        _write(uid, (*read(uid), *added))


def drop(uid: int, taken: GivenDisk) -> bool:
    """Remove a disk, which has another owner now, from a user's file; returns whether it was the last one of it."""
    if not exists(uid):
        return False
    with _locked():
        present = tuple(read(uid))
        kept = tuple(each for each in present if not each.is_same_file(taken))
        if kept != present:
            _write(uid, kept)
        return not kept and kept != present


def _locked(*, shared: bool = False) -> AbstractContextManager[int]:
    return closing(lock_directory(GIVEN_DISKS, shared=shared))


def _write(uid: int, disks: Sequence[GivenDisk]) -> None:
    lines = (f"{json.dumps(each)}\n" for each in disks)
    replace_file(GIVEN_DISKS / str(uid), "".join(lines), durable=True)


def exists(uid: int) -> bool:
    """Return whether a user may own disks."""
    return (GIVEN_DISKS / str(uid)).exists()


def read(uid: int) -> Iterator[GivenDisk]:
    """Yield the given disks of a user; damaged lines are skipped."""
    with suppress(FileNotFoundError):
        for line in (GIVEN_DISKS / str(uid)).read_bytes().splitlines():
            with suppress(ValueError, TypeError):
                yield GivenDisk(*json.loads(line))


def find(uid: int, disk: GivenDisk) -> GivenDisk | None:
    """Return the given disk of a user that is the same file; None: it has none."""
    return next((each for each in read(uid) if each.is_same_file(disk)), None)


def remove(uid: int) -> None:
    """Remove a user's file. No fsync(2): a file that returns after a power loss lists reclaimed disks."""
    (GIVEN_DISKS / str(uid)).unlink(missing_ok=True)


def users() -> list[int]:
    """Return the users with a file, in ascending order."""
    with suppress(FileNotFoundError):
        # Other names are those of files that are being written.
        return sorted(int(file.name) for file in GIVEN_DISKS.iterdir() if file.name.isdigit())
    return []
