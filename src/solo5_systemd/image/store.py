"""The content-addressed store that every task's image runs from.

    /var/lib/solo5/images/SHA256        the image, mode 0444, never changed
    /var/lib/solo5/images/memos/KEY     what is known of a file elsewhere, KEY made of its device, inode, size and times

An image is copied before it is checked, so that what was checked is what runs, whatever happens to the source. The
copy has no name until it is whole and sound: a program killed at any moment leaves nothing behind.
"""

import asyncio
import errno
import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from io import BufferedRandom, FileIO
from pathlib import Path

from solo5_systemd.errors import HostError, ImageError, InvalidRequestError, NotFoundError, Solo5Error
from solo5_systemd.image.elf import read_manifest
from solo5_systemd.image.manifest import ImageFacts, StoredImage
from solo5_systemd.image.memo import Memo, is_sha256
from solo5_systemd.openfile import check_place

STORE = Path("/var/lib/solo5/images")

MAX_SIZE = 4 << 30
"""Bytes; as much as hvt has memory for."""

MIN_AGE = 60.0
"""Seconds since its last use for which an image is kept although no task holds it: its start may be on the way."""

_MEMO_AGE = 30 * 86400.0
_SETTLED = 0.1
"""Seconds after which a change must show in a file's times; the kernel's coarse clock ticks at least every 10 ms."""

_FICLONE = 0x40049409  # linux/fs.h
_NO_KERNEL_COPY = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM}
_SOURCE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class ImageStore:
    """Images by the SHA-256 of their content, safe for any number of callers at once; fulfils `backends.Images`."""

    def __init__(self, directory: Path = STORE) -> None:
        self._directory = directory
        self._memos = directory / "memos"

    async def take(self, path: str, roots: Sequence[str] = ()) -> StoredImage:
        """Bring an image into the store, or find it there.

        Args:
            path: of the image, as the caller sees it.
            roots: directories below one of which it must lie, links followed; none at all: it may lie anywhere.

        Raises:
            NotFoundError: there is no such file.
            InvalidRequestError: it lies elsewhere.
            ImageError: it is not a regular file, or no tender would run it.
            HostError: it cannot be read, or the store cannot be written.
        """
        return await asyncio.to_thread(self._take, path, roots)

    async def open(self, image: StoredImage) -> int:
        """Open a stored image by O_PATH.

        Raises:
            HostError: it was removed meanwhile.
        """
        with _explained(self._directory):
            return os.open(image.path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)

    async def collect(self, keep: Set[str], *, min_age: float = MIN_AGE, dry_run: bool = False) -> tuple[str, ...]:
        """Remove the images that nobody needs, and memos that lead nowhere or are of no use any more.

        Args:
            keep: SHA-256 of each image that a task holds.
            min_age: seconds since its last use for which an image is kept all the same.
            dry_run: remove nothing.

        Returns:
            The SHA-256 of each image removed.

        Raises:
            HostError: the store cannot be written.
        """
        return await asyncio.to_thread(self._collect, keep, min_age=min_age, dry_run=dry_run)

    def _take(self, path: str, roots: Sequence[str]) -> StoredImage:
        with _open_source(path) as source, _explained(self._directory), self._lock(fcntl.LOCK_SH):
            check_place(f"image {path!r}", source.fileno(), roots)
            status = os.fstat(source.fileno())
            return self._remembered(status) or self._add(path, source, status)

    def _collect(self, keep: Set[str], *, min_age: float, dry_run: bool) -> tuple[str, ...]:
        if not self._directory.is_dir():
            return ()
        with _explained(self._directory), self._lock(fcntl.LOCK_EX):
            before = time.time() - min_age
            images = {file.name: file for file in self._directory.iterdir() if is_sha256(file.name)}
            unused = {n: file for n, file in images.items() if n not in keep and file.stat().st_mtime < before}
            if not dry_run:
                for file in (*unused.values(), *self._stale_memos(images.keys() - unused.keys())):
                    file.unlink()
            return tuple(sorted(unused))

    def _remembered(self, status: os.stat_result) -> StoredImage | None:
        file = self._memo(status)
        try:
            memo = Memo.decode(file.read_bytes())
        except (FileNotFoundError, InvalidRequestError):
            return None
        stored = self._find(memo, status.st_size)
        if stored:
            os.utime(file)
        return stored

    def _find(self, memo: Memo, size: int) -> StoredImage | None:
        path = self._directory / memo.sha256
        with suppress(FileNotFoundError):
            if path.lstat().st_size == size:
                os.utime(path)  # its age, for collect
                return StoredImage(path=str(path), sha256=memo.sha256, size=size, facts=memo.facts)
            path.unlink()  # cut short by a crash of the machine
        return None

    def _add(self, path: str, source: FileIO, status: os.stat_result) -> StoredImage:
        _facts(path, source, status.st_size)  # a large file that is no image is not worth a copy
        with self._nameless() as copy:
            _copy(source, copy)
            if _key(os.fstat(source.fileno())) != _key(status):
                raise ImageError(f"image {path!r} changed while it was copied: start it again.")
            facts = _facts(path, copy, status.st_size)
            copy.seek(0)
            memo = Memo(sha256=hashlib.file_digest(copy, "sha256").hexdigest(), facts=facts)
            stored = self._find(memo, status.st_size)
            if stored is None:
                _name(copy, self._directory / memo.sha256)
        if time.time() - status.st_ctime > _SETTLED:
            self._remember(memo, status)
        return stored or StoredImage(
            path=str(self._directory / memo.sha256), sha256=memo.sha256, size=status.st_size, facts=facts
        )

    def _remember(self, memo: Memo, status: os.stat_result) -> None:
        file = self._memo(status)
        file.unlink(missing_ok=True)
        with self._nameless() as content:
            content.write(memo.encode())
            content.flush()
            _name(content, file)

    def _memo(self, status: os.stat_result) -> Path:
        return self._memos / _key(status)

    def _stale_memos(self, images: Set[str]) -> Iterator[Path]:
        for file in self._memos.iterdir():
            try:
                useful = Memo.decode(file.read_bytes()).sha256 in images
            except InvalidRequestError:
                useful = False
            if not useful or file.stat().st_mtime < time.time() - _MEMO_AGE:
                yield file

    def _nameless(self) -> BufferedRandom:
        flags = os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC
        return open(os.open(self._directory, flags, 0o444), "w+b")  # noqa: PTH123 - a descriptor

    @contextmanager
    def _lock(self, mode: int) -> Iterator[None]:
        """Takers among themselves share; a collector is alone, so that it removes nothing that is being found."""
        self._memos.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, mode)
            yield
        finally:
            os.close(descriptor)


