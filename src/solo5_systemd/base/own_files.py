"""Files that are root's word: configuration, and programs that root executes.

So is every directory and every link on the way, from `/` on (docs/decisions/way-to-configuration.md): nobody else can
change the way between the check and the read.
"""

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from solo5_systemd.base.errors import SettingsError
from solo5_systemd.base.locks import closing
from solo5_systemd.base.paths import OTHERS_MAY_WRITE, version_of, walk

ROOT = 0
TOP = ""
"""The path above which nothing is checked. Fast tests, whose directories are below /tmp, set both."""

MOUNTS = Path("/proc/self/mountinfo")
_NULL = os.makedev(1, 3)
_FUSE = re.compile(r" - fuse\S* .*\buser_id=([0-9]+)")
_READS = 3
"""Attempts to read a file that is written at the same time."""


def read_own(path: Path | str, most: int) -> tuple[bytes, bool]:
    """Return the content of a file that nobody but root can change, and whether every user may read it.

    The file did not change while it was read.

    Args:
        path: links of root's are followed.
        most: bytes.

    Raises:
        SettingsError: a user other than root can change it, or which file it is; it is no regular file, too large, or
            cannot be read.
    """
    for _ in range(_READS):
        with _opened(path) as (place, is_public):
            before = os.fstat(place)
            if not stat.S_ISREG(before.st_mode):
                raise SettingsError(f"{path} is not a regular file.", "Remove it, or replace it by a file.")
            if before.st_size > most:
                raise SettingsError(f"{path} has {before.st_size} bytes: expected at most {most}.")
            with open(f"/proc/self/fd/{place}", "rb") as file:  # noqa: PTH123 - which is open with O_PATH
                content = file.read(most + 1)
            # Else it was written meanwhile, and is read again.
            if version_of(before) == version_of(os.fstat(place)) and len(content) == before.st_size:
                return content, is_public
    raise SettingsError(f"{path} changes while it is read: expected a file that is written once, and renamed.")


def list_own(directory: Path) -> list[str]:
    """Return the names in a directory that nobody but root can change; none if it does not exist.

    Raises:
        SettingsError: a user other than root can change it, or which directory it is; it cannot be read.
    """
    if not os.path.lexists(directory):  # nothing is read, so it matters not who can make it
        return []
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    with _opened(directory) as (place, _), closing(os.open(".", flags, dir_fd=place)) as listed:
        return os.listdir(listed)  # noqa: PTH208 - of a descriptor


def check_own(path: Path) -> None:
    """Check that nobody but root can change a file or directory, or which one it is.

    Raises:
        SettingsError: a user other than root can; or it does not exist.
    """
    with _opened(path):
        pass


def is_mask(path: Path) -> bool:
    """Return whether a path is a link to /dev/null that root has made; another user's does not count."""
    if not path.is_symlink():
        return False
    try:
        with _opened(path) as (place, _):
            return _is_null(os.fstat(place))
    except SettingsError:
        return False


@contextmanager
def _opened(path: Path | str) -> Iterator[tuple[int, bool]]:
    """Open a path with O_PATH, and yield the descriptor and whether every user may read the file.

    Raises:
        SettingsError: a user other than root can change it or a part of its way, or an OSError was raised.
    """
    is_public, device, mounter = True, -1, ROOT

    def visit(at: str, status: os.stat_result, above: os.stat_result | None, is_last: bool) -> None:
        nonlocal is_public, device, mounter
        mode = status.st_mode
        if status.st_dev != device:  # within one file system the mounter is the same
            device, mounter = status.st_dev, ROOT if above is None else _mounter(status.st_dev)
        if at.startswith(TOP):
            _check(path, at, status, mounter)
            is_public &= stat.S_ISLNK(mode) or bool(mode & (stat.S_IROTH if is_last else stat.S_IXOTH))

    try:
        with closing(walk(str(path), visit)[0]) as opened:
            yield opened, is_public
    except OSError as error:
        reason = "the link leads nowhere" if error.errno == errno.ENOENT and Path(path).is_symlink() else error.strerror
        raise SettingsError(f"{path} cannot be read: {reason}.") from error


def _mounter(device: int) -> int:
    """Return who has mounted a file system: one of FUSE has what owners and modes a program of that user's reports."""
    number = f" {os.major(device)}:{os.minor(device)} "
    lines = MOUNTS.read_text(errors="surrogateescape").splitlines()
    users = (int(match[1]) for line in lines if number in line and (match := _FUSE.search(line)))
    return next(users, ROOT)


def _check(path: Path | str, entry: str, status: os.stat_result, mounter: int) -> None:
    is_link = stat.S_ISLNK(status.st_mode)
    if status.st_uid != ROOT or mounter != ROOT:  # what FUSE reports as root's is as its mounter wants it
        who = f"user {mounter if status.st_uid == ROOT else status.st_uid}"
    # The mode of a link has no meaning, and /dev/null no content.
    elif is_link or _is_null(status) or not status.st_mode & OTHERS_MAY_WRITE:
        return
    else:
        who = "every user" if status.st_mode & stat.S_IWOTH else f"group {status.st_gid} or an ACL's users"
    subject = f"{path} is refused: {entry}" if entry != str(path) else entry
    raise SettingsError(
        f"{subject} may be changed by {who}: expected it to be root's, and writable by nobody else.",
        f"Check its content, then: chown {f'-h root: {entry}' if is_link else f'root: {entry}; chmod go-w {entry}'}",
    )


def _is_null(status: os.stat_result) -> bool:
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == _NULL
