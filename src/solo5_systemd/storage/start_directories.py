"""Directories of starts in progress, with the names of private disks.

    DIRECTORY/startXXXXXXXX                one directory for each private disk, locked (flock(2)) by its process
    DIRECTORY/startXXXXXXXX/files/NAME     the disk
    MEMORY/startXXXXXXXX/NAME              the disk, if it is to be in memory: on one ramfs of all starts

The ramfs is mounted by the first start and stays. A mount for each start would take as long as all other steps for its
disk: PID 1 makes a unit of each mount and removes it again, and umount2(2) waits for a grace period of the kernel.

systemd binds a disk by its path. Once the unit has its own mount, the name is removed: the file lives as long as the
unit's mount namespace, and the kernel frees it with the last process of the task, whatever ends it. `sweep` removes the
directories of killed starts, and takes nothing from a task that runs.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from solo5_systemd.errors import HostError
from solo5_systemd.files.mounts import mount_memory
from solo5_systemd.files.procfs import identity
from solo5_systemd.storage.lock_records import LOCKS, name_of
from solo5_systemd.storage.locked_directories import PID1_ROOT, LockedDirectories

_FILES = "files"


class StartDirectory(NamedTuple):
    """A directory of one start; `descriptor` has its lock, `files` has the disk."""

    path: Path
    descriptor: int
    files: Path


class StartDirectories:
    """The directories of starts in progress below one directory.

    Args:
        directory: their parent, which only root can open; links of its path are followed once, here.
        memory: the mount point of the file system in memory that has the disks; None: they are in `directory`.
        mount: mounts that file system.
        root: the root directory of PID 1's mount namespace.
        locks: the directory of disk locks.
    """

    def __init__(
        self,
        directory: Path,
        *,
        memory: Path | None = None,
        mount: Callable[[str], None] = mount_memory,
        root: str = PID1_ROOT,
        locks: Path = LOCKS,
    ) -> None:
        # By a link, /var/lib/solo5 may be on a larger disk; the kernel tells paths without links.
        self.directory = directory = directory.resolve()
        self._directories = LockedDirectories(
            directory, self._clear, self._disks, f"the disks of starts in {directory}", locks
        )
        self._memory = memory
        self._mount = mount
        self._root = root

    def make(self) -> StartDirectory:
        """Make a locked directory; directories of killed starts are removed first.

        Raises:
            HostError: it cannot be made, or PID 1 does not see it.
        """
        with self._directories.host_errors(), self._directories.exclusive():
            path, descriptor = self._directories.make()
            made = StartDirectory(path, descriptor, self._files(path))
            try:
                if self._memory:
                    self._mount_once(self._memory)
                made.files.mkdir(mode=0o700)
                self._check_seen(made.files)
            except BaseException:
                self.remove(made)
                raise
        return made

    def remove(self, made: StartDirectory) -> None:
        """Remove a directory with its names, and unlock it; after an error, the next sweep retries."""
        try:
            self._clear(made.path)
        finally:
            os.close(made.descriptor)

    def sweep(self, *, dry_run: bool = False) -> tuple[str, ...]:
        """Remove the directories of killed starts.

        Returns:
            The directories.

        Raises:
            HostError: the parent cannot be read or written.
        """
        return self._directories.sweep(dry_run=dry_run)

    def _files(self, path: Path) -> Path:
        return self._memory / path.name if self._memory else path / _FILES

    def _disks(self, path: Path) -> Sequence[str]:
        with suppress(FileNotFoundError):  # the start was killed before
            return [name_of(identity(file.stat())) for file in self._files(path).iterdir()]
        return ()

    def _mount_once(self, memory: Path) -> None:
        """Mount the file system in memory unless it is mounted; called with the parent locked."""
        memory.mkdir(mode=0o700, exist_ok=True)
        if memory.stat().st_dev == memory.parent.stat().st_dev:
            self._mount(str(memory))

    def _check_seen(self, files: Path) -> None:
        seen, own = Path(f"{self._root}{files}").stat(), files.stat()
        if (seen.st_dev, seen.st_ino) != (own.st_dev, own.st_ino):
            raise HostError(
                f"PID 1 has another directory at {files} than this process: expected both in one mount namespace.",
                "Remove PrivateTmp=, ProtectSystem= and the like from the unit of the Nomad agent.",
            )

    def _clear(self, path: Path) -> None:
        with suppress(OSError):
            _remove_files(path / _FILES)
            if self._memory:
                _remove_files(self._memory / path.name)
            path.rmdir()


def _remove_files(directory: Path) -> None:
    """Remove a directory with the names in it; it may not exist, if its start was killed before.

    Raises:
        OSError: it cannot be removed.
    """
    if not directory.is_dir():
        return
    for file in directory.iterdir():
        file.unlink()
    directory.rmdir()
