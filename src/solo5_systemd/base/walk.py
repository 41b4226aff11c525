"""Walk along a path: open one component after another with O_PATH, and follow the symbolic links.

What a path resolves to may change at any moment. A walk has each directory open that it has looked at, so that the
file at its end is the one to which these have led.
"""

import errno
import os
import stat
from collections.abc import Callable
from typing import NamedTuple

_PLACE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS = 40
"""The kernel's limit, MAXSYMLINKS."""

OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
"""Bits of a mode; with an ACL, those of the group are its mask."""


class Step(NamedTuple):
    """A component of a path.

    Attributes:
        at: its path, absolute; of a link, that of the link itself.
        above: of its directory; None: it is `/`.
        is_last: no component follows, but for those of a link.
    """

    at: str
    status: os.stat_result
    above: os.stat_result | None
    is_last: bool


def walk(
    path: str, visit: Callable[[Step], None] = lambda _: None, permits: Callable[[str], bool] = lambda _: True
) -> tuple[int, str]:
    """Open the file at the end of a path with O_PATH; an automount on the way is not mounted.

    Args:
        path: absolute, or relative to the current directory.
        visit: is called with each component, `/` first; an exception of it ends the walk.
        permits: returns whether a path may be accessed; if not, nothing is there.

    Returns:
        A file descriptor, which the caller closes, and the path without symbolic links.

    Raises:
        OSError: the file does not exist, is not permitted, or a component cannot be opened.
    """
    rest, links = _names(path if path.startswith("/") else f"{os.getcwd()}/{path}"), 0  # noqa: PTH109 - a text
    opened: list[tuple[str, int, os.stat_result]] = []  # each directory from `/` on
    try:
        while rest:
            name = rest.pop()
            if name == "..":
                os.close(opened.pop()[1]) if len(opened) > 1 else None
                continue
            if name == "/":
                _close(opened)
            above, place, directory = opened[-1] if opened else ("", None, None)
            at = f"{above.rstrip('/')}/{name}" if above else name
            if not permits(at):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), at)
            entry = os.open(name, _PLACE, dir_fd=place)
            status = os.fstat(entry)
            opened.append((at, entry, status))
            visit(Step(at, status, directory, is_last=not rest))
            if stat.S_ISLNK(status.st_mode):
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                rest += _names(os.readlink("", dir_fd=entry))  # noqa: PTH115 - of a descriptor
                os.close(opened.pop()[1])
        at, entry, _ = opened.pop()
        return entry, at
    finally:
        _close(opened)


def _names(path: str) -> list[str]:
    """Return the components of a path, the last one first; of an absolute one, `/` is the last."""
    names = [name for name in reversed(path.split("/")) if name not in ("", ".")]
    return [*names, "/"] if path.startswith("/") else names


def _close(opened: list[tuple[str, int, os.stat_result]]) -> None:
    while opened:
        os.close(opened.pop()[1])
