"""The files and block devices behind disks: checks before a start, locks, owner changes, bind mounts."""

import asyncio
import os
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from solo5_systemd.base.concurrency import in_thread
from solo5_systemd.base.errors import HostError, InvalidRequestError, NotFoundError, TakenError, host_errors
from solo5_systemd.base.locks import closing
from solo5_systemd.base.mounts import mount_memory
from solo5_systemd.base.paths import (
    READ_UNTRUSTED,
    existing,
    identity,
    is_below,
    is_exposed,
    mount_point_of,
    open_in_thread,
    open_path,
)
from solo5_systemd.base.sanitize import is_plain_path
from solo5_systemd.settings.node_limits import OPERATOR, Tenant
from solo5_systemd.storage.archive import size_of
from solo5_systemd.storage.archive_files import scan
from solo5_systemd.storage.bind_mounts import BINDS, StartDirectories, bind, check_bound, reopen
from solo5_systemd.storage.block_devices import devices_of
from solo5_systemd.storage.locks import lock, remove_stale
from solo5_systemd.storage.model import (
    COPIES,
    Backing,
    Disk,
    DiskRequest,
    GivenDisk,
    check_size,
)
from solo5_systemd.storage.new_file import check_mounted, create_file, find_place, remember_mount, zeros
from solo5_systemd.storage.owner import READ, READ_WRITE, check_single_link, check_title, give
from solo5_systemd.storage.private_disks import MEMORY, copied_bytes, make_archive, make_copy, planned_disk
from solo5_systemd.storage.quotas import DiskClaims

_OPEN = os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class ImageFiles:
    """Disks on this host. System calls run in threads: a disk may be remote or spun down."""

    def __init__(self, claims: DiskClaims | None = None) -> None:
        self._claims = claims or DiskClaims()
        self._binds = StartDirectories(BINDS)
        self._copies = StartDirectories(Path(COPIES))
        self._archives = StartDirectories(MEMORY, mount=mount_memory)
        self._directories = (self._binds, self._copies, self._archives)

    @in_thread
    def inspect(self, request: DiskRequest, tenant: Tenant) -> Disk:
        """Check a disk before a start, whose file the tenant may have to create; see the function `inspect`."""
        disk = inspect(request)
        if request.archive is not None:  # in memory, without devices or a quota
            return disk
        if request.create is not None and disk.planned and not disk.is_private:
            self._claims.check(disk.path, disk.size, f"disk {request.disk}", tenant)
        if request.private:
            disk = replace(disk, copied=copied_bytes(disk, self._copies.directory))
        return with_devices(disk, request)

    @in_thread
    def make(self, request: DiskRequest, planned: Disk, tenant: Tenant) -> tuple[Disk, bool]:
        """Create the file of a disk, or a private disk; return whether its file is new, and stays after the task."""
        if request.archive is not None:
            return make_archive(request, self._archives), False
        created = False
        if request.private:
            original = inspect(replace(request, private=False, create=None), how=READ)
            disk = make_copy(request, original, self._copies, planned)
        else:
            disk, created = make(request, self._claims, tenant)
        return with_devices(disk, request), created

    def descriptors(self, disks: Iterable[Disk]) -> Sequence[int]:
        """Return the descriptors with the locks of the directories that `release` removes."""
        return [descriptor for each in self._directories for descriptor in each.held(disks).values()]

    async def release(self, disks: Sequence[Disk]) -> None:
        """Remove the names that private disks, or bind mounts, need during a start; systemd's own mounts stay."""
        for each in self._directories:
            for path in each.held(disks):
                await asyncio.to_thread(each.remove, path)

    @in_thread
    def unmake(self, request: DiskRequest, disk: Disk) -> None:
        """Remove the file that `make` has created for a disk, unless another task has it by now; raises HostError."""
        errors = host_errors(f"{request} cannot be removed")
        with errors, suppress(TakenError), closing(lock([disk])), find_place(request) as (directory, path, exists):
            name = Path(path).name
            # Another file may have the name now.
            if exists and identity(os.lstat(name, dir_fd=directory)) == disk.identity:
                os.unlink(name, dir_fd=directory)  # noqa: PTH108 - in an open directory

    async def lock(self, disks: Sequence[Disk], task: str = "") -> int:
        """Lock the disks of a task and return the descriptor of the lock; see `locks.lock`."""
        return await open_in_thread(lambda: lock(disks, task=task, unused=True))

    @in_thread
    def remove_stale_locks(self) -> None:
        """Remove the lock files of disks that no process has locked."""
        remove_stale()

    async def open(self, disk: Disk) -> int:
        """Open a checked disk with O_PATH; see `reopen`."""
        return await open_in_thread(lambda: reopen(disk))

    @in_thread
    def change_owner(self, disk: Disk, user: int) -> int:
        """Make a task's user the owner of a checked disk, which is locked, and return the former one; see `give`."""
        with closing(reopen(disk)) as descriptor:
            return give(disk, descriptor, user)

    async def bind(self, disks: Sequence[Disk]) -> Sequence[Disk]:
        """Bind disks with an exposed path below /run/solo5/binds, until `release`; see `bind_mounts.bind`."""
        if not any(disk.exposed for disk in disks):
            return disks
        return await asyncio.to_thread(bind, disks, self._binds)

    async def check_bound(self, disks: Sequence[tuple[Disk, str]], pid: int) -> None:
        """Check the disks in a tender's mount namespace, unless it has ended (`pid` 0); see `check_bound`."""
        if disks and pid:
            await asyncio.to_thread(check_bound, disks, pid)

    @in_thread
    def sweep(self, *, dry_run: bool = False) -> Sequence[str]:
        """Remove the bind mounts and private disks of killed starts; see `StartDirectories.sweep`."""
        return [path for each in self._directories for path in each.sweep(dry_run=dry_run)]


