"""Which disks were given to a user: noted before, so that none is the user's any more when another task has that user.

    /var/lib/solo5/users/UID       a line of JSON for each disk: its path, and its identity

An owner outlives a boot, and so do the notes. A user with a note is not allocated: `solo5ctl gc` and the driver take
the disks back first.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

NOTES = Path("/var/lib/solo5/users")


class Given(NamedTuple):
    """A disk that was given: its path at that time, and what it is known by (`Disk.identity`)."""

    path: str
    device: int
    inode: int


class Notes:
    """The notes of all users.

    Args:
        directory: a file for each user.
    """

    def __init__(self, directory: Path = NOTES) -> None:
        self._directory = directory

    def write(self, uid: int, given: Sequence[Given]) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self._directory / str(uid)).write_text("".join(f"{json.dumps(each)}\n" for each in given))

    def exists(self, uid: int) -> bool:
        return (self._directory / str(uid)).exists()

    def read(self, uid: int) -> Iterator[Given]:
        """The disks of a user; a line that was cut short by a crash is of a disk that was not given yet."""
        with suppress(FileNotFoundError):
            for line in (self._directory / str(uid)).read_text().splitlines():
                with suppress(ValueError, TypeError):
                    yield Given(*json.loads(line))

    def remove(self, uid: int) -> None:
        (self._directory / str(uid)).unlink(missing_ok=True)

    def users(self) -> list[int]:
        with suppress(FileNotFoundError):
            return sorted(int(file.name) for file in self._directory.iterdir() if file.name.isdigit())
        return []
