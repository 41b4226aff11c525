"""Directories of starts in progress, with what a unit gets by a path: private disks, and bind mounts of disks.

    DIRECTORY/startXXXXXXXX         one for each start, locked (flock(2)) by its process
    DIRECTORY/startXXXXXXXX/LOCK    the disk, by the name of its lock

Disks that are to be in memory have a DIRECTORY that is a ramfs of all starts, which the first one mounts and which
stays. A mount for each start would take as long as all other steps for its disk: PID 1 makes a unit of each mount and
removes it again, and umount2(2) waits for a grace period of the kernel.

systemd binds a disk by its path. Once the unit has its own mount, the name is removed: the file lives as long as the
unit's mount namespace, and the kernel frees it with the last process of the task, whatever ends it.

The kernel drops the lock with the process, so a directory without a lock is a killed start's. Its unit may be about to
start nevertheless, if the start was killed after its StartTransientUnit call: PID 1 has yet to mount what is in the
directory, and has the locks of the disks since the call. So a directory stays as long as one of its disks is locked:
until the task ends, if it has come to one. A name shows the lock, since stat(2) of a remote file may hang.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from solo5_systemd.base.errors import HostError
from solo5_systemd.base.locks import closing, lock, lock_directory, try_lock
from solo5_systemd.base.mounts import detach
from solo5_systemd.base.procfs import identity
from solo5_systemd.storage.lock_records import is_any_locked
from solo5_systemd.storage.model import StartDirectory

PID1_ROOT = "/proc/1/root"
"""The root directory of PID 1's mount namespace."""

_PREFIX = "start"


class StartDirectories:
    """The directories of starts in progress below one directory, which only root can open.

    Args:
        directory: their parent, made where it is missing; links of its path are followed once, here.
        mount: mounts a file system of its own there; None: it has none.
    """

    def __init__(
        self,
        directory: Path,
        *,
        what: str = "disks of starts",
        mount: Callable[[str], None] | None = None,
    ) -> None:
        # By a link, /var/lib/solo5 may be on a larger disk; the kernel reports paths without links.
        self.directory = directory.resolve()
        self._what = what
        self._mount = mount

    def make(self) -> StartDirectory:
        """Make a locked directory; directories of killed starts are removed first.

        Raises:
            HostError: it cannot be made, or PID 1 does not see it.
        """
        with self.host_errors(), self._exclusive():  # no sweep runs between mkdtemp(3) and the lock
            self._sweep()
            path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=self.directory))
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            lock(descriptor, path, timeout_s=0.0)
            made = StartDirectory(path, descriptor)
            try:
                self.check_seen(path, identity(path.stat()))
            except BaseException:
                remove(made)
                raise
        return made

    @contextmanager
    def filled(self) -> Iterator[StartDirectory]:
        """Yield what `make` returns, for the block to fill; after an error of the block, it is removed."""
        made = self.make()
        try:
            yield made
        except BaseException:
            remove(made)
            raise

    def sweep(self, *, dry_run: bool = False) -> tuple[str, ...]:
        """Remove the directories of killed starts.

        Returns:
            The directories.

        Raises:
            HostError: the parent cannot be read or written.
        """
        if not self.directory.is_dir():
            return ()
        with self.host_errors(), self._exclusive():
            return self._sweep(dry_run=dry_run)

    def check_seen(self, path: Path, expected: tuple[int, int]) -> None:
        """Check that a path leads PID 1 to the file with this identity, as it leads this process to it.

        Raises:
            HostError: it does not.
            OSError: PID 1 has nothing there.
        """
        if identity(Path(f"{PID1_ROOT}{path}").stat()) != expected:
            raise HostError(
                f"PID 1 has another file at {path} than this process: expected both in one mount namespace.",
                "Remove PrivateTmp=, ProtectSystem= and the like from the unit of the Nomad agent.",
            )

    @contextmanager
    def host_errors(self) -> Iterator[None]:
        """Turn an OSError of the block into a HostError that names the parent."""
        try:
            yield
        except OSError as error:
            raise HostError(f"the {self._what} in {self.directory} cannot be used: {error.strerror}.") from error

    def _sweep(self, *, dry_run: bool = False) -> tuple[str, ...]:
        left: list[str] = []
        for each in sorted(self.directory.glob(f"{_PREFIX}*")):
            try:
                descriptor = os.open(each, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except FileNotFoundError:  # the start has finished since the directory was listed
                continue
            with closing(descriptor):
                if not try_lock(descriptor) or is_any_locked([file.name for file in each.iterdir()]):
                    continue  # the start is in progress
                left.append(str(each))
                if not dry_run:
                    _clear(each)
        return tuple(left)

    def _exclusive(self) -> AbstractContextManager[int]:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._mount is not None:
            with closing(lock_directory(self.directory)):  # of what is there now
                if self.directory.stat().st_dev == self.directory.parent.stat().st_dev:
                    self._mount(str(self.directory))
        return closing(lock_directory(self.directory))


def remove(made: StartDirectory) -> None:
    """Remove a directory with its names, and unlock it; after an error, the next sweep retries."""
    with closing(made.descriptor):
        _clear(made.path)


def _clear(path: Path) -> None:
    with suppress(OSError):
        for file in path.iterdir():
            with suppress(OSError):  # EINVAL: no bind mount
                detach(str(file))
            file.unlink()
        path.rmdir()
