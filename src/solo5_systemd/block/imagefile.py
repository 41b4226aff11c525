"""Files and block devices behind disks: looked at before a start, and locked while their task runs.

A tender locks nothing, and two of them write one file without a word. All locks are bytes of one file in /run, so
that one descriptor can hold those of all disks of a task: it becomes the task's stdin, and the kernel lets go when
the last process that has it is gone.
"""

import asyncio
import errno
import fcntl
import hashlib
import os
import pwd
import stat
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from solo5_systemd.block.access import Person, may_write
from solo5_systemd.block.owner import check_alone, give, of_allocation, pin, pin_directory, remove_pin, unpin
from solo5_systemd.block.plan import Disk, DiskRequest, check_distinct, check_size, sector_size
from solo5_systemd.errors import HostError, InvalidRequestError, NotFoundError, TakenError
from solo5_systemd.openfile import check_place

LOCK_FILE = Path("/run/solo5/disks.lock")
USER = "solo5"

_OPEN = os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_FLOCK = struct.Struct("@hhqqi0q")  # struct flock of fcntl(2)


class ImageFiles:
    """The disks of this machine; fulfils `backends.Disks`."""

    def __init__(self, lock_file: Path = LOCK_FILE) -> None:
        self._lock_file = lock_file

    async def inspect(self, request: DiskRequest) -> Disk:
        return await asyncio.to_thread(inspect, request)  # what the path leads to may be far away, or asleep

    async def lock(self, disks: Sequence[Disk]) -> int:
        return lock(disks, file=self._lock_file)

    async def open(self, disk: Disk) -> int:
        return await asyncio.to_thread(reopen, disk)

    async def pin(self, disk: Disk) -> Disk:
        return await asyncio.to_thread(_pinned, disk) if disk.pin else disk

    async def unpin(self, disk: Disk) -> None:
        if disk.pin:
            await asyncio.to_thread(unpin, disk)


def inspect(request: DiskRequest, *, user: str = USER) -> Disk:
    """Check everything that a tender would refuse about a disk, and who may write it.

    A file that Nomad brought into the task's allocation is made the user's, where it is not writable yet.

    Args:
        request: what was asked for.
        user: as whom the tender will run.

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
        _check_user(request, path, descriptor, user)
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


def _pinned(disk: Disk) -> Disk:
    descriptor = reopen(disk)
    try:
        return pin(disk, descriptor)
    finally:
        os.close(descriptor)


def lock(disks: Sequence[Disk], *, file: Path = LOCK_FILE) -> int:
    """Lock every disk for as long as the answer, or a copy of it in any process, is open.

    Args:
        disks: those of one task.
        file: whose bytes are the locks.

    Returns:
        A descriptor, close-on-exec; duplicates of it, such as another process's stdin, keep the locks.

    Raises:
        InvalidRequestError: two disks are one file.
        TakenError: a disk is another task's.
        HostError: the lock file cannot be opened.
    """
    check_distinct(disks)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise HostError(f"the lock file of disks, {file}, cannot be opened: {error.strerror}.") from error
    try:
        for disk in disks:
            _lock(descriptor, disk)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _lock(descriptor: int, disk: Disk) -> None:
    whole = fcntl.F_WRLCK, os.SEEK_SET, _offset(disk.identity), 1, 0
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(*whole))
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise HostError(f"disk {disk.disk}: {disk.path!r} cannot be locked: {error.strerror}.") from error
        raise TakenError(
            f"disk {disk.disk}: {disk.path!r} is in use by another task: expected a disk that no task has.",
            "List the tasks: solo5ctl ps",
        ) from error


def _identity(status: os.stat_result) -> tuple[int, int]:
    return (status.st_rdev, 0) if stat.S_ISBLK(status.st_mode) else (status.st_dev, status.st_ino)


def _offset(identity: tuple[int, int]) -> int:
    """A byte of its own for each disk, among 2⁶³."""
    digest = hashlib.blake2b(struct.pack("<QQ", *identity), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


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


def _check_user(request: DiskRequest, path: str, descriptor: int, user: str) -> None:
    status = os.fstat(descriptor)
    acl = None
    with suppress(OSError):  # it has none, or its file system knows none
        acl = os.getxattr(descriptor, "system.posix_acl_access")
    person = _person(user)
    if may_write(person, owner=status.st_uid, group=status.st_gid, mode=status.st_mode, acl=acl):
        return
    if of_allocation(request, path):
        give(request, path, descriptor, person.user)
    else:
        raise HostError(
            f"disk {request.disk}: {request.path!r} cannot be written by user {user}, as whom tenders run.",
            f"Run: chown {user} {path}   or: setfacl -m u:{user}:rw {path}",
        )


def _person(user: str) -> Person:
    try:
        entry = pwd.getpwnam(user)
    except KeyError as error:
        raise HostError(f"user {user}, as whom tenders run, does not exist.", "Run: systemd-sysusers") from error
    return Person(user=entry.pw_uid, groups=os.getgrouplist(user, entry.pw_gid))
