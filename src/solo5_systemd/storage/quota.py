"""Quotas of directories: the sum of the sizes of all files below one, checked before a disk is made or grows.

A sparse file counts with its size, since a guest may write all of it. Programs that write files themselves, such as
tasks of other drivers in a volume, are not limited: what they have written counts when the next disk is made.
"""

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from solo5_systemd.base.errors import HostError
from solo5_systemd.base.locks import closing
from solo5_systemd.base.procfs import identity, is_below
from solo5_systemd.storage.model import NAMED_DISKS, SNAPSHOTS

Quotas = Mapping[str, int]
"""Bytes, by directory."""

_UNCOUNTED = f"{NAMED_DISKS}/{SNAPSHOTS}"
"""Snapshots share the blocks of their disks, and are made by root only."""


def concerned(quotas: Quotas, path: str | Path, more: int) -> Quotas:
    """Return the quotas that hold for a file that becomes larger by `more` bytes; a symbolic link is followed."""
    resolved = os.path.realpath(path)
    return {directory: most for directory, most in quotas.items() if more > 0 and is_below(resolved, (directory,))}


def check(quotas: Quotas, more: int, what: str, *, new: int = -1) -> None:
    """Check that a file may become larger.

    Args:
        what: the file in an error, such as `disk 'web'`.
        new: descriptor of the file, which may have a name in the directory already; -1: none.

    Raises:
        HostError: a quota would be exceeded.
    """
    for directory, most in quotas.items():
        has = used(directory, None if new < 0 else identity(os.fstat(new)))
        if has + more > most:
            raise HostError(
                f"{what} would take {more} bytes: expected at most {max(most - has, 0)}, since the quota of "
                f"{directory} is {most} bytes and the files in it have {has}.",
                "Delete disks or volumes that are not needed; the operator sets disk_quota_mb in solo5.toml(5).",
            )


def used(directory: str, but: tuple[int, int] | None = None) -> int:
    """Return the bytes of all regular files below a directory, each once; what vanishes meanwhile does not count.

    The larger of size and allocated blocks counts. Symbolic links are not followed.

    Args:
        but: the file that does not count.
    """
    total, seen = 0, {but}
    places: list[tuple[str, tuple[int, int] | None]] = [(os.path.realpath(directory), None)]
    while places:  # no recursion: others may have nested directories
        place, expected = places.pop()
        with suppress(OSError), _listed(place, expected) as entries:
            for entry in entries:
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    path = f"{place}/{entry.name}"
                    if stat.S_ISDIR(status.st_mode) and path != _UNCOUNTED:
                        places.append((path, identity(status)))
                    elif stat.S_ISREG(status.st_mode) and identity(status) not in seen:
                        seen.add(identity(status))
                        total += max(status.st_size, status.st_blocks * 512)
    return total


@contextmanager
def _listed(place: str, expected: tuple[int, int] | None) -> Iterator[Iterator["os.DirEntry[str]"]]:
    """Yield the entries of a directory; of none in its place, such as by a link that another user has put there."""
    with closing(os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)) as descriptor:
        if expected is not None and identity(os.fstat(descriptor)) != expected:
            yield iter(())
            return
        with os.scandir(descriptor) as entries:
            yield entries
