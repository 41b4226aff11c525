"""Which disks were given to a user: noted before, so that none is the user's any more when another task has that user.

    /var/lib/solo5/users/UID       a line of JSON for each disk: its path, and what it is known by

An owner outlives a boot, and so do the notes: a note is on stable storage before a disk is given, since the owner may
be written to its file system at any moment after. A user with a note is not allocated.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from solo5_systemd.users.record import Given

NOTES = Path("/var/lib/solo5/users")


class Notes:
    """The notes of all users.

    Args:
        directory: a file for each user.
    """

    def __init__(self, directory: Path = NOTES) -> None:
        self._directory = directory

    def add(self, uid: int, given: Sequence[Given]) -> None:
        """Note disks beside those that are noted already; on stable storage when this returns."""
        noted = tuple(self.read(uid))
        added = tuple(each for each in given if each not in noted)
        if not added:
            return
        if not self._directory.is_dir():
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _sync(self._directory.parent)
        new = self._directory / f".{uid}"
        with new.open("w") as file:
            file.writelines(f"{json.dumps(each)}\n" for each in (*noted, *added))
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._directory / str(uid))
        _sync(self._directory)

    def exists(self, uid: int) -> bool:
        return (self._directory / str(uid)).exists()

    def read(self, uid: int) -> Iterator[Given]:
        """Yield the disks of a user; nothing for a line that is damaged."""
        with suppress(FileNotFoundError):
            for line in (self._directory / str(uid)).read_bytes().splitlines():
                with suppress(ValueError, TypeError):
                    yield Given(*json.loads(line))

    def remove(self, uid: int) -> None:
        """Remove a user's note; one that a loss of power brings back is of disks that were taken back."""
        (self._directory / str(uid)).unlink(missing_ok=True)

    def users(self) -> list[int]:
        with suppress(FileNotFoundError):
            return sorted(int(file.name) for file in self._directory.iterdir() if file.name.isdigit())
        return []


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
