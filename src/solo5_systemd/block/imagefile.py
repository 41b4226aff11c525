"""Files and block devices behind disks: looked at before a start, and given to their task."""

import asyncio
import os
import pwd
import stat
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from pathlib import Path

from solo5_systemd.block.access import Person, may_write
from solo5_systemd.block.bindmount import BindMounts
from solo5_systemd.block.locks import LOCKS, lock, remove_stale
from solo5_systemd.block.model import Bound, Disk, DiskRequest, check_size, sector_size
from solo5_systemd.block.owner import check_alone, check_owner, give, of_allocation
from solo5_systemd.errors import HostError, InvalidRequestError, StartError
from solo5_systemd.procfs import exposed, find, identity, place
from solo5_systemd.settings import TASK_UIDS
from solo5_systemd.text import bare

USER = "solo5"

_OPEN = os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class ImageFiles:
    """The disks of this machine; fulfils `backends.Disks`.

    Args:
        users: those that tasks have, read when a disk is looked at.
        locks: the directory of disks that are locked.
        mounts: bind mounts for starts.
    """

    def __init__(
        self,
        users: Callable[[], Container[int]] = lambda: TASK_UIDS,
        locks: Path = LOCKS,
        mounts: BindMounts | None = None,
    ) -> None:
        self._users = users
        self._locks = locks
        self._mounts = mounts or BindMounts()

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

    async def bind(self, disks: Sequence[Disk]) -> Bound:
        return await asyncio.to_thread(self._mounts.bind, disks, reopen) if disks else Bound(disks=())

    async def unbind(self, bound: Bound) -> None:
        if bound.directory is not None:
            await asyncio.to_thread(self._mounts.unbind, bound)

    async def check_bound(self, disks: Sequence[tuple[Disk, str]], pid: int) -> None:
        if disks and pid:
            await asyncio.to_thread(check_bound, disks, pid)

    async def sweep(self, *, dry_run: bool = False) -> Sequence[str]:
        return await asyncio.to_thread(self._mounts.sweep, dry_run=dry_run)


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
        filesystem = os.fstatvfs(descriptor).f_fsid
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
        identity=identity(status),
        filesystem=filesystem,
        exposed=exposed(path) or not bare(path),
    )


def reopen(disk: Disk) -> int:
    """Open the file or device that `inspect` has found, by O_PATH: proc(5)'s link to it leads to no other.

    Kind and path are compared, too: a file that was deleted leaves its inode number to another one.

    Raises:
        HostError: its path leads to another by now, or nowhere.
    """
    try:
        descriptor = os.open(disk.path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise HostError(f"disk {disk.disk}: {disk.path!r} cannot be opened: {error.strerror}.") from error
    status = os.fstat(descriptor)
    if stat.S_ISLNK(status.st_mode) or identity(status) != disk.identity or place(descriptor) != disk.path:
        os.close(descriptor)
        raise HostError(f"disk {disk.disk}: {disk.path!r} was replaced during the start: expected the same file.")
    return descriptor


def check_bound(disks: Sequence[tuple[Disk, str]], pid: int) -> None:
    """Check that a tender has the files that were checked.

    Args:
        disks: each with its path in the tender's mount namespace.
        pid: of the tender; one that has ended has no files.

    Raises:
        StartError: it has another file.
        HostError: its mount namespace cannot be read.
    """
    for disk, path in disks:
        try:
            status = Path(f"/proc/{pid}/root{path}").stat()
        except (FileNotFoundError, ProcessLookupError):
            if os.path.exists(f"/proc/{pid}/root/"):  # noqa: PTH110 - pathlib's raises for a process that ends
                raise StartError(f"disk {disk.disk}: the started task has nothing at {path}.") from None
            return
        except OSError as error:
            raise HostError(f"disk {disk.disk}: what the task has of it cannot be read: {error.strerror}.") from error
        if identity(status) != disk.identity:
            raise StartError(
                f"disk {disk.disk}: the started task has another file than {disk.path!r}, which was checked: "
                "expected the same one.",
                "Something changed the file system during the start: start it again.",
            )


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


def _open(request: DiskRequest) -> tuple[int, str]:
    """Open the file after its kind and place are checked, since a device may act on an open.

    Returns:
        The descriptor, and the one path that was checked: a job may rename the file at any moment.
    """
    where = _where(request)
    found, path = find(where, request.path, request.roots)
    try:
        _check_kind(request, os.fstat(found).st_mode)
        if of_allocation(request, path):
            check_alone(request, os.fstat(found))
        return os.open(f"/proc/self/fd/{found}", _OPEN), path  # the very one that was looked at
    except OSError as error:
        raise HostError(f"{where} cannot be opened for reading and writing: {error.strerror}.") from error
    finally:
        os.close(found)


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
    if of_allocation(request, path):  # whatever others may write: the owner keeps it open, and may have put it there
        if status.st_uid != person.user:
            check_owner(request, status)
        return
    acl = None
    with suppress(OSError):  # it has none, or its file system knows none
        acl = os.getxattr(descriptor, "system.posix_acl_access")
    if not may_write(person, owner=status.st_uid, group=status.st_gid, mode=status.st_mode, acl=acl):
        raise HostError(
            f"disk {request.disk}: {request.path!r} cannot be written by user {user}, who stands for all tasks.",
            f"Run: chown {user} {path}   or: setfacl -m u:{user}:rw {path}",
        )


def common_owner(user: str = USER) -> int:
    """Return the uid that stands for all tasks.

    Raises:
        HostError: the user does not exist.
    """
    return _person(user).user


def _person(user: str) -> Person:
    try:
        entry = pwd.getpwnam(user)
    except KeyError as error:
        raise HostError(f"user {user}, as whom tenders run, does not exist.", "Run: systemd-sysusers") from error
    return Person(user=entry.pw_uid, groups=os.getgrouplist(user, entry.pw_gid))
