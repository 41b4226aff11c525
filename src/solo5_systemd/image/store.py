"""The content-addressed store that every task's image runs from.

    /var/lib/solo5/images/SHA256        the image, mode 0444, never changed
    /var/lib/solo5/images/memos/KEY     what is known of a file elsewhere, KEY made of its device, inode, size and times

An image is copied before it is checked, so that what was checked is what runs, whatever happens to the source. The
copy has no name until it is whole and sound: a program killed at any moment leaves nothing behind.

Copying and hashing take no lock, and large images have threads of their own: a start waits for no other one's image.
"""

import asyncio
import errno
import fcntl
import grp
import hashlib
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from io import BufferedRandom, FileIO
from pathlib import Path

from solo5_systemd.errors import HostError, ImageError, InvalidRequestError, Solo5Error, StoreFullError
from solo5_systemd.image.elf import read_manifest
from solo5_systemd.image.manifest import ImageFacts, StoredImage
from solo5_systemd.image.manifest_cache import Memo, is_sha256
from solo5_systemd.procfs import find

STORE = Path("/var/lib/solo5/images")

GROUP = "solo5"
"""Of the tenders: a scope's has to reach its image."""

MAX_SIZE = 4 << 30
"""Bytes; as much as hvt has memory for."""

LARGE = 64 << 20
"""Bytes from which on an image waits for one of `LARGE_AT_ONCE` threads: copying and hashing it takes a while."""

LARGE_AT_ONCE = 2

MIN_AGE = 60.0
"""Seconds since its last use for which an image is kept although no task holds it: its start may be on the way."""

_CEILING = "The operator sets the size of images in plugin.solo5.config.ceilings.image_mb."
_MEMO_AGE = 30 * 86400.0
_SETTLED = 0.1
"""Seconds after which a change must show in a file's times; the kernel's coarse clock ticks at least every 10 ms."""

_FICLONE = 0x40049409  # linux/fs.h
_NO_KERNEL_COPY = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM}
_SOURCE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class _IsLargeError(Exception):
    """An image has to be stored that takes long."""


