"""Directories of starts in progress, with the names of private disks.

    DIRECTORY/startXXXXXXXX/files/NAME     one directory for each private disk, locked (flock(2)) by its process

systemd binds a disk by its path. Once the unit has its own mount, the name is removed: the file lives as long as the
unit's mount namespace, and the kernel frees it with the last process of the task, whatever ends it. The kernel drops
the lock with the starter, so a directory without a lock is a killed start's. `sweep` removes it, and takes nothing from
a task that runs.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from solo5_systemd.errors import HostError
from solo5_systemd.storage.locked_directories import PID1_ROOT, LockedDirectories

_FILES = "files"


class StartDirectory(NamedTuple):
    """A directory of one start; `descriptor` has its lock."""

    path: Path
    descriptor: int

    @property
    def files(self) -> Path:
        """Return the directory of the disk."""
        return self.path / _FILES


class StartDirectories:
    """The directories of starts in progress below one directory.

    Args:
        directory: their parent, which only root can open.
        mount: mounts a file system on the directory of a disk; None: it is on that of the parent.
        unmount: undoes it.
        root: the root directory of PID 1's mount namespace.
    """

    def __init__(
        self,
        directory: Path,
        *,
        mount: Callable[[str], None] | None = None,
        unmount: Callable[[str], None] | None = None,
        root: str = PID1_ROOT,
    ) -> None:
        self.directory = directory
        self._directories = LockedDirectories(directory, self._clear, f"the disks of starts in {directory}")
        self._mount = mount
        self._unmount = unmount
        self._root = root

    def make(self) -> StartDirectory:
        """Make a locked directory; directories of killed starts are removed first.

        Raises:
            HostError: it cannot be made, or PID 1 does not see it.
        """
        with self._directories.host_errors(), self._directories.exclusive():
            made = StartDirectory(*self._directories.make())
            try:
                made.files.mkdir(mode=0o700)
                if self._mount is not None:
                    self._mount(str(made.files))
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

    def _check_seen(self, files: Path) -> None:
        seen, own = Path(f"{self._root}{files}").stat(), files.stat()
        if (seen.st_dev, seen.st_ino) != (own.st_dev, own.st_ino):
            raise HostError(
                f"PID 1 has another directory at {files} than this process: expected both in one mount namespace.",
                "Remove PrivateTmp=, ProtectSystem= and the like from the unit of the Nomad agent.",
            )

    def _clear(self, path: Path) -> None:
        with suppress(OSError):
            files = path / _FILES
            if files.is_dir():
                for file in files.iterdir():
                    file.unlink()
                if self._unmount is not None:
                    with suppress(OSError):  # EINVAL: no mount point, since the start was killed before the mount
                        self._unmount(str(files))
                files.rmdir()
            path.rmdir()
