"""Private disks, which exist for one run: a copy of a file, or an archive of files in memory.

Each has a name during the start only, in a directory of the start: the unit's mount keeps the file afterwards.
"""

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from solo5_systemd.base.atomic_file import open_unnamed
from solo5_systemd.base.copies import can_share, copy_data, share
from solo5_systemd.base.errors import HostError
from solo5_systemd.base.procfs import identity
from solo5_systemd.base.sanitize import MAX_QUOTE, bounded
from solo5_systemd.storage.archive_files import write_archive
from solo5_systemd.storage.locks import lock_shared
from solo5_systemd.storage.model import (
    COPIES,
    ArchiveRequest,
    Backing,
    Disk,
    DiskRequest,
    MadeDisk,
    check_size,
    sector_size,
)
from solo5_systemd.storage.overlaps import check_unused
from solo5_systemd.storage.same_disk import reopen
from solo5_systemd.storage.start_directories import StartDirectories

ARCHIVES = Path("/run/solo5/archives")
MEMORY = Path("/run/solo5/memory")


def planned_copy(request: DiskRequest, source: str) -> Disk:
    """Return the private copy of a file that a start would make."""
    return _planned(request, COPIES, Backing.COPY, source)


def copied_bytes(disk: Disk, directory: Path) -> int:
    """Return the bytes that a private copy below a directory has to copy; 0: the file system shares them."""
    place = next(each for each in (directory, *directory.parents) if each.is_dir())
    with suppress(OSError):  # the file was replaced just now, which `make_copy` finds
        source = os.open(disk.source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            target = open_unnamed(place, 0o600)
            try:
                return 0 if can_share(source, target) else os.fstat(source).st_blocks * 512
            finally:
                os.close(target)
        finally:
            os.close(source)
    return 0


def make_copy(request: DiskRequest, original: Disk, copies: StartDirectories, locks: Path, planned: Disk) -> MadeDisk:
    """Make a private copy of a file, which has a name until `ImageFiles.release`.

    The file has a shared lock meanwhile: any number of starts copy it at a time, and no task writes it.

    Args:
        request: the requested disk.
        original: the file, checked as a disk of its own.
        copies: the directories of private copies.
        locks: the directory of disk locks.
        planned: the disk as it was inspected: its size and the bytes to copy have been admitted.

    Raises:
        TakenError: a task has the file.
        HostError: it cannot be copied, or has become larger.
    """
    check_unused(original)
    held = lock_shared(original, directory=locks)
    try:
        made = copies.make()
        try:
            path = made.files / request.disk
            _copy(request, original, path, planned)
            disk = replace(
                planned_copy(request, original.path),
                path=str(path),
                identity=identity(path.stat()),
                size=path.stat().st_size,
                filesystem=os.statvfs(path).f_fsid,
                planned=False,
            )
        except BaseException:
            copies.remove(made.path, made.descriptor)
            raise
    finally:
        os.close(held)
    return MadeDisk(disk=disk, directory=made.path, descriptor=made.descriptor)


def _copy(request: DiskRequest, original: Disk, path: Path, planned: Disk) -> None:
    where = f"disk {request.disk}: {request.path!r}"
    found = reopen(original)
    try:
        source = os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            target = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                status = os.fstat(source)
                if status.st_size > planned.size:
                    raise _has_grown(where, status.st_size, planned.size)
                if share(source, target):
                    return
                if (data := status.st_blocks * 512) > planned.copied:
                    raise _has_grown(where, data, planned.copied)
                copy_data(source, target, status.st_size, hashed=False)
            finally:
                os.close(target)
        finally:
            os.close(source)
    except OSError as error:
        raise HostError(f"{where} cannot be copied to {path.parents[2]}: {error.strerror}.") from error
    finally:
        os.close(found)


def _has_grown(where: str, size: int, planned: int) -> HostError:
    return HostError(
        f"{where} has {size} bytes to copy by now: expected {planned}, as it was checked.",
        "Another program changes the file: end it, then start the task again.",
    )


def planned_archive(request: DiskRequest, archive: ArchiveRequest) -> Disk:
    """Return the archive that a start would make; its size is not known yet."""
    names = [each.name or each.path for each in archive.members] or [f"credential {archive.credential}"]
    return _planned(request, MEMORY, Backing.ARCHIVE, bounded(", ".join(names), MAX_QUOTE))


def _planned(request: DiskRequest, directory: Path | str, backing: Backing, source: str) -> Disk:
    return Disk(
        disk=request.disk,
        path=f"{directory}/{request.disk}",
        sector_size=sector_size(request),
        device=None,
        identity=(0, 0),
        planned=True,
        backing=backing,
        source=source,
    )


def make_archive(request: DiskRequest, archive: ArchiveRequest, archives: StartDirectories) -> MadeDisk:
    """Write an archive to a file in memory, which has a name until `ImageFiles.release`.

    Raises:
        Solo5Error: as `archive_files.write_archive`.
    """
    made = archives.make()
    try:
        path = made.files / request.disk
        target = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            sha256 = write_archive(request, archive, target)
            status, filesystem = os.fstat(target), os.fstatvfs(target).f_fsid
            check_size(request, status.st_size)
        finally:
            os.close(target)
    except OSError as error:
        archives.remove(made.path, made.descriptor)
        raise HostError(f"disk {request.disk}: its archive cannot be written: {error.strerror}.") from error
    except BaseException:
        archives.remove(made.path, made.descriptor)
        raise
    disk = replace(
        planned_archive(request, archive),
        path=str(path),
        identity=identity(status),
        size=status.st_size,
        filesystem=filesystem,
        planned=False,
        sha256=sha256,
        sources=request,
    )
    return MadeDisk(disk=disk, directory=made.path, descriptor=made.descriptor)
