"""Directories that belong to starts in progress, and are removed by others only once their start is over.

    PARENT/startXXXXXXXX    one for each start, locked (flock(2)) by its process

The kernel drops the lock with the process, so a directory without a lock is a killed start's. Its unit may be about to
start nevertheless, if the start was killed after its StartTransientUnit call: PID 1 has yet to mount what is in the
directory, and has the locks of the disks since the call. So a directory stays as long as one of its disks is locked:
until the task ends, if it has come to one.
"""

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from solo5_systemd.errors import HostError
from solo5_systemd.locks import closing, lock, lock_directory, try_lock
from solo5_systemd.storage.lock_records import LOCKS, is_any_locked

PID1_ROOT = "/proc/1/root"
"""The root directory of PID 1's mount namespace."""

_PREFIX = "start"


class LockedDirectories:
    """The directories of starts below one parent, which only root can open.

    Args:
        parent: made where it is missing.
        clear: removes a directory with its contents; after an error, the next sweep retries.
        disks: returns the names of the locks of a directory's disks.
        what: the subject of errors.
        locks: the directory of disk locks.
    """

    def __init__(
        self,
        parent: Path,
        clear: Callable[[Path], None],
        disks: Callable[[Path], Iterable[str]],
        what: str,
        locks: Path = LOCKS,
    ) -> None:
        self._parent = parent
        self._clear = clear
        self._disks = disks
        self._what = what
        self._locks = locks

    def make(self) -> tuple[Path, int]:
        """Remove the directories of killed starts, and make one; return it with the descriptor that has its lock.

        To be called within `exclusive`: a sweep must not run between mkdtemp(3) and the lock.
        """
        self._sweep()
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=self._parent))
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        lock(descriptor, path, timeout_s=0.0)
        return path, descriptor

    def sweep(self, *, dry_run: bool = False) -> tuple[str, ...]:
        """Remove the directories of killed starts.

        Returns:
            The directories.

        Raises:
            HostError: the parent cannot be read or written.
        """
        if not self._parent.is_dir():
            return ()
        with self.host_errors(), self.exclusive():
            return self._sweep(dry_run=dry_run)

    def _sweep(self, *, dry_run: bool = False) -> tuple[str, ...]:
        left: list[str] = []
        for each in sorted(self._parent.glob(f"{_PREFIX}*")):
            try:
                descriptor = os.open(each, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except FileNotFoundError:  # the start has finished since the directory was listed
                continue
            with closing(descriptor):
                if not try_lock(descriptor) or is_any_locked(self._disks(each), self._locks):
                    continue  # the start is in progress
                left.append(str(each))
                if not dry_run:
                    self._clear(each)
        return tuple(left)

    def exclusive(self) -> AbstractContextManager[None]:
        """Lock the parent."""
        self._parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return closing(lock_directory(self._parent))

    @contextmanager
    def host_errors(self) -> Iterator[None]:
        """Turn an OSError of the block into a HostError that names the parent."""
        try:
            yield
        except OSError as error:
            raise HostError(f"{self._what} cannot be used: {error.strerror}.") from error
