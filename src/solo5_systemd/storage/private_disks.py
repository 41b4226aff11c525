"""Private disks, which exist for one run: a copy of a file, or an archive of files in memory.

Each has a name during the start only, in a directory of the start: the unit's mount keeps the file afterwards.
"""

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from solo5_systemd.base.atomic_file import open_unnamed
from solo5_systemd.base.errors import HostError, host_errors
from solo5_systemd.base.file_copies import can_share, copy_data, share
from solo5_systemd.base.locks import closing
from solo5_systemd.base.paths import existing, identity
from solo5_systemd.base.sanitize import MAX_QUOTE, bounded
from solo5_systemd.storage.archive_files import write_archive
from solo5_systemd.storage.bind_mounts import CHANGED, StartDirectories, reopen
from solo5_systemd.storage.locks import lock_shared, name_of
from solo5_systemd.storage.model import COPIES, Backing, Disk, DiskRequest

MEMORY = Path("/run/solo5/memory")


def planned_disk(request: DiskRequest, source: str = "") -> Disk:
    """Return the private disk that a start would make, of a source or an archive; its size is not known yet."""
    directory, backing = COPIES, Backing.COPY
    if request.archive is not None:
        directory, backing = str(MEMORY), Backing.ARCHIVE
        names = [name or path for name, path in request.archive.members]
        source = bounded(", ".join(names or [f"credential {request.archive.credential}"]), MAX_QUOTE)
    return Disk(
        disk=request.disk,
        path=f"{directory}/{request.disk}",
        sector_size=request.sector_size,
        backing=backing,
        source=source,
    )


def copied_bytes(disk: Disk, directory: Path) -> int:
    """Return the bytes that a private copy below a directory has to copy; 0: the file system shares them."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with (
        suppress(OSError),  # the file was replaced just now, which `make_copy` finds
        closing(os.open(disk.source, flags)) as source,
        closing(open_unnamed(existing(directory), 0o600)) as target,
    ):
        return 0 if can_share(source, target) else os.fstat(source).st_blocks * 512
    return 0


def make_copy(request: DiskRequest, original: Disk, copies: StartDirectories, planned: Disk) -> Disk:
    """Make a private copy of a file, which has a name until `ImageFiles.release`.

    The file has a shared lock meanwhile: any number of starts copy it at a time, and no task writes it.

    Raises:
        TakenError: a task has the file.
        HostError: it cannot be copied, or has more bytes than `planned`, which have been admitted.
    """
    with closing(lock_shared(original)), copies.made() as made:
        path = made / request.disk
        with (
            host_errors(f"{request} cannot be copied to {path.parents[1]}"),
            closing(reopen(original)) as found,
            closing(os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_CLOEXEC)) as source,
            closing(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)) as target,
        ):
            status = os.fstat(source)
            if status.st_size > planned.size:
                raise _has_grown(request, status.st_size, planned.size)
            if not share(source, target):
                if (data := status.st_blocks * 512) > planned.copied:
                    raise _has_grown(request, data, planned.copied)
                copy_data(source, target, status.st_size, hashed=False)
        return _made(planned_disk(request, original.path), path)


def _has_grown(request: DiskRequest, size: int, planned: int) -> HostError:
    return HostError(f"{request} has {size} bytes to copy by now: expected {planned}, as it was checked.", CHANGED)


def make_archive(request: DiskRequest, archives: StartDirectories) -> Disk:
    """Write an archive to a file in memory, which has a name until `ImageFiles.release`; raises as `write_archive`."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with host_errors(f"disk {request.disk}: its archive cannot be written"), archives.made() as made:
        path = made / request.disk
        with closing(os.open(path, flags, 0o600)) as target:
            sha256 = write_archive(request, target)
        is_again = request.archive is not None and not request.archive.credential  # a credential is for one start
        return _made(replace(planned_disk(request), sha256=sha256, sources=request if is_again else None), path)


def _made(planned: Disk, path: Path) -> Disk:
    """Give a disk that was made the name of its lock."""
    status = path.stat()
    path = path.rename(path.with_name(name_of(identity(status))))
    return replace(planned, path=str(path), identity=identity(status), size=status.st_size)
