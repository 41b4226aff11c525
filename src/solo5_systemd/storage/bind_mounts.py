"""Bind mounts of disks below /run/solo5/binds, during the start of a unit.

systemd's BindPaths= resolves a disk's path and follows symbolic links. Where a user other than root may change a
directory on that path, it may resolve to another file by then. Such a disk is bound by its verified file descriptor to
a path that only root may change, and the unit binds it from there. Its name there is that of its lock, since stat(2) of
a remote file may hang.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from solo5_systemd.base.errors import HostError
from solo5_systemd.base.mounts import bind_mount, detach
from solo5_systemd.storage.lock_records import LOCKS, name_of
from solo5_systemd.storage.model import BoundDisks, Disk, check_distinct
from solo5_systemd.storage.start_directories import PID1_ROOT, StartDirectories, StartDirectory

DIRECTORY = Path("/run/solo5/binds")


class BindMounts:
    """The bind mounts of starts in progress.

    Args:
        directory: the parent of the starts' directories.
        mount: binds one path to another.
        unmount: undoes it.
        root: the root directory of PID 1's mount namespace.
    """

    def __init__(
        self,
        directory: Path = DIRECTORY,
        *,
        mount: Callable[[str, str], None] = bind_mount,
        unmount: Callable[[str], None] = detach,
        root: str = PID1_ROOT,
        locks: Path = LOCKS,
    ) -> None:
        self._directories = StartDirectories(
            directory,
            what="bind mounts of disks",
            unmount=unmount,
            lock_name=lambda file: file.name,
            root=root,
            locks=locks,
        )
        self._mount = mount

    def bind(self, disks: Sequence[Disk], reopen: Callable[[Disk], int]) -> BoundDisks:
        """Bind the disks whose path a user other than root may change.

        Args:
            reopen: opens the verified file with O_PATH.

        Raises:
            InvalidRequestError: two disks are one file.
            HostError: a file was replaced since its check, or cannot be bound.
        """
        check_distinct(disks)
        with self._directories.filled() as made, self._directories.host_errors():
            bound = tuple(self._bind(disk, made, reopen) if disk.exposed else disk for disk in disks)
        return BoundDisks(disks=bound, directory=made.path, descriptor=made.descriptor)

    def unbind(self, bound: BoundDisks) -> None:
        """Remove the bind mounts of one start; those in the unit's mount namespace stay."""
        if bound.directory is not None:
            self._directories.remove(Path(bound.directory), bound.descriptor)

    def sweep(self, *, dry_run: bool = False) -> tuple[str, ...]:
        """See `StartDirectories.sweep`."""
        return self._directories.sweep(dry_run=dry_run)

    def _bind(self, disk: Disk, made: StartDirectory, reopen: Callable[[Disk], int]) -> Disk:
        target = made.files / name_of(disk.identity)
        descriptor = reopen(disk)
        try:
            os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
            self._mount(f"/proc/self/fd/{descriptor}", str(target))
        except OSError as error:
            raise HostError(f"{disk} cannot be bound to {target}: {error.strerror}.") from error
        finally:
            os.close(descriptor)
        self._directories.check_seen(target, disk.identity)
        return replace(disk, path=str(target))
