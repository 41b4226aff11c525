"""Disks as the property of the task that has them: each task has a user of its own, and its disks are given to it.

A disk may be given that the user solo5 may write, that an earlier task had, or that is a file of the allocation, which
Nomad writes as root.

What is changed is an open file, never a path: that it lies below one of the request's directories, is a regular file
and has no second name was found out about the same descriptor.

systemd binds a disk by a path, and follows links. Where the tasks of an allocation share a directory, one of them could
have that path lead to another allocation's disk. Such a file has a second name while its unit starts, in the task's own
directory.
"""

import os
import stat
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from solo5_systemd.block.plan import Disk, DiskRequest
from solo5_systemd.errors import HostError, InvalidRequestError
from solo5_systemd.names import DeviceName
from solo5_systemd.openfile import below

ROOT = 0
_OWNER_MAY_WRITE = stat.S_IRUSR | stat.S_IWUSR
_SET_ID = stat.S_ISUID | stat.S_ISGID
_ALL_MAY_WRITE = stat.S_IROTH | stat.S_IWOTH


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


def check_owner(request: DiskRequest, path: str, status: os.stat_result) -> None:
    """Check that a file of an allocation is root's, where tasks share files.

    Args:
        request: whose `own` or `shared` directories hold the file.
        path: of the open file.
        status: of the open file, which passed `check_alone`.

    Raises:
        InvalidRequestError: it belongs to another user.
    """
    if status.st_uid != ROOT and not below(path, request.own):
        raise InvalidRequestError(
            f"disk {request.disk}: {request.path!r} belongs to user {status.st_uid}, in a directory that tasks share: "
            "expected a file of root's.",
            "Put it below the task's own directory, such as local/.",
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


def pin_directory(request: DiskRequest, path: str) -> str | None:
    """The directory for a second name of a file that lies where tasks share files; None for any other."""
    return request.own[0] if below(path, request.shared) and request.own else None


def pin(disk: Disk, descriptor: int) -> Disk:
    """Give an open file its second name.

    Returns:
        The disk by that name.

    Raises:
        HostError: its file system has no hard links, or the directory is on another.
    """
    assert disk.pin is not None  # noqa: S101 - the caller looked
    unpin(disk)
    try:
        directory = os.open(disk.pin, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # With a directory's descriptor it is linkat(2) that is called, and the link of proc(5) that is followed.
            os.link(f"/proc/self/fd/{descriptor}", _pin_name(disk.disk), dst_dir_fd=directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise HostError(f"disk {disk.disk}: {disk.path!r} cannot be linked to {disk.pin}: {error.strerror}.") from error
    return replace(disk, path=str(Path(disk.pin, _pin_name(disk.disk))))


def unpin(disk: Disk) -> None:
    """Take the second name away, if it is there."""
    if disk.pin is not None:
        _remove(disk.pin, disk.disk)


def remove_pin(request: DiskRequest) -> None:
    """Take away what a driver that was killed during the task's last start has left."""
    for directory in request.own:
        _remove(directory, request.disk)


def _remove(directory: str, disk: DeviceName) -> None:
    with suppress(OSError):
        Path(directory, _pin_name(disk)).unlink()


def _pin_name(disk: DeviceName) -> str:
    return f".solo5-{disk}"
