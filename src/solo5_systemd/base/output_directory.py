"""Directories for output: a file is written in the directory that was opened, whatever its path resolves to by now."""

import os
from pathlib import Path

from solo5_systemd.base.errors import HostError, InvalidRequestError
from solo5_systemd.base.procfs import path_of, way_of


def open_directory(directory: Path) -> int:
    """Open a directory to create files in it, by a path on which no other user has put a link.

    By such a link, root would write to any directory. A directory of another user without one has only what that user
    may have there.

    Returns:
        A file descriptor, which the caller closes.

    Raises:
        InvalidRequestError: another user than root and the caller can change a link on the way.
        HostError: it cannot be opened.
    """
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise HostError(f"{str(directory)!r} cannot be used: {error.strerror}.") from error
    try:
        _check_links(directory, descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_links(directory: Path, descriptor: int) -> None:
    way = way_of(str(directory))
    if way is None or str(way.place) != path_of(descriptor) or way.of_links - {os.geteuid()}:
        raise InvalidRequestError(
            f"{str(directory)!r} is behind a symbolic link that another user can change: expected a path without it.",
            "Name the directory itself.",
        )


def within(directory: int, name: str) -> Path:
    """Return a path of a name in an open directory, which leads there wherever the directory is by now."""
    return Path(f"/proc/self/fd/{directory}", name)