class ImageStore:
    """Images by the SHA-256 of their content, safe for any number of callers at once; fulfils `backends.Images`."""

    def __init__(self, directory: Path = STORE, *, quota: Callable[[], int] | None = None) -> None:
        self._directory = directory
        self._memos = directory / "memos"
        self._quota = quota
        self._counting = threading.Lock()
        self._coming = 0  # bytes of the images that this process is about to store
        self._large = asyncio.Semaphore(LARGE_AT_ONCE)

    async def take(self, path: str, roots: Sequence[str] = (), largest: int | None = None) -> StoredImage:
        """Bring an image into the store, or find it there.

        Args:
            path: of the image, as the caller sees it.
            roots: directories below one of which it must lie, links followed; none at all: it may lie anywhere.
            largest: bytes that its file may have; None: as many as a tender could use.

        Raises:
            NotFoundError: there is no such file.
            InvalidRequestError: it lies elsewhere.
            ImageError: it is not a regular file, is too large, or no tender would run it.
            StoreFullError: there is no room for it.
            HostError: it cannot be read, or the store cannot be written.
        """
        wanted = path, roots, MAX_SIZE if largest is None else min(largest, MAX_SIZE)
        try:
            return await asyncio.to_thread(self._take, *wanted, LARGE)
        except _IsLargeError:
            return await self._take_large(*wanted)

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

    async def _take_large(self, path: str, roots: Sequence[str], largest: int) -> StoredImage:
        """Find or store an image in a thread of its own, once there are not too many of these."""
        await self._large.acquire()
        executor = ThreadPoolExecutor(1, "image")
        taking = asyncio.get_running_loop().run_in_executor(executor, self._take, path, roots, largest, MAX_SIZE)
        executor.shutdown(wait=False)
        taking.add_done_callback(self._taken)
        return await asyncio.shield(taking)  # its thread goes on when the start is cancelled, and counts until it ends

    def _taken(self, taking: "asyncio.Future[StoredImage]") -> None:
        self._large.release()
        if not taking.cancelled():
            taking.exception()  # a start that was cancelled does not ask for it

    def _take(self, path: str, roots: Sequence[str], largest: int, at_once: int) -> StoredImage:
        """Find or store an image.

        Raises:
            _IsLargeError: it has to be stored, and has more than `at_once` bytes.
        """
        with _open_source(path, roots, largest) as source, _explained(self._directory):
            status = os.fstat(source.fileno())
            with self._lock(fcntl.LOCK_SH):
                stored = self._remembered(status)
            if stored is None and status.st_size > at_once:
                raise _IsLargeError
            return stored or self._add(path, source, status)

    def _collect(self, keep: Set[str], *, min_age: float, dry_run: bool) -> tuple[str, ...]:
        if not self._directory.is_dir():
            return ()
        with _explained(self._directory), self._lock(fcntl.LOCK_EX):
            before = time.time() - min_age
            images = {file.name: file for file in self._images()}
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
        with self._room(path, _disk_usage(status)), self._nameless() as copy:
            _copy(source, copy, status.st_size)
            if _key(os.fstat(source.fileno())) != _key(status):
                raise ImageError(f"image {path!r} changed while it was copied: start it again.")
            facts = _facts(path, copy, status.st_size)
            copy.seek(0)
            memo = Memo(sha256=hashlib.file_digest(copy, "sha256").hexdigest(), facts=facts)
            _settle(copy)
            with self._lock(fcntl.LOCK_SH):
                stored = self._named(path, copy, memo, status)
                if time.time() - status.st_ctime > _SETTLED:
                    self._remember(memo, status)
        return stored

    def _named(self, path: str, copy: BufferedRandom, memo: Memo, status: os.stat_result) -> StoredImage:
        """Give a copy its name, unless the store has its content already."""
        with self._alone():  # other processes store images, too
            stored = self._find(memo, status.st_size)
            if stored is None:
                self._check_room(path, _disk_usage(status))
                _name(copy, self._directory / memo.sha256)
        return stored or StoredImage(
            path=str(self._directory / memo.sha256), sha256=memo.sha256, size=status.st_size, facts=memo.facts
        )

    @contextmanager
    def _room(self, path: str, size: int) -> Iterator[None]:
        """Count an image before it is copied: what this process is about to store keeps to the quota as well."""
        with self._counting:
            self._make()
            self._check_room(path, size, self._coming)
            self._coming += size
        try:
            yield
        finally:
            with self._counting:
                self._coming -= size

    def _check_room(self, path: str, size: int, coming: int = 0) -> None:
        if self._quota is None:
            return
        quota = self._quota()
        used = coming + sum(_disk_usage(file.stat()) for file in self._images())
        if used + size > quota:
            raise StoreFullError(
                f"image {path!r} needs {size} bytes, and the store {self._directory} has {used} of {quota}: "
                "expected room for it.",
                "Set image_store_mb to more: see solo5.toml(5).",
            )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Between a count of what is stored and a name, no other process gives one."""
        descriptor = os.open(self._memos, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _images(self) -> Iterator[Path]:
        return (file for file in self._directory.iterdir() if is_sha256(file.name))

    def _remember(self, memo: Memo, status: os.stat_result) -> None:
        file = self._memo(status)
        file.unlink(missing_ok=True)
        with self._nameless() as content:
            content.write(memo.encode())
            content.flush()
            _settle(content)
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

    def _make(self) -> None:
        """Make the directories as the package's tmpfiles.d(5) does, where it has not: closed to all but the tenders.

        An image may come from a place that only its owner can read.
        """
        if self._memos.is_dir():
            return
        self._directory.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with suppress(FileExistsError):
            self._directory.mkdir(mode=0o700)
            with suppress(KeyError, PermissionError):  # no such group; or not by root, whose store this is then not
                os.chown(self._directory, -1, grp.getgrnam(GROUP).gr_gid)
                self._directory.chmod(0o750)
        self._memos.mkdir(mode=0o700, exist_ok=True)

    @contextmanager
    def _lock(self, mode: int) -> Iterator[None]:
        """Takers among themselves share; a collector is alone, so that it removes nothing that is being found."""
        self._make()
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


def _open_source(path: str, roots: Sequence[str] = (), largest: int = MAX_SIZE) -> FileIO:
    """Open an image after its place and kind are checked, since a device may act on an open, and a FIFO may wait."""
    if "\0" in path:
        raise InvalidRequestError(f"image {path!r} is no path: it contains a NUL byte.")
    found, _ = find(f"image {path!r}", path, roots)
    try:
        status = os.fstat(found)
        problem = _unusable(status, largest)
        if problem:
            raise ImageError(f"image {path!r} {problem}.", _CEILING if largest < status.st_size <= MAX_SIZE else "")
        return FileIO(os.open(f"/proc/self/fd/{found}", _SOURCE))
    except OSError as error:
        raise HostError(f"image {path!r} cannot be read: {error.strerror}.") from error
    finally:
        os.close(found)


def _unusable(status: os.stat_result, largest: int) -> str:
    if not stat.S_ISREG(status.st_mode):
        return f"is {_KIND.get(stat.S_IFMT(status.st_mode), 'no file')}: expected a regular file"
    if status.st_size > largest:
        return f"has {status.st_size} bytes: expected at most {largest}"
    return ""


_KIND = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def _facts(path: str, file: FileIO | BufferedRandom, size: int) -> ImageFacts:
    try:
        return read_manifest(file, size)
    except ImageError as error:
        raise ImageError(f"image {path!r} cannot run: {error.sentence}", error.hint) from error


def _key(status: os.stat_result) -> str:
    return f"{status.st_dev:x}-{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}-{status.st_ctime_ns:x}"


def _disk_usage(status: os.stat_result) -> int:
    """Bytes that a file takes of its file system: holes take none."""
    return status.st_blocks * 512


def _copy(source: FileIO, copy: BufferedRandom, size: int) -> None:
    """Share the blocks where the file system can, let the kernel copy where it can, else copy; holes stay holes."""
    try:
        fcntl.ioctl(copy.fileno(), _FICLONE, source.fileno())
    except OSError:
        for start, end in _extents(source.fileno(), size):
            source.seek(start)
            os.lseek(copy.fileno(), start, os.SEEK_SET)
            while source.tell() < end and _copied(source.fileno(), copy.fileno(), end - source.tell()):
                pass
        os.ftruncate(copy.fileno(), size)


def _extents(file: int, size: int) -> Iterator[tuple[int, int]]:
    """Where a file has data, as lseek(2) has it; a file system that knows no holes has one extent."""
    end = 0
    while end < size:
        try:
            start = os.lseek(file, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return  # there is nothing but a hole
        end = os.lseek(file, start, os.SEEK_HOLE)
        yield start, min(end, size)


def _copied(source: int, copy: int, size: int) -> int:
    """Copy at most so many bytes from where both files stand; how many it were."""
    chunk = min(size, 1 << 30)
    try:
        return os.copy_file_range(source, copy, chunk)
    except OSError as error:
        if error.errno not in _NO_KERNEL_COPY:
            raise
        return os.sendfile(copy, source, None, chunk)  # None: from where it stands


def _settle(file: BufferedRandom) -> None:
    """Have the content on stable storage before it has a name."""
    os.fchmod(file.fileno(), 0o444)
    os.fsync(file.fileno())


def _name(file: BufferedRandom, path: Path) -> None:
    """Give a nameless file its name; whoever came first wins, since both would have the same content."""
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
        sentence = f"the image store {directory} cannot be used: {error.strerror}."
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreFullError(sentence, "Free some space of its file system.") from error
        raise HostError(sentence) from error
