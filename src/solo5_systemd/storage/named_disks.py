"""Named disks: files in /var/lib/solo5/disks, which only root can open while no task has them.

A task's user owns the file while the task has the disk (`storage.owner`), and root afterwards. Each change takes the
disk's lock, so that no task has the disk meanwhile.
"""

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from solo5_systemd.base.errors import InvalidRequestError, NotFoundError, TakenError, host_errors
from solo5_systemd.base.file_copies import Progress, copy_data, no_progress, receive_data, share, takes_holes
from solo5_systemd.base.locks import closing
from solo5_systemd.base.names import DeviceName, DiskName, disk_name
from solo5_systemd.base.paths import identity
from solo5_systemd.storage.locks import holders, lock, lock_shared
from solo5_systemd.storage.model import NAMED_DISKS, Backing, Disk, check_size
from solo5_systemd.storage.new_file import create_file, zeros
from solo5_systemd.storage.quotas import DiskClaims

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class NamedDisk:
    """A named disk.

    Attributes:
        allocated: bytes of the file system that it takes.
        used: microseconds since the epoch when a task last got it, wrote it or gave it back.
        task: the task that has it; empty: a reader; None: it is free.
    """

    name: DiskName
    path: str
    size: int
    allocated: int
    used: int
    task: str | None

    def __str__(self) -> str:
        return self.name


