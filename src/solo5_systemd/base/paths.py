"""Paths and file descriptors: walk along a path, open with O_PATH below given roots, and find who may change the way.

What a path resolves to may change at any moment. A walk opens one component after another with O_PATH, and follows the
symbolic links itself: it has each directory open that it has looked at, so that the file at its end is the one to which
these have led.
"""

import errno
import os
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePath

from solo5_systemd.base.errors import HostError, InvalidRequestError, NotFoundError, Solo5Error, host_errors
from solo5_systemd.base.locks import closing, closing_on_error

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
SYS, DEV = Path("/sys"), Path("/dev")
"""Where sysfs is mounted, and the device nodes."""


@cache
def boot_id() -> str:
    """Return the ID of this boot (random(4)), which no process outlives."""
    return BOOT_ID.read_text(encoding="ascii").strip()


ROOT = 0
_TRUSTED = {ROOT}
ANYONE = -1
"""Stands for all users, in `Way.changers`."""

PLACE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags to hold what is at a path, without opening it or following it."""

_MOST_LINKS = 40
"""The kernel's limit, MAXSYMLINKS."""

READ_UNTRUSTED = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""Flags to read what others have put at a path: no FIFO is waited for, and no terminal becomes this process's own."""

OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
"""Bits of a mode; with an ACL, those of the group are its mask."""

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}

_NOT_THERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EACCES}


async def open_in_thread(opening: Callable[[], int]) -> int:
    """Return the file descriptor that `opening` returns; it is closed if the caller is cancelled before."""
    import asyncio  # imported here for startup time: `solo5ctl logs` needs none

    def close_late(opened: asyncio.Future[int]) -> None:
        if not opened.cancelled() and not opened.exception():
            os.close(opened.result())

    opened = asyncio.ensure_future(asyncio.to_thread(opening))
    try:
        return await asyncio.shield(opened)
    except asyncio.CancelledError:
        opened.add_done_callback(close_late)
        raise


def path_of(descriptor: int) -> str:
    """Return the path of an open file, absolute and without symbolic links (proc(5), /proc/pid/fd).

    Raises:
        HostError: /proc cannot be read.
    """
    with host_errors("/proc cannot be read", "Check that it is mounted."):
        return str(Path(f"/proc/self/fd/{descriptor}").readlink())


def identity(status: os.stat_result) -> tuple[int, int]:
    """Return the identity of a file: device and inode; of a block device, its device number and 0."""
    return (status.st_rdev, 0) if stat.S_ISBLK(status.st_mode) else (status.st_dev, status.st_ino)


def version_of(status: os.stat_result) -> str:
    """Return a text that changes with a file's content: device, inode, size and times."""
    return f"{status.st_dev:x}-{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}-{status.st_ctime_ns:x}"


def kind_of(status: os.stat_result) -> str:
    """Return what is in a regular file's place, such as `a directory`."""
    return _KINDS.get(stat.S_IFMT(status.st_mode), "no file")


def existing(path: Path) -> Path:
    """Return a path if it exists, or else the innermost directory on it that does."""
    return next(each for each in (path, *path.parents) if each.exists())


def mount_point_of(path: str) -> str:
    """Return the mount point above a path without symbolic links, bind mounts included; empty: the root directory.

    By the mount IDs in /proc/self/fdinfo, since a table of mounts grows with the tasks of other drivers.

    Raises:
        OSError: a directory cannot be opened.
    """
    place = PurePath(path)
    own = _mount_id(str(place))
    while place != place.parent:
        if _mount_id(str(place.parent)) != own:
            return str(place)
        place = place.parent
    return ""


def is_mount_point(path: str) -> bool:
    """Return whether something is mounted at a path without symbolic links, bind mounts included."""
    try:
        return mount_point_of(path) == path
    except OSError:
        return False


def _mount_id(path: str) -> str:
    with closing(os.open(path, PLACE)) as descriptor:
        lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines()
    return next(line for line in lines if line.startswith("mnt_id:"))


Visit = Callable[[str, os.stat_result, os.stat_result | None, bool], None]
"""Is called with a component of a path: its own path, absolute (of a link, that of the link), its status, that of its
directory (None: it is `/`), and whether no component follows, but for those of a link."""


def walk(path: str, visit: Visit = lambda *_: None, permits: Callable[[str], bool] = lambda _: True) -> tuple[int, str]:
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
                os.close(opened.pop()[1]) if len(opened) > 1 else None  # that of `/` is `/` itself
                continue
            if name == "/":  # of an absolute link, which begins anew
                _close(opened)
            above, place, directory = opened[-1] if opened else ("", None, None)
            at = f"{above.rstrip('/')}/{name}" if above else name
            if not permits(at):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), at)
            entry = os.open(name, PLACE, dir_fd=place)
            status = os.fstat(entry)
            opened.append((at, entry, status))
            visit(at, status, directory, not rest)
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


@dataclass(frozen=True, kw_only=True)
class Way:
    """The directories and symbolic links by which a path resolves to a file.

    Attributes:
        place: the path without symbolic links.
        changers: UIDs of the users other than root that can change what the path resolves to; ANYONE: several, or any.
        of_links: those of them that can change a symbolic link on the way.
        is_shared: it ends in a sticky directory, where another user may have put a file of root's, by rename(2) or
            link(2).
    """

    place: Path
    changers: frozenset[int]
    of_links: frozenset[int] = frozenset()
    is_shared: bool = False


