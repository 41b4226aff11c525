"""That the disk which was checked is the disk that a task gets: its path may resolve to another file at any moment.

systemd's BindPaths= resolves a disk's path and follows symbolic links. Where a user other than root may change a
directory on that path, the disk is bound by its verified file descriptor to a path below /run/solo5/binds, which only
root may change, and the unit binds it from there.
"""

import os
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from solo5_systemd.base.errors import HostError, StartError
from solo5_systemd.base.locks import closing
from solo5_systemd.base.mounts import bind_mount
from solo5_systemd.base.procfs import identity, path_of
from solo5_systemd.storage.lock_records import name_of
from solo5_systemd.storage.model import BoundDisks, Disk, StartDirectory
from solo5_systemd.storage.overlaps import check_distinct
from solo5_systemd.storage.start_directories import StartDirectories

BINDS = Path("/run/solo5/binds")


def reopen(disk: Disk) -> int:
    """Open a checked file or device with O_PATH; /proc/self/fd/N then refers to this file whatever happens to its path.

    Kind and path are compared besides the inode, whose number a new file may get after a deletion.

    Raises:
        HostError: the path resolves to another file now, or to none, or the file has another size.
    """
    try:
        descriptor = os.open(disk.path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise HostError(f"{disk} cannot be opened: {error.strerror}.") from error
    status = os.fstat(descriptor)
    if stat.S_ISLNK(status.st_mode) or identity(status) != disk.identity or path_of(descriptor) != disk.path:
        os.close(descriptor)
        raise HostError(f"{disk} was replaced during the start: expected the same file.")
    if _has_other_size(disk, status):
        os.close(descriptor)
        raise HostError(
            f"{disk} has {status.st_size} bytes now: expected {disk.size}, as it was checked.",
            "Another program changes the file: end it, then start the task again.",
        )
    return descriptor


def _has_other_size(disk: Disk, status: os.stat_result) -> bool:
    return bool(disk.size) and stat.S_ISREG(status.st_mode) and status.st_size != disk.size


def bind(disks: Sequence[Disk], binds: StartDirectories) -> BoundDisks:
    """Bind the disks whose path a user other than root may change, until `ImageFiles.release`.

    Raises:
        InvalidRequestError: two disks are one file.
        HostError: a file was replaced since its check, or cannot be bound.
    """
    check_distinct(disks)
    with binds.filled() as made, binds.host_errors():
        bound = tuple(_bind(disk, binds, made) if disk.exposed else disk for disk in disks)
    return BoundDisks(disks=bound, directory=made)


def _bind(disk: Disk, binds: StartDirectories, made: StartDirectory) -> Disk:
    target = made.path / name_of(disk.identity)
    with closing(reopen(disk)) as descriptor:
        try:
            os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
            bind_mount(f"/proc/self/fd/{descriptor}", str(target))
        except OSError as error:
            raise HostError(f"{disk} cannot be bound to {target}: {error.strerror}.") from error
    binds.check_seen(target, disk.identity)
    return replace(disk, path=str(target))


def check_bound(disks: Sequence[tuple[Disk, str]], pid: int) -> None:
    """Check that a started tender has the checked files at its paths; a tender that has exited passes.

    Args:
        disks: each with its path in the tender's mount namespace.

    Raises:
        StartError: another file is at a path, or it has another size.
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
        if _has_other_size(disk, status):
            raise StartError(
                f"disk {disk.disk}: the started task has {disk.path!r} with {status.st_size} bytes: expected "
                f"{disk.size}, as it was checked.",
                "Another program changes the file: end it, then start the task again.",
            )