class NamedDisks:
    """The named disks of this host.

    Raises:
        InvalidRequestError: (a method) the size breaks a rule of tenders, or is smaller without `shrink`.
        NotFoundError: there is no disk of this name.
        TakenError: a task or another process has the disk, or a new one's name is taken.
        HostError: the file system returned an error, or a quota would be exceeded.
    """

    def __init__(self, directory: Path = Path(NAMED_DISKS), claims: DiskClaims | None = None) -> None:
        self.claims = claims or DiskClaims()
        self.directory = directory.resolve()  # by a link, it may be on a larger disk; other records have no links

    def all(self) -> tuple[NamedDisk, ...]:
        """Return all disks, sorted by name."""
        names = names_in(self.directory, "disks", disk_name)
        held = holders() if names else {}
        found = (self._described(name, held) for name in names)
        return tuple(disk for disk in found if disk is not None)

    def get(self, name: DiskName) -> NamedDisk:
        """Return one disk."""
        found = self._described(name, holders())
        if found is None:
            raise _missing(name)
        return found

    def create(self, name: DiskName, size: int, *, preallocate: bool = False) -> NamedDisk:
        """Create a disk of zeros; `preallocate`: allocate its blocks. Otherwise, it is sparse."""
        check_size(f"disk {name!r} would have", size)
        with self.claims.admitted(f"{self.directory}/{name}", size, size, f"disk {name!r}"):
            if preallocate:  # a sparse disk takes no blocks yet
                self.claims.check_reserve(self.directory, size, f"disk {name!r}")
            self._create(name, zeros(size, preallocate=preallocate))
        return self.get(name)

    def resize(self, name: DiskName, size: int, *, shrink: bool = False) -> NamedDisk:
        """Change the size of a disk that no task has; only `shrink` permits a smaller one, which loses its end."""
        check_size(f"disk {name!r} would have", size)
        with self.opened(name, os.O_RDWR, shared=False) as descriptor:
            now = os.fstat(descriptor).st_size
            if size < now and not shrink:
                raise InvalidRequestError(
                    f"disk {name!r} has {now} bytes: expected as many or more, since {size} would lose its end.",
                    "To lose it: solo5ctl disk resize --shrink",
                )
            with self.claims.admitted(f"{self.directory}/{name}", size, size - now, f"disk {name!r}"):
                os.ftruncate(descriptor, size)
            os.fsync(descriptor)
        return self.get(name)

    def import_(self, name: DiskName, source: int, progress: Progress = no_progress) -> tuple[NamedDisk, str]:
        """Create a disk with the content of a file or pipe; holes and zeros of a pipe stay holes.

        Args:
            source: descriptor; of a regular file, its current position is ignored.

        Returns:
            The disk, and the SHA-256 of its content in hexadecimal digits.
        """
        status = os.fstat(source)
        regular = stat.S_ISREG(status.st_mode)
        path, what = f"{self.directory}/{name}", f"disk {name!r}"
        if regular:
            check_size(f"{what} would have", status.st_size)
            self.claims.check(path, status.st_size, what)
        digest: list[str] = []

        def write(target: int) -> None:
            if regular:
                size, sha256 = status.st_size, _copy(source, target, status.st_size, progress)
            else:
                size, sha256 = receive_data(source, target, progress)
                check_size(f"{what} would have", size)
            digest.append(sha256)
            # On a file system without O_TMPFILE, the new file has a name by now.
            admission.enter_context(self.claims.admitted(path, size, size, what, new=target))

        with ExitStack() as admission:  # until the disk has its name
            self._create(name, write)
        return self.get(name), digest[0]

    def export(self, name: DiskName, target: int, progress: Progress = no_progress) -> str:
        """Write the content of a disk that no task has to a file or pipe; an empty regular file gets its holes.

        Returns:
            The SHA-256 of the content, in hexadecimal digits.
        """
        errors = host_errors(f"disk {name!r} cannot be exported")  # such as of a target without space
        with self.opened(name, os.O_RDONLY, shared=True) as descriptor, errors:
            return write_content(descriptor, target, progress)

    def _create(self, name: DiskName, write: Callable[[int], None]) -> None:
        with host_errors(f"disk {name!r} cannot be created in {self.directory}"):
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with closing(os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as directory:
                created = create_file(directory, name, write)
        if not created:
            raise TakenError(f"disk name {name!r} is taken.", "List them: solo5ctl disk ls")

    def _described(self, name: DiskName, held: Mapping[tuple[int, int], str]) -> NamedDisk | None:
        """Return a disk; None if it has been removed, or is no disk."""
        path = self.directory / name
        status = regular_file(path, f"disk {name!r}")
        return status and NamedDisk(
            name=name,
            path=str(path),
            size=status.st_size,
            allocated=status.st_blocks * 512,
            used=max(status.st_ctime_ns, status.st_mtime_ns) // 1000,
            task=held.get(identity(status)),
        )

    @contextmanager
    def opened(self, name: DiskName, flags: int, *, shared: bool) -> Iterator[int]:
        """Open a disk's file with its lock: shared, so that it stays as it is, or exclusive.

        Raises:
            TakenError: as of all methods, with a shared lock only for a task; or the disk was replaced just now.
            HostError: it cannot be opened, or an OSError of the block.
        """
        path = self.directory / name
        if not os.path.lexists(path):
            raise _missing(name)
        opened = open_file(path, flags, f"disk {name!r}")
        with closing(opened) as descriptor, host_errors(f"disk {name!r} cannot be used"):
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise InvalidRequestError(f"disk {name!r}: {str(path)!r} is no disk: expected a regular file.")
            with closing(self._lock(name, status, shared=shared)):
                if not path.exists() or identity(path.lstat()) != identity(status):  # restored before it was locked
                    raise TakenError(f"disk {name!r} was replaced or removed meanwhile.", "Repeat the command.")
                yield descriptor

    def _lock(self, name: DiskName, status: os.stat_result, *, shared: bool) -> int:
        path = str(self.directory / name)
        disk = Disk(disk=DeviceName(name), path=path, identity=identity(status), backing=Backing.NAMED)
        try:
            return lock_shared(disk) if shared else lock([disk], unused=True)
        except TakenError as error:
            held = holders()
            if disk.identity not in held:  # the kernel uses it
                raise
            task = held[disk.identity]
            who = f"task {task}" if task else "another process"
            hint = f"Stop it first: solo5ctl stop {task}" if task else "Wait until it is done."
            raise TakenError(f"disk {name!r} is in use by {who}.", hint) from error


def names_in(directory: Path, what: str, parse: Callable[[str], T]) -> list[T]:
    """Return the sorted names in a directory that are valid; none if there is none. Raises HostError."""
    found = []
    with host_errors(f"the {what} in {directory} cannot be listed"), suppress(FileNotFoundError):
        for name in sorted(os.listdir(directory)):  # noqa: PTH208 - names
            with suppress(InvalidRequestError):  # such as .snapshots, or a file that is being written
                found.append(parse(name))
    return found


def regular_file(path: Path, what: str) -> os.stat_result | None:
    """Return the status of a regular file; None if there is none. Raises HostError."""
    with host_errors(f"{what} cannot be read"), suppress(FileNotFoundError):
        status = path.lstat()
        return status if stat.S_ISREG(status.st_mode) else None
    return None


def write_content(source: int, target: int, progress: Progress = no_progress) -> str:
    """Write the content of a file with its holes to an empty regular file, or without them to any other one.

    Returns:
        The SHA-256 of the content, in hexadecimal digits.

    Raises:
        OSError: the source cannot be read, or the target not be written.
    """
    has_holes = takes_holes(target)
    digest = _copy(source, target, os.fstat(source).st_size, progress)
    if has_holes:
        os.lseek(target, 0, os.SEEK_END)  # where the next command of a shell writes
    if stat.S_ISREG(os.fstat(target).st_mode):  # fsync(2) of a pipe is EINVAL
        os.fsync(target)
    return digest


def _copy(source: int, target: int, size: int, progress: Progress) -> str:
    """Copy a file, or share its blocks; return the SHA-256 of the content."""
    if not takes_holes(target) or not share(source, target):
        return copy_data(source, target, size, progress)
    with closing(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)) as nowhere:  # shared blocks are read for the SHA-256
        return copy_data(source, nowhere, size, progress)


def open_file(path: Path, flags: int, what: str) -> int:
    """Open a file of root's; raises HostError, or TakenError where another process has a file lease of it."""
    with host_errors(f"{what} cannot be opened"):
        try:
            return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except BlockingIOError as error:
            raise TakenError(
                f"{what} has a file lease (F_SETLEASE) of another process, such as its tender.",
                "The kernel ends it within a minute: repeat the command. solo5-confine prevents leases of tenders.",
            ) from error


def _missing(name: DiskName) -> NotFoundError:
    return NotFoundError(f"no disk is named {name!r}.", "List them: solo5ctl disk ls")
