"""Given disks: a disk becomes the property of the user of its task.

Three kinds of disks are given: those that user solo5 may write, those that an earlier task had, and files of the
allocation, which Nomad writes as root. chown(2) is applied to the checked file descriptor, never to a path. Nomad makes
the allocation's directories writable for every user: a file there that no task has had is given only if root owns it.
"""

import os
import stat
from pathlib import Path

from solo5_systemd.block.model import Disk, DiskRequest
from solo5_systemd.errors import HostError, InvalidRequestError
from solo5_systemd.files.procfs import is_below

ROOT = 0
_OWNER_MAY_WRITE = stat.S_IRUSR | stat.S_IWUSR
_SET_ID = stat.S_ISUID | stat.S_ISGID
_ALL_MAY_WRITE = stat.S_IROTH | stat.S_IWOTH


def is_in_allocation(request: DiskRequest, path: str) -> bool:
    """Return whether a resolved path lies in the request's allocation."""
    return is_below(path, request.allocation)


def check_single_link(request: DiskRequest, status: os.stat_result) -> None:
    """Check that a file of an allocation is a regular file without a second hard link.

    Raises:
        InvalidRequestError: a block device, or a file with several links.
    """
    what = f"disk {request.disk}: {request.path!r}"
    if stat.S_ISBLK(status.st_mode):
        raise InvalidRequestError(
            f"{what} is a block device in the allocation's directory: expected a regular file.",
            "The operator offers devices in plugin.solo5.config.block_paths.",
        )
    if status.st_nlink != 1:
        raise InvalidRequestError(
            f"{what} has {status.st_nlink} names: expected one, since a hard link may be the file of another user."
        )


def check_owner(request: DiskRequest, status: os.stat_result) -> None:
    """Check that root owns a file of an allocation.

    Args:
        request: the request for the file.
        status: of the open file, which has passed `check_single_link`.

    Raises:
        InvalidRequestError: another user owns it.
    """
    if status.st_uid != ROOT:
        raise InvalidRequestError(
            f"disk {request.disk}: {request.path!r} belongs to user {status.st_uid}, in a directory that every user "
            "may write: expected owner root, or the user of an earlier task.",
            "Nomad writes artifacts and templates as root; give another file to root: chown root FILE",
        )


def give(disk: Disk, descriptor: int, user: int) -> None:
    """Make a user the owner of a disk, with mode u+rw; a disk that every user may write stays as it is.

    Args:
        disk: a checked and locked disk.
        descriptor: of its file or device, O_PATH suffices.
        user: the uid of the task.

    Raises:
        HostError: chown(2) or chmod(2) fails, such as on a read-only file system.
    """
    status = os.fstat(descriptor)
    mode = stat.S_IMODE(status.st_mode)
    if mode & _ALL_MAY_WRITE == _ALL_MAY_WRITE:
        return
    new_mode = mode & ~_SET_ID | _OWNER_MAY_WRITE  # chown(2) clears set-ID bits: do not set them again
    path = f"/proc/self/fd/{descriptor}"
    try:
        if status.st_uid != user:
            os.chown(path, user, -1)
        if mode != new_mode:
            Path(path).chmod(new_mode)
    except OSError as error:
        raise HostError(
            f"disk {disk.disk}: {disk.path!r} cannot be given to the task's user: {error.strerror}."
        ) from error
