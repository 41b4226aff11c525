"""Files and block devices behind disks: looked at before a start, and given to their task."""

import asyncio
import os
import pwd
import stat
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from pathlib import Path

from solo5_systemd.block.access import Person, may_write
from solo5_systemd.block.locks import LOCKS, lock, remove_stale
from solo5_systemd.block.owner import (
    check_alone,
    check_owner,
    give,
    of_allocation,
    pin,
    pin_directory,
    remove_pin,
    unpin,
)
from solo5_systemd.block.plan import SECTOR_SIZE, Disk, DiskRequest, check_size, sector_size
from solo5_systemd.errors import HostError, InvalidRequestError, NotFoundError, Solo5Error
from solo5_systemd.names import DeviceName
from solo5_systemd.openfile import check_place
from solo5_systemd.settings import TASK_UIDS

USER = "solo5"

_OPEN = os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class ImageFiles:
    """The disks of this machine; fulfils `backends.Disks`.

    Args:
        users: those that tasks have, read when a disk is looked at.
        locks: the directory of disks that are locked.
    """

    def __init__(self, users: Callable[[], Container[int]] = lambda: TASK_UIDS, locks: Path = LOCKS) -> None:
        self._users = users
        self._locks = locks

    async def inspect(self, request: DiskRequest) -> Disk:
        return await asyncio.to_thread(
            inspect, request, self._users()
        )  # what the path leads to may be far away, or asleep

    async def lock(self, disks: Sequence[Disk]) -> int:
        locking = asyncio.ensure_future(asyncio.to_thread(lock, disks, directory=self._locks))
        try:
            return await asyncio.shield(locking)
        except asyncio.CancelledError:
            locking.add_done_callback(_unlock)
            raise

    async def remove_stale_locks(self) -> None:
        await asyncio.to_thread(remove_stale, self._locks)

    async def open(self, disk: Disk) -> int:
        return await asyncio.to_thread(reopen, disk)

    async def give(self, disk: Disk, user: int) -> None:
        await asyncio.to_thread(_given, disk, user)

    async def pin(self, disk: Disk) -> Disk:
        return await asyncio.to_thread(_pinned, disk) if disk.pin else disk

    async def unpin(self, disk: Disk) -> None:
        if disk.pin:
            await asyncio.to_thread(unpin, disk)


def inspect(request: DiskRequest, users: Container[int] = TASK_UIDS, *, user: str = USER) -> Disk:
    """Check everything that a tender would refuse about a disk, and that tasks may have it.

    Args:
        request: what was asked for.
        users: those that tasks have.
        user: that stands for all of them.

    Raises:
        InvalidRequestError: path, sector size or file size do not keep a tender's rules, it is no disk at all, or it
            lies outside the request's roots, or it is a file of the allocation that may be another's.
        NotFoundError: there is no such file.
        HostError: it cannot be opened for reading and writing by us or by the user.
    """
    sector = sector_size(request)
    descriptor, path = _open(request)
    try:
        status = os.fstat(descriptor)
        check_size(request, os.lseek(descriptor, 0, os.SEEK_END))
        _check_user(request, path, descriptor, users, user)
    finally:
        os.close(descriptor)
    block = stat.S_ISBLK(status.st_mode)
    return Disk(
        disk=request.disk,
        path=path,
        sector_size=sector,
        device=(os.major(status.st_rdev), os.minor(status.st_rdev)) if block else None,
        identity=_identity(status),
        pin=pin_directory(request, path),
    )


