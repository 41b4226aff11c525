"""Bind mounts of disks, and the directories of starts in progress, with what a unit gets by a path.

Of disks whose path another user may change (`docs/decisions/checked-disk-is-bound.md`), and of private disks.

    DIRECTORY/startXXXXXXXX         one for each start, locked (flock(2)) by its process
    DIRECTORY/startXXXXXXXX/LOCK    the disk, by the name of its lock

A directory without a lock is a killed start's. It stays as long as one of its disks is locked: PID 1 has these locks
since the StartTransientUnit call, and may have yet to mount what is there. A name shows the lock, since stat(2) of a
remote file may hang.
"""

import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from solo5_systemd.base.errors import HostError, StartError, host_errors
from solo5_systemd.base.locks import closing, closing_on_error, lock, lock_directory, try_lock
from solo5_systemd.base.mounts import bind_mount, detach
from solo5_systemd.base.paths import PLACE, identity, path_of
from solo5_systemd.storage.block_devices import check_distinct
from solo5_systemd.storage.locks import is_any_locked, name_of
from solo5_systemd.storage.model import Disk

BINDS = Path("/run/solo5/binds")

PID1_ROOT = "/proc/1/root"
"""The root directory of PID 1's mount namespace."""

_PREFIX = "start"
CHANGED = "Another program changes the file: end it, then start the task again."
"""What to do about a disk that has not the size with which it was checked."""


def reopen(disk: Disk) -> int:
    """Open a checked file or device with O_PATH; /proc/self/fd/N then refers to this file whatever happens to its path.

    Kind and path are compared besides the inode, whose number a new file may get after a deletion.

    Raises:
        HostError: the path resolves to another file now, or to none, or the file has another size.
    """
    with host_errors(f"{disk} cannot be opened"):
        opened = os.open(disk.path, PLACE)
    with closing_on_error(opened) as descriptor:
        status = os.fstat(descriptor)
        if stat.S_ISLNK(status.st_mode) or identity(status) != disk.identity or path_of(descriptor) != disk.path:
            raise HostError(f"{disk} was replaced during the start: expected the same file.")
        if _has_other_size(disk, status):
            raise HostError(f"{disk} has {status.st_size} bytes now: expected {disk.size}, as it was checked.", CHANGED)
    return descriptor


def _has_other_size(disk: Disk, status: os.stat_result) -> bool:
    return bool(disk.size) and stat.S_ISREG(status.st_mode) and status.st_size != disk.size


def bind(disks: Sequence[Disk], binds: "StartDirectories") -> Sequence[Disk]:
    """Bind the disks whose path a user other than root may change, until `ImageFiles.release`.

    Raises:
        InvalidRequestError: two disks are one file.
        HostError: a file was replaced since its check, or cannot be bound.
    """
    check_distinct(disks)
    bound = {}
    with binds.made() as made, binds.host_errors():
        for disk in (each for each in disks if each.exposed):
            target = made / name_of(disk.identity)
            with closing(reopen(disk)) as descriptor, host_errors(f"{disk} cannot be bound to {target}"):
                target.touch(0o600, exist_ok=False)
                bind_mount(f"/proc/self/fd/{descriptor}", str(target))
            binds.check_seen(target, disk.identity)
            bound[disk.disk] = replace(disk, path=str(target))
    return [bound.get(disk.disk, disk) for disk in disks]


def check_bound(disks: Sequence[tuple[Disk, str]], pid: int) -> None:
    """Check that a started tender has the checked files at its paths; a tender that has exited passes.

    Args:
        disks: each with its path in the tender's mount namespace.

    Raises:
        StartError: another file is at a path, or it has another size.
        HostError: the mount namespace cannot be read.
    """
    for disk, path in disks:
        with host_errors(f"disk {disk.disk}: {path} of the started task cannot be read"):
            try:
                status = Path(f"/proc/{pid}/root{path}").stat()
            except (FileNotFoundError, ProcessLookupError):
                if os.path.exists(f"/proc/{pid}/root/"):  # noqa: PTH110 - pathlib's raises for a process that ends
                    raise StartError(f"disk {disk.disk}: the started task has nothing at {path}.") from None
                return
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
                CHANGED,
            )


class StartDirectories:
    """The directories of starts in progress below one directory, which only root can open.

    Args:
        mount: mounts a file system of its own there; None: it has none.
    """

    def __init__(self, directory: Path, *, mount: Callable[[str], None] | None = None) -> None:
        # Once: by a link, /var/lib/solo5 may be on a larger disk, and the kernel reports paths without links.
        self.directory = directory.resolve()
        self._mount = mount
        self._held: dict[Path, int] = {}  # the directories of this process, each with the descriptor that has its lock

    @contextmanager
    def made(self) -> Iterator[Path]:
        """Make a locked directory, which is removed after an error of the block; those of killed starts are removed.

        Raises:
            HostError: it cannot be made, or PID 1 does not see it.
        """
        with self.host_errors(), self._exclusive():  # no sweep runs between mkdtemp(3) and the lock
            self._sweep()
            path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=self.directory))
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            lock(descriptor, path, timeout_s=0.0)
        self._held[path] = descriptor
        try:
            with self.host_errors():
                self.check_seen(path, identity(path.stat()))
            yield path
        except BaseException:
            self.remove(path)
            raise

    def held(self, disks: Iterable[Disk]) -> dict[Path, int]:
        """Return the directories in which these disks are, each with the descriptor that has its lock."""
        found = {Path(disk.path).parent for disk in disks}
        return {path: descriptor for path, descriptor in self._held.items() if path in found}

    def remove(self, path: Path) -> None:
        """Remove a directory with its names, and unlock it; after an error, the next sweep retries."""
        with closing(self._held.pop(path)):
            _clear(path)

    def sweep(self, *, dry_run: bool = False) -> tuple[str, ...]:
        """Remove the directories of killed starts, and return them; raises HostError where that fails."""
        if not self.directory.is_dir():
            return ()
        with self.host_errors(), self._exclusive():
            return self._sweep(dry_run=dry_run)

    def check_seen(self, path: Path, expected: tuple[int, int]) -> None:
        """Check that a path leads PID 1 to the file with this identity; raises HostError, or OSError for none."""
        if identity(Path(f"{PID1_ROOT}{path}").stat()) != expected:
            raise HostError(
                f"PID 1 has another file at {path} than this process: expected both in one mount namespace.",
                "Remove PrivateTmp=, ProtectSystem= and the like from the unit of the Nomad agent.",
            )

    def host_errors(self) -> AbstractContextManager[None]:
        """Turn an OSError of the block into a HostError that names the parent."""
        return host_errors(f"the disks of starts in {self.directory} cannot be used")

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
                if self.directory.stat().st_dev == self.directory.parent.stat().st_dev:  # not mounted since the boot
                    self._mount(str(self.directory))
        return closing(lock_directory(self.directory))


def _clear(path: Path) -> None:
    with suppress(OSError):
        for file in path.iterdir():
            with suppress(OSError):  # EINVAL: no bind mount
                detach(str(file))
            file.unlink()
        path.rmdir()
