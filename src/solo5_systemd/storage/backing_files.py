"""The files and block devices behind disks: checks before a start, locks, owner changes, bind mounts."""

import asyncio
import os
import pwd
import stat
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from solo5_systemd.errors import HostError, InvalidRequestError, StartError, TakenError
from solo5_systemd.files.procfs import identity, is_exposed, open_in_thread, open_path, path_of
from solo5_systemd.sanitize import is_plain_path
from solo5_systemd.settings.model import TASK_UIDS
from solo5_systemd.storage.bind_mounts import BindMounts
from solo5_systemd.storage.file_access import Credentials, may_write
from solo5_systemd.storage.locks import LOCKS, lock, remove_stale
from solo5_systemd.storage.model import BoundDisks, Disk, DiskRequest, NewFile, check_size, sector_size
from solo5_systemd.storage.new_file import create_file, find_place
from solo5_systemd.storage.owner import ROOT, check_owner, check_single_link, give, is_in_allocation

USER = "solo5"

_OPEN = os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class ImageFiles:
    """Disks on this host; implements `backends.Disks`. System calls run in threads: a disk may be remote or spun down.

    Args:
        users: returns the uids of tasks; called for each check.
        locks: the directory of disk locks.
        mounts: the bind mounts of starts.
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
        """Check a disk before a start; see the function `inspect`."""
        return await asyncio.to_thread(inspect, request, self._users())

    async def make(self, request: DiskRequest) -> tuple[Disk, bool]:
        """Create the file of a disk; see the function `make`."""
        return await asyncio.to_thread(make, request, self._users())

    async def unmake(self, request: DiskRequest, disk: Disk) -> None:
        """Remove a file that `make` has created; see the function `unmake`."""
        await asyncio.to_thread(unmake, request, disk, self._locks)

    async def lock(self, disks: Sequence[Disk]) -> int:
        """Lock the disks of a task and return the descriptor of the lock; see `locks.lock`."""
        return await open_in_thread(lambda: lock(disks, directory=self._locks))

    async def remove_stale_locks(self) -> None:
        """Remove the lock files of disks that no process has locked."""
        await asyncio.to_thread(remove_stale, self._locks)

    async def open(self, disk: Disk) -> int:
        """Open a checked disk with O_PATH; see `reopen`."""
        return await open_in_thread(lambda: reopen(disk))

    async def change_owner(self, disk: Disk, user: int) -> None:
        """Make a task's user the owner of a checked disk; see `owner.give`."""
        await asyncio.to_thread(_give, disk, user)

    async def bind(self, disks: Sequence[Disk]) -> BoundDisks:
        """Bind disks with an exposed path below /run/solo5/binds; see `BindMounts.bind`."""
        return await asyncio.to_thread(self._mounts.bind, disks, reopen) if disks else BoundDisks(disks=())

    async def unbind(self, bound: BoundDisks) -> None:
        """Remove the bind mounts of a start."""
        if bound.directory is not None:
            await asyncio.to_thread(self._mounts.unbind, bound)

    async def check_bound(self, disks: Sequence[tuple[Disk, str]], pid: int) -> None:
        """Check the disks in a tender's mount namespace; see the function `check_bound`."""
        if disks and pid:
            await asyncio.to_thread(check_bound, disks, pid)

    async def sweep(self, *, dry_run: bool = False) -> Sequence[str]:
        """Remove the bind mounts of killed starts; see `BindMounts.sweep`."""
        return await asyncio.to_thread(self._mounts.sweep, dry_run=dry_run)


def inspect(request: DiskRequest, users: Container[int] = TASK_UIDS, *, user: str = USER) -> Disk:
    """Check a disk by the rules of tenders, and the permission of tasks to write it.

    Args:
        request: the requested disk.
        users: the uids of tasks.
        user: the user that must be able to write a disk which no task has had.

    Raises:
        InvalidRequestError: the path, sector size or file size breaks a rule of tenders; the file is neither regular
            nor a block device, lies outside the request's roots, or is an allocation's file that root does not own.
        NotFoundError: the file does not exist.
        HostError: this process cannot open it, or `user` cannot write it.
    """
    sector = sector_size(request)
    if request.create is not None and (planned := _planned(request, request.create, sector)) is not None:
        return planned
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
        exposed=is_exposed(path) or not is_plain_path(path),
    )


def _planned(request: DiskRequest, new: NewFile, sector: int) -> Disk | None:
    """Return the disk that a start would create; None if its file exists."""
    check_size(request, new.size)
    place = find_place(request)
    try:
        if place.exists:
            return None
        return Disk(
            disk=request.disk,
            path=place.path,
            sector_size=sector,
            device=None,
            identity=(0, 0),
            filesystem=os.fstatvfs(place.directory).f_fsid,
            missing=new,
        )
    finally:
        os.close(place.directory)


def make(request: DiskRequest, users: Container[int] = TASK_UIDS, *, user: str = USER) -> tuple[Disk, bool]:
    """Create the file of a disk unless it exists by now, and check it as `inspect`.

    The file appears complete, on stable storage: neither a failure nor a kill leaves a part of it.

    Args:
        request: the requested disk.
        users: the uids of tasks.
        user: the owner until the disk is given to a task; root in an allocation.

    Returns:
        The disk, and whether this call has created it.

    Raises:
        Solo5Error: as `inspect`; HostError also if it cannot be created, such as on a full or read-only file system.
    """
    made = request.create is not None and _create(request, request.create, user)
    return inspect(replace(request, create=None), users, user=user), made