def reopen(disk: Disk) -> int:
    """Open the file or device that `inspect` has found, by O_PATH: proc(5)'s link to it leads to no other.

    Raises:
        HostError: its path leads to another by now, or nowhere.
    """
    try:
        descriptor = os.open(disk.path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise HostError(f"disk {disk.disk}: {disk.path!r} cannot be opened: {error.strerror}.") from error
    if _identity(os.fstat(descriptor)) != disk.identity:
        os.close(descriptor)
        raise HostError(f"disk {disk.disk}: {disk.path!r} was replaced during the start: expected the same file.")
    return descriptor


def _unlock(locking: "asyncio.Future[int]") -> None:
    """Close the descriptor of a lock that came too late."""
    if not locking.cancelled() and not locking.exception():
        os.close(locking.result())


def _given(disk: Disk, user: int) -> None:
    descriptor = reopen(disk)
    try:
        give(disk, descriptor, user)
    finally:
        os.close(descriptor)


def take_back(uid: int, path: str, identity: tuple[int, int], *, user: str = USER, locks: Path = LOCKS) -> None:
    """Make a disk that a task's user was given the user's that stands for all tasks.

    It stays as it is where it has another owner by now, is another task's, has moved, or is gone.

    Args:
        uid: the task's user.
        path: of the disk when it was given.
        identity: of the disk.
        user: that stands for all tasks.
        locks: the directory of disks that are locked.
    """
    disk = Disk(disk=DeviceName("given"), path=path, sector_size=SECTOR_SIZE, device=None, identity=identity)
    with suppress(Solo5Error, OSError):
        held = [lock([disk], directory=locks)]
        try:
            held.append(reopen(disk))
            if os.fstat(held[-1]).st_uid == uid:
                os.chown(f"/proc/self/fd/{held[-1]}", _person(user).user, -1)
        finally:
            for descriptor in held:
                os.close(descriptor)


def _pinned(disk: Disk) -> Disk:
    descriptor = reopen(disk)
    try:
        return pin(disk, descriptor)
    finally:
        os.close(descriptor)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return (status.st_rdev, 0) if stat.S_ISBLK(status.st_mode) else (status.st_dev, status.st_ino)


def _open(request: DiskRequest) -> tuple[int, str]:
    """Open the file after its kind and place are checked, since a device may act on an open.

    Returns:
        The descriptor, and the one path that was checked: a job may rename the file at any moment.
    """
    where = _where(request)
    try:
        found = os.open(request.path, os.O_PATH | os.O_CLOEXEC)
        try:
            _check_kind(request, os.fstat(found).st_mode)
            path = check_place(where, found, request.roots)
            if of_allocation(request, path):
                remove_pin(request)
                check_alone(request, os.fstat(found))
            return os.open(f"/proc/self/fd/{found}", _OPEN), path  # the very one that was looked at
        finally:
            os.close(found)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError(f"{where} does not exist.") from error
    except OSError as error:
        raise HostError(f"{where} cannot be opened for reading and writing: {error.strerror}.") from error


def _where(request: DiskRequest) -> str:
    return f"disk {request.disk}: {request.path!r}"


def _check_kind(request: DiskRequest, mode: int) -> None:
    if not stat.S_ISREG(mode) and not stat.S_ISBLK(mode):
        raise InvalidRequestError(
            f"disk {request.disk}: {request.path!r} is no disk: expected a regular file or a block device."
        )


def _check_user(request: DiskRequest, path: str, descriptor: int, users: Container[int], user: str) -> None:
    """Check that tasks may have the disk: it is an earlier task's, the allocation's, or may be written by `user`."""
    status = os.fstat(descriptor)
    person = _person(user)
    if status.st_uid in users:
        return
    acl = None
    with suppress(OSError):  # it has none, or its file system knows none
        acl = os.getxattr(descriptor, "system.posix_acl_access")
    if may_write(person, owner=status.st_uid, group=status.st_gid, mode=status.st_mode, acl=acl):
        return
    if of_allocation(request, path):
        check_owner(request, path, status)
    else:
        raise HostError(
            f"disk {request.disk}: {request.path!r} cannot be written by user {user}, who stands for all tasks.",
            f"Run: chown {user} {path}   or: setfacl -m u:{user}:rw {path}",
        )


def _person(user: str) -> Person:
    try:
        entry = pwd.getpwnam(user)
    except KeyError as error:
        raise HostError(f"user {user}, as whom tenders run, does not exist.", "Run: systemd-sysusers") from error
    return Person(user=entry.pw_uid, groups=os.getgrouplist(user, entry.pw_gid))