def read_facts(path: str) -> ImageFacts:
    """What an image says about itself, read where it is; whoever is to run it takes it into the store instead.

    Raises:
        NotFoundError: there is no such file.
        ImageError: it is not a regular file, or no tender would run it.
        HostError: it cannot be read.
    """
    with _open_source(path) as source:
        return _facts(path, source, os.fstat(source.fileno()).st_size)


def _open_source(path: str) -> FileIO:
    try:
        file = FileIO(path, "r", opener=lambda name, _: os.open(name, _SOURCE))  # closes a directory by itself
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError(f"image {path!r} does not exist.") from error
    except IsADirectoryError as error:
        raise ImageError(f"image {path!r} is a directory: expected a regular file.") from error
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENODEV):  # what opening a socket, or a device without a driver, says
            raise ImageError(f"image {path!r} is a socket or a device: expected a regular file.") from error
        raise HostError(f"image {path!r} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise InvalidRequestError(f"image {path!r} is no path: it contains a NUL byte.") from error
    status = os.fstat(file.fileno())
    problem = _unusable(status)
    if problem:
        file.close()
        raise ImageError(f"image {path!r} {problem}.")
    return file


def _unusable(status: os.stat_result) -> str:
    if not stat.S_ISREG(status.st_mode):
        return f"is {_KIND.get(stat.S_IFMT(status.st_mode), 'no file')}: expected a regular file"
    if status.st_size > MAX_SIZE:
        return f"has {status.st_size} bytes: expected at most {MAX_SIZE}"
    return ""


_KIND = {stat.S_IFIFO: "a FIFO", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def _facts(path: str, file: FileIO | BufferedRandom, size: int) -> ImageFacts:
    try:
        return read_manifest(file, size)
    except ImageError as error:
        raise ImageError(f"image {path!r} cannot run: {error.sentence}", error.hint) from error


def _key(status: os.stat_result) -> str:
    return f"{status.st_dev:x}-{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}-{status.st_ctime_ns:x}"


def _copy(source: FileIO, copy: BufferedRandom) -> None:
    """Share the blocks where the file system can, let the kernel copy where it can, else copy."""
    try:
        fcntl.ioctl(copy.fileno(), _FICLONE, source.fileno())
    except OSError:
        source.seek(0)
        while _copied(source.fileno(), copy.fileno()):
            pass


def _copied(source: int, copy: int) -> int:
    chunk = 1 << 30
    try:
        return os.copy_file_range(source, copy, chunk)
    except OSError as error:
        if error.errno not in _NO_KERNEL_COPY:
            raise
        return os.sendfile(copy, source, None, chunk)  # None: from where it stands


def _name(file: BufferedRandom, path: Path) -> None:
    """Give a nameless file its name; whoever came first wins, since both would have the same content."""
    os.fchmod(file.fileno(), 0o444)
    os.fsync(file.fileno())
    directory = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        # Python follows the link in /proc only where it calls linkat(2), which it does for a directory descriptor.
        os.link(f"/proc/self/fd/{file.fileno()}", path.name, dst_dir_fd=directory, follow_symlinks=True)
    except FileExistsError:
        pass
    finally:
        os.close(directory)


@contextmanager
def _explained(directory: Path) -> Iterator[None]:
    """Turn what the machine refuses into a sentence."""
    try:
        yield
    except Solo5Error:
        raise
    except OSError as error:
        hint = "Run `solo5ctl gc`, or free some space." if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise HostError(f"the image store {directory} cannot be used: {error.strerror}.", hint) from error
