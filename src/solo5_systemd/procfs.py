"""Where a file lies: found without being opened, looked for below its roots alone; and names for open files."""

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path, PurePath

from solo5_systemd.errors import HostError, InvalidRequestError, NotFoundError, Solo5Error

# This boot of the kernel, by the id that it gives itself (random(4)).

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    return BOOT_ID.read_text(encoding="ascii").strip()


ROOT = 0
_PLACE = os.O_PATH | os.O_CLOEXEC
_MOST_LINKS = 40
"""The kernel's own limit."""

_NOT_THERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EACCES}
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH  # the group's bits hold the mask of an access control list, too


def place(descriptor: int) -> str:
    """The path of an open file, absolute and free of symbolic links (proc(5), /proc/pid/fd).

    Raises:
        HostError: the kernel does not tell.
    """
    try:
        return str(Path(f"/proc/self/fd/{descriptor}").readlink())
    except OSError as error:
        raise HostError(f"/proc cannot be read: {error.strerror}.", "Check that it is mounted.") from error


def identity(status: os.stat_result) -> tuple[int, int]:
    """Return what two files have in common exactly where they are one: device and inode, or a device's number and 0."""
    return (status.st_rdev, 0) if stat.S_ISBLK(status.st_mode) else (status.st_dev, status.st_ino)


def exposed(path: str, *, root: int = ROOT) -> bool:
    """Return whether a user other than root may change what a path without symbolic links leads to.

    Args:
        path: absolute.
        root: the user who may.
    """
    entries = (Path(path), *Path(path).parents)
    try:
        return any(_may_be_changed(entry, root) for entry in entries if entry != entry.parent)
    except OSError:  # it has just been changed
        return True


def _may_be_changed(entry: Path, root: int) -> bool:
    directory = entry.parent.lstat()
    if directory.st_uid != root:
        return True
    if not directory.st_mode & _OTHERS_MAY_WRITE:
        return False
    return not directory.st_mode & stat.S_ISVTX or entry.lstat().st_uid != root


def below(path: str, roots: Sequence[str]) -> bool:
    """Whether a path without symbolic links lies below one of some directories, with or without links."""
    return any(PurePath(path).is_relative_to(os.path.realpath(root)) for root in roots)


def find(what: str, path: str, roots: Sequence[str]) -> tuple[int, str]:
    """Find a file without opening it: a device may act on an open, a FIFO may wait, a file system may be mounted.

    Where there are roots, nothing outside of them is looked at either, so that the answer says nothing of it.

    Args:
        what: the file in a reader's words, such as `image '/srv/web.hvt'`.
        path: absolute, or relative to the current directory where there are no roots.
        roots: directories below one of which it must lie, links followed; none at all: it may lie anywhere.

    Returns:
        A descriptor (O_PATH), the caller's to close, and the file's path at that moment, free of symbolic links.

    Raises:
        InvalidRequestError: it is not below a root, or not there.
        NotFoundError: there are no roots, and it is not there.
        HostError: a file system fails.
    """
    try:
        descriptor = _follow(path, roots) if roots else os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        if roots and error.errno in _NOT_THERE:
            raise _elsewhere(what, roots) from error
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            raise NotFoundError(f"{what} does not exist.") from error
        raise HostError(f"{what} cannot be opened: {error.strerror}.") from error
    try:
        found = place(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    if roots and not below(found, roots):  # it was moved meanwhile
        os.close(descriptor)
        raise _elsewhere(what, roots)
    return descriptor, found


def is_there(path: str, roots: Sequence[str]) -> bool:
    """Whether `find` finds a file."""
    try:
        descriptor, _ = find("", path, roots)
    except Solo5Error:
        return False
    os.close(descriptor)
    return True


def _elsewhere(what: str, roots: Sequence[str]) -> InvalidRequestError:
    return InvalidRequestError(
        f"{what} cannot be used: expected a file below {' or '.join(roots)}.",
        "Symbolic links are followed, and must not lead elsewhere on their way.",
    )


def _follow(path: str, roots: Sequence[str]) -> int:
    """Open a file as a place (O_PATH), one name after another from a root on.

    Raises:
        OSError: it is not there; ENOENT also where the way leads out of the roots.
    """
    named = [(PurePath(os.path.normpath(root)), PurePath(os.path.realpath(root))) for root in roots]
    places = [real for _, real in named]
    at, rest, links = PurePath("/"), _names(path, named), 0
    opened: list[int] = []  # a root, and below it the directories to `at`
    try:
        while rest:
            name = rest.pop()
            here = at.parent if name == ".." else at / name
            if name == "..":
                os.close(opened.pop()) if opened else None
            elif opened:
                opened.append(os.open(name, _PLACE | os.O_NOFOLLOW, dir_fd=opened[-1]))
                if stat.S_ISLNK(os.fstat(opened[-1]).st_mode):
                    target, links = os.readlink("", dir_fd=opened[-1]), links + 1  # noqa: PTH115 - of a descriptor
                    os.close(opened.pop())
                    if links > _MOST_LINKS:
                        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                    rest += _names(target, named)
                    here = at
                    if target.startswith("/"):
                        here = PurePath("/")
                        _close(opened)
            elif here in places:
                opened.append(os.open(here, _PLACE | os.O_DIRECTORY))
            elif not any(real.is_relative_to(here) for real in places):
                break
            at = here
        if not opened:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return opened.pop()
    finally:
        _close(opened)


def _close(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


def _names(path: str, roots: Sequence[tuple[PurePath, PurePath]]) -> list[str]:
    """The names of a path, the last one first; a root that is written with links is the place that it leads to."""
    written = PurePath(path)
    for root, real in roots:
        if written.is_relative_to(root):
            written = real / written.relative_to(root)
            break
    return [name for name in reversed(written.parts) if name != "/"]


def name_descriptor(descriptor: int, path: Path) -> None:
    """Give an open file a name.

    Raises:
        FileExistsError: the name is taken.
        OSError: the kernel refused.
    """
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # With a directory's descriptor it is linkat(2) that is called, and the link of proc(5) that is followed.
        os.link(f"/proc/self/fd/{descriptor}", path.name, dst_dir_fd=directory, follow_symlinks=True)
    finally:
        os.close(directory)
