"""Bind mounts of disks below /run/solo5/binds, during the start of a unit."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from solo5_systemd.errors import HostError
from solo5_systemd.files.mounts import bind_mount, detach
from solo5_systemd.files.procfs import identity
from solo5_systemd.storage.lock_records import LOCKS, name_of
from solo5_systemd.storage.locked_directories import PID1_ROOT, LockedDirectories
from solo5_systemd.storage.model import BoundDisks, Disk, check_distinct

DIRECTORY = Path("/run/solo5/binds")


class BindMounts:
    """The bind mounts of starts in progress.

    systemd's BindPaths= resolves a disk's path and follows symbolic links. Where a user other than root may change a
    directory on that path, it may lead to another file by then. Such a disk is bound by its verified file descriptor to
    a path that only root may change, and the unit binds it from there.

        /run/solo5/binds/startXXXXXXXX/LOCK    one directory for each start, locked (flock(2)) by its process; a disk
                                               has the name of its lock, since stat(2) of a remote file may hang

    `sweep` removes the directories of killed starts: before the next bind, when the driver recovers tasks, and in
    `solo5ctl gc`.

    Args:
        directory: the parent of the starts' directories.
        mount: binds one path to another.
        unmount: undoes it.
        root: the root directory of PID 1's mount namespace.
        locks: the directory of disk locks.
    """

    def __init__(
        self,
        directory: Path = DIRECTORY,
        *,
        mount: Callable[[str, str], None] | None = None,
        unmount: Callable[[str], None] | None = None,
        root: str = PID1_ROOT,
        locks: Path = LOCKS,
    ) -> None:
        self._directories = LockedDirectories(
            directory, self._clear, _locks, f"the bind mounts of disks, {directory},", locks
        )
        self._mount = mount or bind_mount
        self._unmount = unmount or detach
        self._root = root

    def bind(self, disks: Sequence[Disk], reopen: Callable[[Disk], int]) -> BoundDisks:
        """Bind the disks whose path a user other than root may change.

        Args:
            disks: all disks of one task.
            reopen: opens the verified file with O_PATH.

        Raises:
            InvalidRequestError: two disks are one file.
            HostError: a file was replaced since its check, or cannot be bound.
        """
        check_distinct(disks)
        if not any(disk.exposed for disk in disks):
            return BoundDisks(disks=tuple(disks))
        with self._directories.host_errors():
            with self._directories.exclusive():
                mine, descriptor = self._directories.make()
            try:
                bound = tuple(self._bind(disk, mine, reopen) if disk.exposed else disk for disk in disks)
            except BaseException:
                self._clear(mine)
                os.close(descriptor)
                raise
        return BoundDisks(disks=bound, directory=mine, descriptor=descriptor)

    def unbind(self, bound: BoundDisks) -> None:
        """Remove the bind mounts of one start; those in the unit's mount namespace stay."""
        if bound.directory is not None:
            self._clear(Path(bound.directory))
            os.close(bound.descriptor)

    def sweep(self, *, dry_run: bool = False) -> tuple[str, ...]:
        """Remove the directories of killed starts.

        Returns:
            The directories.

        Raises:
            HostError: the directory cannot be read or written.
        """
        return self._directories.sweep(dry_run=dry_run)

    def _bind(self, disk: Disk, directory: Path, reopen: Callable[[Disk], int]) -> Disk:
        target = str(directory / name_of(disk.identity))
        descriptor = reopen(disk)
        try:
            os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
            self._mount(f"/proc/self/fd/{descriptor}", target)
        except OSError as error:
            raise HostError(
                f"disk {disk.disk}: {disk.path!r} cannot be bound to {target}: {error.strerror}."
            ) from error
        finally:
            os.close(descriptor)
        if identity(Path(f"{self._root}{target}").stat()) != disk.identity:
            raise HostError(
                f"disk {disk.disk}: PID 1 has another file at {target} than this process: "
                "expected both in one mount namespace.",
                "Remove PrivateTmp=, ProtectSystem= and the like from the unit of the Nomad agent.",
            )
        return replace(disk, path=target)

    def _clear(self, directory: Path) -> None:
        """Remove one start's directory; after an error, the next sweep retries."""
        with suppress(OSError):
            for file in directory.iterdir():
                with suppress(OSError):  # EINVAL: not a mount point, since the start was killed before the mount
                    self._unmount(str(file))
                file.unlink()
            directory.rmdir()


def _locks(directory: Path) -> Sequence[str]:
    with suppress(FileNotFoundError):  # the start has finished since the directory was listed
        return [file.name for file in directory.iterdir()]
    return ()
