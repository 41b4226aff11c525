"""Disks as the property of the task that has them: each task has a user of its own, and its disks are given to it.

A disk may be given that the user solo5 may write, that an earlier task had, or that is a file of the allocation, which
Nomad writes as root.

What is changed is an open file, never a path: that it lies below one of the request's directories, is a regular file
and has no second name was found out about the same descriptor. Nomad makes these directories writable for every user,
so of what no task had only root's files there are given.
"""

import os
import stat
from pathlib import Path

from solo5_systemd.block.model import Disk, DiskRequest
from solo5_systemd.errors import HostError, InvalidRequestError
from solo5_systemd.procfs import below

ROOT = 0
_OWNER_MAY_WRITE = stat.S_IRUSR | stat.S_IWUSR
_SET_ID = stat.S_ISUID | stat.S_ISGID
_ALL_MAY_WRITE = stat.S_IROTH | stat.S_IWOTH


def of_allocation(request: DiskRequest, path: str) -> bool:
    """Whether the file, by its place in the file system, is one of the request's allocation."""
    return below(path, request.allocation)


def check_alone(request: DiskRequest, status: os.stat_result) -> None:
    """Check that a file of an allocation is no other file by a second name, and no device of the host.

    Raises:
        InvalidRequestError: it is.
    """
    what = f"disk {request.disk}: {request.path!r}"
    if stat.S_ISBLK(status.st_mode):
        raise InvalidRequestError(
            f"{what} is a block device in the allocation's directory: expected a regular file.",
            "The operator offers devices in plugin.solo5.config.block_paths.",
        )
    if status.st_nlink != 1:
        raise InvalidRequestError(
            f"{what} has {status.st_nlink} names: expected a file with one, since a hard link may be another's file."
        )


def check_owner(request: DiskRequest, status: os.stat_result) -> None:
    """Check that a file of an allocation is root's.

    Args:
        request: whose `allocation` holds the file.
        status: of the open file, which passed `check_alone`.

    Raises:
        InvalidRequestError: it belongs to another user.
    """
    if status.st_uid != ROOT:
        raise InvalidRequestError(
            f"disk {request.disk}: {request.path!r} belongs to user {status.st_uid}, in a directory that every user "
            "may write: expected a file of root's, or one that a task had.",
            "Nomad writes artifacts and templates as root; give another file to root: chown root FILE",
        )


def give(disk: Disk, descriptor: int, user: int) -> None:
    """Make a user the owner of a disk, which it may read and write; a disk that every user may write stays as it is.

    Args:
        disk: which was inspected, and is locked.
        descriptor: of its file or device, of any kind.
        user: that the tender will run as.

    Raises:
        HostError: its file system does not allow it.
    """
    status = os.fstat(descriptor)
    mode = stat.S_IMODE(status.st_mode)
    if mode & _ALL_MAY_WRITE == _ALL_MAY_WRITE:
        return
    wanted = mode & ~_SET_ID | _OWNER_MAY_WRITE
    path = f"/proc/self/fd/{descriptor}"
    try:
        if status.st_uid != user:
            os.chown(path, user, -1)
        if mode != wanted:
            Path(path).chmod(wanted)
    except OSError as error:
        raise HostError(
            f"disk {disk.disk}: {disk.path!r} cannot be given to the task's user: {error.strerror}."
        ) from error
