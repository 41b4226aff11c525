"""Files of an allocation as disks: Nomad writes them as root, and a tender needs them as its own.

What is changed is an open file, never a path: that it lies below one of the request's directories, is a regular file
and has no second name was found out about the same descriptor.
"""

import os
import stat

from solo5_systemd.block.plan import DiskRequest
from solo5_systemd.errors import HostError, InvalidRequestError
from solo5_systemd.openfile import below

ROOT = 0
_OWNER_MAY_WRITE = stat.S_IRUSR | stat.S_IWUSR


def of_allocation(request: DiskRequest, path: str) -> bool:
    """Whether the file, by its place in the file system, is one of the request's allocation."""
    return below(path, (*request.own, *request.shared))


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


def give(request: DiskRequest, path: str, descriptor: int, user: int) -> None:
    """Make a file of an allocation the user's, readable and writable.

    Args:
        request: whose `own` or `shared` directories hold the file.
        path: of the open file.
        descriptor: of the open file, which passed `check_alone`.
        user: as whom the tender will run.

    Raises:
        InvalidRequestError: it lies where tasks share files, and is neither root's nor the user's.
        HostError: its file system does not allow it.
    """
    what = f"disk {request.disk}: {request.path!r}"
    status = os.fstat(descriptor)
    if status.st_uid not in (ROOT, user) and not below(path, request.own):
        raise InvalidRequestError(
            f"{what} belongs to user {status.st_uid}, in a directory that tasks share: expected a file of root's.",
            "Put it below the task's own directory, such as local/.",
        )
    mode = stat.S_IMODE(status.st_mode)
    try:
        os.fchown(descriptor, user, -1)
        os.fchmod(descriptor, mode & ~(stat.S_ISUID | stat.S_ISGID) | _OWNER_MAY_WRITE)
    except OSError as error:
        raise HostError(f"{what} cannot be given to the user of tenders: {error.strerror}.") from error