def way_of(path: str) -> Way | None:
    """Return the way of a path, from the root directory on; None: nothing is there.

    A caller that has the file open compares the way's place with the path of that (`path_of`), since the way may have
    changed in between.

    Args:
        path: absolute, or relative to the current directory.
    """
    changers: set[int] = set()
    of_links: set[int] = set()
    is_shared = False

    def visit(_at: str, status: os.stat_result, above: os.stat_result | None, _is_last: bool) -> None:
        nonlocal changers, of_links, is_shared
        if above is None:
            return
        of_entry, is_shared = changers_in(above, status), bool(above.st_mode & OTHERS_MAY_WRITE)
        changers |= of_entry
        of_links |= of_entry if stat.S_ISLNK(status.st_mode) else set()

    try:
        descriptor, place = walk(path, visit)
    except OSError:
        return None
    os.close(descriptor)
    return Way(place=Path(place), changers=frozenset(changers), of_links=frozenset(of_links), is_shared=is_shared)


def changers_in(directory: os.stat_result, entry: os.stat_result | None = None) -> set[int]:
    """Return the users other than root that can put something else, or could have put this, in an entry's place.

    In a sticky directory, an entry is its owner's, but for a link, whose owner need not have brought it there, and a
    mount point.

    Args:
        directory: its status.
        entry: of the entry; None: of any.
    """
    found = {directory.st_uid}
    if directory.st_mode & OTHERS_MAY_WRITE:
        is_sticky, is_link = directory.st_mode & stat.S_ISVTX, entry is None or stat.S_ISLNK(entry.st_mode)
        # With FUSE, a user makes up owners and links. In overlayfs, the number of a file's device is another one.
        is_mount = entry is not None and stat.S_ISDIR(entry.st_mode) and entry.st_dev != directory.st_dev
        found.add(entry.st_uid if entry is not None and is_sticky and not is_link and not is_mount else ANYONE)
    return found - _TRUSTED


def is_exposed(path: str) -> bool:
    """Return whether a user other than root can change which file a path resolves to, or nothing is there."""
    way = way_of(path)
    return way is None or bool(way.changers)


def is_below(path: str, roots: Sequence[str]) -> bool:
    """Return whether a path without symbolic links is below one of `roots`, which may contain links."""
    return _is_below(path, [os.path.realpath(root) for root in roots])


def open_path(what: str, path: str, roots: Sequence[str]) -> tuple[int, str]:
    """Open a file with O_PATH: an open of a device may act on it, of a FIFO may block, of an automount may mount.

    With roots, no path outside of them is accessed, so that the result does not reveal whether one exists.

    Args:
        what: the file in an error, such as `image '/srv/web.hvt'`.
        path: absolute; without roots, it may be relative to the current directory.
        roots: directories below one of which it must be, links followed; empty: it may be anywhere.

    Returns:
        A file descriptor (O_PATH), which the caller closes, and the file's path without symbolic links.

    Raises:
        InvalidRequestError: it is not below a root, or does not exist.
        NotFoundError: it does not exist, without roots.
        HostError: the file system returned an error.
    """
    try:
        descriptor = _follow(path, roots) if roots else os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        if roots and error.errno in _NOT_THERE:
            raise _outside_error(what, roots) from error
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            raise NotFoundError(f"{what} does not exist.") from error
        raise HostError(f"{what} cannot be opened: {error.strerror}.") from error
    with closing_on_error(descriptor):
        found = path_of(descriptor)
        if roots and not is_below(found, roots):  # it was moved meanwhile
            raise _outside_error(what, roots)
    return descriptor, found


def exists(path: str, roots: Sequence[str]) -> bool:
    """Return whether `open_path` succeeds."""
    try:
        descriptor, _ = open_path("", path, roots)
    except Solo5Error:
        return False
    os.close(descriptor)
    return True


def _outside_error(what: str, roots: Sequence[str]) -> InvalidRequestError:
    return InvalidRequestError(
        f"{what} cannot be used: expected a file below {' or '.join(roots)}.",
        "Symbolic links are followed, and must not end outside of these directories.",
    )


def _follow(path: str, roots: Sequence[str]) -> int:
    """Open a file with O_PATH; only what is on the way to a root, or below one, is accessed.

    Raises:
        OSError: it does not exist; ENOENT also if the path ends outside of the roots.
    """
    on_the_way: set[str] = set()
    places: list[str] = []
    for root in roots:
        with suppress(FileNotFoundError, NotADirectoryError):  # nothing is below a root that does not exist
            descriptor, place = walk(root, lambda at, *_: on_the_way.add(at))
            os.close(descriptor)
            places.append(place)
    return walk(path, permits=lambda at: at in on_the_way or _is_below(at, places))[0]


def _is_below(path: str, places: Sequence[str]) -> bool:
    return any(PurePath(path).is_relative_to(place) for place in places)


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
    with host_errors(f"{str(directory)!r} cannot be used"):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with closing_on_error(descriptor):
        way = way_of(str(directory))
        if way is None or str(way.place) != path_of(descriptor) or way.of_links - {os.geteuid()}:
            raise InvalidRequestError(
                f"{str(directory)!r} is behind a symbolic link that another user can change: expected a path without "
                "it.",
                "Name the directory itself.",
            )
    return descriptor


def within(directory: int, name: str) -> Path:
    """Return a path of a name in an open directory, which leads there wherever the directory is by now."""
    return Path(f"/proc/self/fd/{directory}", name)