def _create(request: DiskRequest, new: NewFile, user: str) -> bool:
    check_size(request, new.size)
    place = find_place(request)
    try:
        owner = ROOT if is_in_allocation(request, place.path) else _credentials(user).user
        return not place.exists and create_file(place.directory, Path(place.path).name, new, owner)
    except OSError as error:
        where = _described(request)
        raise HostError(f"{where} cannot be created with {new.size} bytes: {error.strerror}.") from error
    finally:
        os.close(place.directory)


def unmake(request: DiskRequest, disk: Disk, locks: Path = LOCKS) -> None:
    """Remove the file that `make` has created for a disk, unless another task has it by now.

    Raises:
        HostError: it cannot be removed.
    """
    try:
        held = lock([disk], directory=locks)
    except TakenError:
        return
    try:
        place = find_place(request)
        try:
            name = Path(place.path).name
            if place.exists and identity(os.lstat(name, dir_fd=place.directory)) == disk.identity:
                os.unlink(name, dir_fd=place.directory)  # noqa: PTH108 - in an open directory
        finally:
            os.close(place.directory)
    except OSError as error:
        raise HostError(f"{_described(request)} cannot be removed: {error.strerror}.") from error
    finally:
        os.close(held)


def reopen(disk: Disk) -> int:
    """Open a checked file or device with O_PATH; /proc/self/fd/N then leads to this file whatever happens to its path.

    Kind and path are compared besides the inode, whose number a new file may get after a deletion.

    Raises:
        HostError: the path leads to another file now, or to none.
    """
    try:
        descriptor = os.open(disk.path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise HostError(f"disk {disk.disk}: {disk.path!r} cannot be opened: {error.strerror}.") from error
    status = os.fstat(descriptor)
    if stat.S_ISLNK(status.st_mode) or identity(status) != disk.identity or path_of(descriptor) != disk.path:
        os.close(descriptor)
        raise HostError(f"disk {disk.disk}: {disk.path!r} was replaced during the start: expected the same file.")
    return descriptor


def check_bound(disks: Sequence[tuple[Disk, str]], pid: int) -> None:
    """Check that a started tender has the checked files at its paths; a tender that has exited passes.

    Args:
        disks: each with its path in the tender's mount namespace.
        pid: the tender's process ID.

    Raises:
        StartError: another file is at a path.
        HostError: the mount namespace cannot be read.
    """
    for disk, path in disks:
        try:
            status = Path(f"/proc/{pid}/root{path}").stat()
        except (FileNotFoundError, ProcessLookupError):
            if os.path.exists(f"/proc/{pid}/root/"):  # noqa: PTH110 - pathlib's raises for a process that ends
                raise StartError(f"disk {disk.disk}: the started task has nothing at {path}.") from None
            return
        except OSError as error:
            reason = f"{path} of the started task cannot be read: {error.strerror}"
            raise HostError(f"disk {disk.disk}: {reason}.") from error
        if identity(status) != disk.identity:
            raise StartError(
                f"disk {disk.disk}: the started task has another file than {disk.path!r}, which was checked: "
                "expected the same one.",
                "Something changed the file system during the start: start it again.",
            )


def _give(disk: Disk, user: int) -> None:
    descriptor = reopen(disk)
    try:
        give(disk, descriptor, user)
    finally:
        os.close(descriptor)


def _open(request: DiskRequest) -> tuple[int, str]:
    """Open the file after a check of its kind and place: open(2) of a device may have effects.

    Returns:
        The descriptor, and the checked path: a job may rename the file at any moment.
    """
    where = _described(request)
    found, path = open_path(where, request.path, request.roots)
    try:
        _check_kind(request, os.fstat(found).st_mode)
        if is_in_allocation(request, path):
            check_single_link(request, os.fstat(found))
        return os.open(f"/proc/self/fd/{found}", _OPEN), path  # the checked file, not what its path leads to now
    except OSError as error:
        raise HostError(f"{where} cannot be opened for reading and writing: {error.strerror}.") from error
    finally:
        os.close(found)


def _described(request: DiskRequest) -> str:
    return f"disk {request.disk}: {request.path!r}"


def _check_kind(request: DiskRequest, mode: int) -> None:
    if not stat.S_ISREG(mode) and not stat.S_ISBLK(mode):
        raise InvalidRequestError(
            f"disk {request.disk}: {request.path!r} is no disk: expected a regular file or a block device."
        )


def _check_user(request: DiskRequest, path: str, descriptor: int, users: Container[int], user: str) -> None:
    """Check the owner of a disk: a task's user, root for a file of the allocation, or `user` may write it."""
    status = os.fstat(descriptor)
    credentials = _credentials(user)
    if status.st_uid in users:
        return
    if is_in_allocation(request, path):  # not by mode: a file planted by another user may be writable for everyone
        if status.st_uid != credentials.user:
            check_owner(request, status)
        return
    acl = None
    with suppress(OSError):  # ENODATA: no ACL; EOPNOTSUPP: the file system has none
        acl = os.getxattr(descriptor, "system.posix_acl_access")
    if not may_write(credentials, owner=status.st_uid, group=status.st_gid, mode=status.st_mode, acl=acl):
        raise HostError(
            f"disk {request.disk}: {request.path!r} cannot be written by user {user}: expected write permission.",
            f"Run: chown {user} {path}   or: setfacl -m u:{user}:rw {path}",
        )


def common_owner(user: str = USER) -> int:
    """Return the uid that owns reclaimed disks, and that must be able to write a disk which no task has had.

    Raises:
        HostError: the user does not exist.
    """
    return _credentials(user).user


def _credentials(user: str) -> Credentials:
    try:
        entry = pwd.getpwnam(user)
    except KeyError as error:
        sentence = f"user {user} does not exist: expected the user of tenders."
        raise HostError(sentence, "Run: systemd-sysusers") from error
    return Credentials(user=entry.pw_uid, groups=os.getgrouplist(user, entry.pw_gid))
