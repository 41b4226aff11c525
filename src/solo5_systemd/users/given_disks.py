"""The files that list the given disks of each user, so that they are reclaimed before the user has another task.

    /var/lib/solo5/users/UID       one line of JSON for each disk: path, device, inode, file system, mount point, owner

The owner of a disk outlives a boot, and so does this file. It is on stable storage before the disk is given: the file
system may write the new owner at any moment after. A user with a file is not allocated.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from solo5_systemd.base.atomic_file import replace_file, sync_directory
from solo5_systemd.base.locks import closing, lock_directory
from solo5_systemd.users.user_record import GivenDisk

GIVEN_DISKS = Path("/var/lib/solo5/users")


class GivenDiskFiles:
    """The given-disk files of all users.

    Args:
        directory: has one file for each user.
    """

    def __init__(self, directory: Path = GIVEN_DISKS) -> None:
        self._directory = directory

    def add(self, uid: int, given: Sequence[GivenDisk]) -> None:
        """Add disks to a user's file; on stable storage when this returns."""
        present = tuple(self.read(uid))
        added = tuple(each for each in given if each not in present)
        if not added:
            return
        if not self._directory.is_dir():
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            sync_directory(self._directory.parent)
        with self._locked(shared=True):  # the task's file keeps other additions for this user out
            self._write(uid, (*self.read(uid), *added))

    def drop(self, uid: int, taken: GivenDisk) -> bool:
        """Remove a disk from a user's file, which stays; returns whether it had the disk, and has none now.

        Called when the disk has another owner on stable storage.
        """
        if not self.exists(uid):
            return False
        with self._locked():
            present = tuple(self.read(uid))
            kept = tuple(each for each in present if not each.is_same_file(taken))
            if kept != present:
                self._write(uid, kept)
            return not kept and kept != present

    def _locked(self, *, shared: bool = False) -> AbstractContextManager[int]:
        """Lock the directory: a file is read and replaced, and not by two processes at a time."""
        return closing(lock_directory(self._directory, shared=shared))

    def _write(self, uid: int, disks: Sequence[GivenDisk]) -> None:
        lines = (f"{json.dumps(each)}\n" for each in disks)
        replace_file(self._directory / str(uid), "".join(lines), durable=True)

    def exists(self, uid: int) -> bool:
        """Return whether a user may own disks."""
        return (self._directory / str(uid)).exists()

    def read(self, uid: int) -> Iterator[GivenDisk]:
        """Yield the given disks of a user; damaged lines are skipped."""
        with suppress(FileNotFoundError):
            for line in (self._directory / str(uid)).read_bytes().splitlines():
                with suppress(ValueError, TypeError):
                    yield GivenDisk(*json.loads(line))

    def find(self, uid: int, disk: GivenDisk) -> GivenDisk | None:
        """Return the given disk of a user that is the same file; None: it has none."""
        return next((each for each in self.read(uid) if each.is_same_file(disk)), None)

    def remove(self, uid: int) -> None:
        """Remove a user's file. No fsync(2): a file that returns after a power loss lists reclaimed disks."""
        (self._directory / str(uid)).unlink(missing_ok=True)

    def users(self) -> list[int]:
        """Return the users with a file, in ascending order."""
        with suppress(FileNotFoundError):
            return sorted(int(file.name) for file in self._directory.iterdir() if file.name.isdigit())
        return []