def inspect(request: DiskRequest, *, how: int = READ_WRITE) -> Disk:
    """Check a disk by the rules of tenders, and the title of the task to it (`check_title`, also for `how`).

    Raises:
        InvalidRequestError: the path, sector size or file size breaks a rule of tenders; the file is neither regular
            nor a block device, lies outside the request's roots, or may be another tenant's.
        NotFoundError: the file does not exist.
        HostError: this process cannot open it, or the operator has not marked it for tasks.
    """
    if request.archive is not None:
        return replace(planned_disk(request), size=size_of(request, [each.size for each in scan(request)]))
    how = READ if request.private else how
    if request.create is not None and (planned := _planned(request, request.create)) is not None:
        return planned
    opened, path = _open(request, how)
    with closing(opened) as descriptor:
        status = os.fstat(descriptor)
        filesystem = os.fstatvfs(descriptor).f_fsid
        check_size(f"{request} has", os.lseek(descriptor, 0, os.SEEK_END), request.sector_size)
        owner, holder = check_title(request, path, descriptor, how)
    block = stat.S_ISBLK(status.st_mode)
    if request.private:
        return replace(planned_disk(request, path), size=status.st_size)
    mount = ""
    with suppress(OSError):  # it was replaced just now, which `reopen` finds
        mount = mount_point_of(path)
    return Disk(
        disk=request.disk,
        path=path,
        sector_size=request.sector_size,
        device=(os.major(status.st_rdev), os.minor(status.st_rdev)) if block else None,
        identity=identity(status),
        size=status.st_size,
        exposed=is_exposed(path) or not is_plain_path(path),
        backing=Backing.DEVICE if block else Backing.FILE if request.name is None else Backing.NAMED,
        given=GivenDisk(path, *identity(status), filesystem, mount, owner),
        holder=holder,
    )


def _planned(request: DiskRequest, size: int) -> Disk | None:
    """Return the disk that a start would create; None if its file exists."""
    check_size(f"{request} has", size, request.sector_size)
    with find_place(request) as (_, path, exists):
        if exists:
            return None
        check_mounted(path, str(request))
        return Disk(
            disk=request.disk,
            path=path,
            sector_size=request.sector_size,
            size=size,
            backing=Backing.FILE if request.name is None else Backing.NAMED,
        )


def make(request: DiskRequest, claims: DiskClaims | None = None, tenant: Tenant = OPERATOR) -> tuple[Disk, bool]:
    """Create the file of a disk unless it exists by now, and check it as `inspect`; return whether it is new.

    Raises:
        Solo5Error: as `inspect`; HostError also if it cannot be created, such as on a full or read-only file system, or
            beyond a quota.
    """
    created = False
    if (size := request.create) is not None:
        check_size(f"{request} has", size, request.sector_size)
        errors = host_errors(f"{request} cannot be created with {size} bytes")
        with errors, find_place(request) as (directory, path, exists):
            if not exists:
                check_mounted(path, str(request))
                remember_mount(path)
                claims = claims or DiskClaims()
                with claims.admitted(path, size, size, f"disk {request.disk}", tenant):
                    created = create_file(directory, Path(path).name, zeros(size))
    return inspect(replace(request, create=None)), created


def with_devices(disk: Disk, request: DiskRequest) -> Disk:
    """Return a disk with the I/O limits of its request and the devices under it; none where they are not known."""
    try:
        flags = os.O_PATH | os.O_CLOEXEC
        with closing(os.open(existing(Path(disk.path)), flags) if disk.planned else reopen(disk)) as descriptor:
            devices = devices_of(descriptor)
    except (OSError, HostError):  # the device was removed, or the file replaced just now: limits are refused
        devices = {}
    return replace(disk, io=request.io, devices=devices)


def _open(request: DiskRequest, how: int) -> tuple[int, str]:
    """Open the file after a check of its kind and place: open(2) of a device may have effects.

    And return the checked path, since a job may rename the file at any moment.
    """
    try:
        found, path = open_path(str(request), request.path, request.roots)
    except InvalidRequestError as error:
        is_missing = isinstance(error.__cause__, FileNotFoundError) and not os.path.lexists(request.path)
        if request.name is not None and is_missing:
            raise NotFoundError(
                f"disk {request.disk}: no disk is named {request.name!r}.",
                f"Create it: solo5ctl disk create {request.name} SIZE",
            ) from error
        raise
    purpose, flags = ("reading and writing", _OPEN) if how == READ_WRITE else ("reading", READ_UNTRUSTED)
    with closing(found), host_errors(f"{request} cannot be opened for {purpose}"):
        mode = os.fstat(found).st_mode
        if how == READ and not stat.S_ISREG(mode):
            raise InvalidRequestError(f"{request} cannot be copied for one run: expected a regular file.")
        if not stat.S_ISREG(mode) and not stat.S_ISBLK(mode):
            raise InvalidRequestError(f"{request} is no disk: expected a regular file or a block device.")
        if is_below(path, request.allocation):
            check_single_link(request, os.fstat(found))
        return os.open(f"/proc/self/fd/{found}", flags), path  # the checked file, not what its path resolves to now
