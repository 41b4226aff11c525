"""New files for disks, complete as soon as they have a name, also if their process is killed."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePath

from solo5_systemd.base.atomic_file import sync_directory
from solo5_systemd.base.errors import HostError, InvalidRequestError, NotFoundError
from solo5_systemd.base.locks import closing, try_lock
from solo5_systemd.base.procfs import open_path, path_of
from solo5_systemd.storage.model import DiskRequest, NewFile

_UNSUPPORTED = {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOSYS}
"""Errors of O_TMPFILE on a file system without it (open(2)); EISDIR: of a kernel without it."""

_TEMPORARY = ".{}.solo5-new"


@dataclass(frozen=True, kw_only=True)
class Place:
    """A directory, and a name in it.

    Attributes:
        directory: descriptor (O_PATH).
        path: of the file, with the links of its directory resolved.
    """

    directory: int
    path: str
    exists: bool


@contextmanager
def find_place(request: DiskRequest) -> Iterator[Place]:
    """Yield the directory of a disk's file, without following a symbolic link outside of the request's roots.

    Raises:
        InvalidRequestError: the path is no file name in a directory below the roots.
        NotFoundError: the directory does not exist.
        HostError: it cannot be opened.
    """
    path = PurePath(request.path)
    what = f"disk {request.disk}: the directory of {request.path!r}"
    if path.name in ("", ".."):
        raise InvalidRequestError(f"{request} is no path of a file.")
    try:
        descriptor, directory = open_path(what, str(path.parent), request.roots)
    except NotFoundError as error:
        raise NotFoundError(error.sentence, "A start creates the file of a disk, and no directory.") from error
    with closing(descriptor):
        try:
            os.lstat(path.name, dir_fd=descriptor)
            exists = True
        except FileNotFoundError:
            exists = False
        except NotADirectoryError as error:
            raise InvalidRequestError(f"{what} is no directory: expected one.") from error
        except OSError as error:
            raise HostError(f"{what} cannot be used: {error.strerror}.") from error
        yield Place(directory=descriptor, path=f"{directory.rstrip('/')}/{path.name}", exists=exists)


def create_file(
    directory: int, name: str, new: NewFile, owner: int, write: Callable[[int], None] | None = None
) -> bool:
    """Create a file with mode 0600, and write it to stable storage before it gets its name.

    Args:
        directory: descriptor of its directory; O_PATH suffices.
        write: writes the content to a descriptor; None: zeros.

    Returns:
        False: another file has the name; it is left as it is.

    Raises:
        OSError: the file cannot be created. Nothing is left.
    """
    try:
        descriptor = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=directory)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        return _create_named(directory, name, new, owner, write)
    try:
        _fill(descriptor, new, owner, write)
        # With dst_dir_fd, os.link calls linkat(2) with AT_SYMLINK_FOLLOW, which resolves the link in /proc/self/fd.
        os.link(f"/proc/self/fd/{descriptor}", name, dst_dir_fd=directory, follow_symlinks=True)
    except FileExistsError:
        return False
    finally:
        os.close(descriptor)
    sync_directory(Path(path_of(directory)))
    return True


def _create_named(directory: int, name: str, new: NewFile, owner: int, write: Callable[[int], None] | None) -> bool:
    """Create the file by a temporary name, on file systems without O_TMPFILE, such as NFS.

    The temporary file is locked meanwhile. One without a lock is that of a killed process, and the next creation of the
    same disk removes it.
    """
    temporary = _TEMPORARY.format(name)
    descriptor = _open_temporary(directory, temporary)
    try:
        _fill(descriptor, new, owner, write)
        os.link(temporary, name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
    except FileExistsError:
        return False
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=directory)  # noqa: PTH108 - in an open directory
        os.close(descriptor)
    sync_directory(Path(path_of(directory)))
    return True


def _open_temporary(directory: int, name: str) -> int:
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        with closing(os.open(name, flags, dir_fd=directory)) as left:
            if not try_lock(left):  # also a file of another user, who may have locked it
                raise BlockingIOError(errno.EWOULDBLOCK, "another process creates the disk now")
            os.unlink(name, dir_fd=directory)  # noqa: PTH108 - in an open directory
    except FileNotFoundError:
        pass
    descriptor = os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=directory)
    if not try_lock(descriptor):
        os.close(descriptor)
        raise BlockingIOError(errno.EWOULDBLOCK, "another process creates the disk now")
    return descriptor


def _fill(descriptor: int, new: NewFile, owner: int, write: Callable[[int], None] | None) -> None:
    if new.preallocate:
        os.posix_fallocate(descriptor, 0, new.size)
    os.ftruncate(descriptor, new.size)
    if write is not None:
        write(descriptor)
    os.fchmod(descriptor, 0o600)
    os.fchown(descriptor, owner, -1)
    os.fsync(descriptor)
