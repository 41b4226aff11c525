"""New files for disks, complete as soon as they have a name, also if their process is killed.

None is created below a mount point, where starts have created disks, while nothing is mounted there:

    /var/lib/solo5/mounts/DIGEST        a mount point, from the first creation of a disk below it

A blank disk in a directory whose file system was not mounted after a boot would look like lost data.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath

from solo5_systemd.base.atomic_file import link_unnamed, open_unnamed, replace_file, sync_directory
from solo5_systemd.base.errors import HostError, InvalidRequestError, NotFoundError, host_errors
from solo5_systemd.base.locks import closing, try_lock
from solo5_systemd.base.names import hash_of
from solo5_systemd.base.paths import is_below, mount_point_of, open_path, path_of, within
from solo5_systemd.storage.model import DiskRequest

MOUNTS = Path("/var/lib/solo5/mounts")

_UNSUPPORTED = {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOSYS}
"""Errors of O_TMPFILE on a file system without it (open(2)); EISDIR: of a kernel without it."""


@contextmanager
def find_place(request: DiskRequest) -> Iterator[tuple[int, str, bool]]:
    """Yield the directory of a disk's file (O_PATH), the path with its links resolved, and whether there is a file.

    No symbolic link is followed outside of the request's roots.

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
        exists = False
        with host_errors(f"{what} cannot be used"), suppress(FileNotFoundError):
            if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
                raise InvalidRequestError(
                    f"{what} is not a directory.", "A start creates the file of a disk in a directory."
                )
            os.lstat(path.name, dir_fd=descriptor)
            exists = True
        yield descriptor, f"{directory.rstrip('/')}/{path.name}", exists


def zeros(size: int, *, preallocate: bool = False) -> Callable[[int], None]:
    """Return what fills a new file with zeros: `preallocate` allocates its blocks; otherwise it is sparse."""

    def write(descriptor: int) -> None:
        if preallocate:
            os.posix_fallocate(descriptor, 0, size)
        os.ftruncate(descriptor, size)

    return write


def create_file(directory: int, name: str, write: Callable[[int], None]) -> bool:
    """Create a file of this process's user with mode 0600, and write it to stable storage before it gets its name.

    Args:
        directory: descriptor of its directory; O_PATH suffices.

    Returns:
        False: another file has the name; it is left as it is.

    Raises:
        OSError: the file cannot be created. Nothing is left.
    """
    temporary = ""
    try:
        descriptor = open_unnamed(within(directory, "."), 0o600)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        temporary = f".{name}.solo5-new"
        descriptor = _open_temporary(directory, temporary)
    try:
        write(descriptor)
        os.fchmod(descriptor, 0o600)
        _own(descriptor)
        os.fsync(descriptor)
        if temporary:
            os.link(temporary, name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
        else:
            link_unnamed(descriptor, within(directory, name))
    except FileExistsError:
        return False
    finally:
        if temporary:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=directory)  # noqa: PTH108 - in an open directory
        os.close(descriptor)
    sync_directory(Path(path_of(directory)))
    return True


def _own(descriptor: int) -> None:
    """Make this process's user the owner: refused where a server gives root's files to another user (root_squash)."""
    os.fchown(descriptor, os.geteuid(), -1)


def _open_temporary(directory: int, name: str) -> int:
    """Create and lock the file by a temporary name, on file systems without O_TMPFILE, such as NFS.

    One without a lock is that of a killed process, and the next creation of the same disk removes it.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    with suppress(FileNotFoundError), closing(os.open(name, flags, dir_fd=directory)) as left:
        if not try_lock(left):  # also a file of another user, who may have locked it
            raise BlockingIOError(errno.EWOULDBLOCK, "another process creates the disk now")
        os.unlink(name, dir_fd=directory)  # noqa: PTH108 - in an open directory
    descriptor = os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=directory)
    try:
        _own(descriptor)  # first: one of another user is not locked
    except OSError:
        os.close(descriptor)
        os.unlink(name, dir_fd=directory)  # noqa: PTH108 - in an open directory
        raise
    if not try_lock(descriptor):  # another creation took it for that of a killed process
        os.close(descriptor)
        raise BlockingIOError(errno.EWOULDBLOCK, "another process creates the disk now")
    return descriptor


def check_mounted(path: str, what: str) -> None:
    """Check that a disk which does not exist would not be created in the place of a file system; raises HostError.

    Its path is without symbolic links, and its directory exists.
    """
    with host_errors(f"{what}: {MOUNTS} cannot be read"):
        for record, mount in _recorded():
            if is_below(path, (mount,)) and mount_point_of(mount) != mount:
                raise HostError(
                    f"{what} does not exist, and nothing is mounted at {mount!r}: expected the file system that was "
                    "mounted there when a disk was created.",
                    f"Mount it; to create disks without it: rm {record}",
                )


def remember_mount(path: str) -> None:
    """Record the mount point above a file, on stable storage, before the file is created; raises OSError.

    Records of directories that were removed, such as those of volumes for one allocation, are removed.
    """
    mount = mount_point_of(os.path.dirname(path))  # noqa: PTH120 - of a text
    if not mount or mount in (each for _, each in _recorded()):  # the root directory is never unmounted
        return
    MOUNTS.mkdir(mode=0o700, parents=True, exist_ok=True)
    for record, each in _recorded():
        if not os.path.lexists(each):
            record.unlink(missing_ok=True)
    name = hash_of(mount, 16)
    replace_file(MOUNTS / name, os.fsencode(mount), several_writers=True, durable=True)
    sync_directory(MOUNTS.parent)


def _recorded() -> Iterator[tuple[Path, str]]:
    if MOUNTS.exists():
        for record in sorted(MOUNTS.iterdir()):
            if not record.name.startswith("."):  # one that is being written, or was by a killed process
                yield record, os.fsdecode(record.read_bytes())
