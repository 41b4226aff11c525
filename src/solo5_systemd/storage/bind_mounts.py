"""Bind mounts of disks below /run/solo5/binds, during the start of a unit.

systemd's BindPaths= resolves a disk's path and follows symbolic links. Where a user other than root may change a
directory on that path, it may resolve to another file by then. Such a disk is bound by its verified file descriptor to
a path that only root may change, and the unit binds it from there.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from solo5_systemd.base.errors import HostError
from solo5_systemd.base.locks import closing
from solo5_systemd.base.mounts import bind_mount
from solo5_systemd.storage.lock_records import name_of
from solo5_systemd.storage.model import BoundDisks, Disk, check_distinct
from solo5_systemd.storage.same_disk import reopen
from solo5_systemd.storage.start_directories import StartDirectories, StartDirectory

BINDS = Path("/run/solo5/binds")


def bind(disks: Sequence[Disk], binds: StartDirectories) -> BoundDisks:
    """Bind the disks whose path a user other than root may change, until `ImageFiles.unbind`.

    Raises:
        InvalidRequestError: two disks are one file.
        HostError: a file was replaced since its check, or cannot be bound.
    """
    check_distinct(disks)
    with binds.filled() as made, binds.host_errors():
        bound = tuple(_bind(disk, binds, made) if disk.exposed else disk for disk in disks)
    return BoundDisks(disks=bound, directory=made.path, descriptor=made.descriptor)


def _bind(disk: Disk, binds: StartDirectories, made: StartDirectory) -> Disk:
    target = made.files / name_of(disk.identity)
    with closing(reopen(disk)) as descriptor:
        try:
            os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
            bind_mount(f"/proc/self/fd/{descriptor}", str(target))
        except OSError as error:
            raise HostError(f"{disk} cannot be bound to {target}: {error.strerror}.") from error
    binds.check_seen(target, disk.identity)
    return replace(disk, path=str(target))
