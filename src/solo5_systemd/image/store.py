"""The image store: content-addressed copies of images, which tasks execute (`docs/decisions/image-store.md`).

    /var/lib/solo5/images/SHA256         the image, mode 0444, immutable
    /var/lib/solo5/images/manifests/KEY  the memo of a source file; KEY has its device, inode, size and times; where its
                                         file system is read-only also the boot: it may be replaced entirely, by one
                                         that was built with the same times
    /var/lib/solo5/images/locks/SHA256   the lock of an image that a start is about to use
    /var/lib/solo5/images/locks/store    the lock of the store, and /var/lib/solo5/images/locks/add of what is added

Tenders can open the directory and their images, so that locks are on files of their own, which only root can open.

Copying and hashing need no lock, and large images have threads of their own: no start waits for another one's image.
"""

import asyncio
import errno
import grp
import hashlib
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from io import BufferedRandom, FileIO
from pathlib import Path

from solo5_systemd.base.atomic_file import link_unnamed, open_unnamed, replace_file
from solo5_systemd.base.concurrency import in_thread
from solo5_systemd.base.errors import HostError, ImageError, InvalidRequestError, StoreFullError, host_errors
from solo5_systemd.base.file_copies import data_of, share
from solo5_systemd.base.locks import closing, closing_on_error, is_locked, lock_file
from solo5_systemd.base.paths import PLACE, READ_UNTRUSTED, boot_id, kind_of, open_in_thread, open_path, version_of
from solo5_systemd.image.manifest import Manifest, StoredImage, is_sha256

STORE = Path("/var/lib/solo5/images")

GROUP = "solo5"
"""The group of tenders, which may search the directory: the tender of a scope opens its image by path."""

MAX_SIZE = 4 << 30
"""Bytes; the maximum of guest memory under hvt."""

LARGE = 64 << 20
"""Bytes; a larger image waits for one of `LARGE_AT_ONCE` threads, since copying and hashing it is slow."""

LARGE_AT_ONCE = 2

MIN_AGE_S = 60.0
"""How long after its last use an image without a task is kept: its start may be in progress. See also `hold`."""

ROOM_MIN_AGE_S = 10.0
"""The same where room is made for a start."""

_STORE, _ADD = "store", "add"
_SIZE_HINT = "The operator sets the size of images in plugin.solo5.config.ceilings.image_mb."
MEMOS_MAX = 2048
"""Each source file has a memo, such as the artifact of each allocation. At this number all are removed, and the next
start of a file reads it again: `collect` reads all of them, and no start finds its image meanwhile."""

_TIMES_SETTLE_S = 0.1
"""The age of a change from which on file times reveal it; the kernel's coarse clock ticks at least every 10 ms."""


class _LargeImageError(Exception):
    """The image must be copied, and is larger than the caller allows in its thread."""


class ImageStore:
    """The image store, safe for concurrent use by threads and processes.

    Raises:
        HostError: (a method) the store cannot be used, or an image was removed from it.
    """

    def __init__(
        self,
        directory: Path = STORE,
        *,
        quota: Callable[[], int] = lambda: sys.maxsize,
        room: Callable[[], int] = lambda: sys.maxsize,
    ) -> None:
        """Take a directory; `quota` returns the bytes that all images may have, `room` those of the file system now."""
        self._directory = directory
        self._memos = directory / "manifests"
        self._locks = directory / "locks"
        self._quota = quota
        self._room = room
        self._pending_lock = threading.Lock()
        self._pending_bytes = 0  # bytes of the images that this process is copying
        self._large = ThreadPoolExecutor(LARGE_AT_ONCE, "image")

    async def take(
        self,
        path: str,
        roots: Sequence[str] = (),
        largest: int | None = None,
        admit: Callable[[int], None] = lambda _size: None,
    ) -> StoredImage:
        """Return an image from the store, after copying it there if it is new.

        Args:
            roots: directories, of which one must contain the path with symbolic links resolved; empty: no restriction.
            largest: the maximum file size in bytes; None: `MAX_SIZE`.
            admit: called with the size of an image that the store lacks, before it is copied; it may raise.

        Raises:
            NotFoundError: the file does not exist.
            InvalidRequestError: the path is outside of `roots`.
            ImageError: not a regular file, too large, or no tender on this host runs it.
            StoreFullError: the quota or the file system has no room.
        """
        request = path, roots, largest, admit
        try:
            return await asyncio.to_thread(self._take, *request, LARGE)
        except _LargeImageError:  # after a cancellation, its thread runs on and counts until its end
            return await asyncio.get_running_loop().run_in_executor(self._large, self._take, *request, MAX_SIZE)

    @in_thread
    def preview(self, path: str, roots: Sequence[str] = (), largest: int | None = None) -> StoredImage:
        """Return what `take` would, from the file itself, and raise as it; nothing is written, no room needed."""
        with _open_source(path, roots, largest) as source, _store_errors(self._directory):
            status = os.fstat(source.fileno())
            return self._read_memo(source, status) or self._read(path, source, status.st_size)

    async def open(self, image: StoredImage) -> int:
        """Open a stored image with O_PATH."""
        with _store_errors(self._directory):
            return os.open(image.path, PLACE)

    async def hold(self, image: StoredImage) -> int:
        """Keep a stored image, whatever its age, until the returned descriptor is closed."""

        def hold() -> int:
            with _store_errors(self._directory), self._lock(shared=True):
                with closing_on_error(lock_file(self._locks / image.sha256, shared=True)) as held:
                    os.stat(image.path, follow_symlinks=False)  # noqa: PTH116 - a path of the store, as text
                return held

        return await open_in_thread(hold)

    @in_thread
    def collect(self, keep: Set[str], *, min_age: float = MIN_AGE_S, dry_run: bool = False) -> tuple[str, ...]:
        """Remove unused images, and memos that are damaged or without an image; return the SHA-256 of each image.

        Args:
            keep: the SHA-256 of each image that a task has.
            min_age: seconds since its last use for which an unused image is kept.
        """
        if not self._directory.is_dir():
            return ()
        with _store_errors(self._directory), self._lock():
            before = time.time() - min_age
            images = {file.name: file for file in self._images()}
            old = {n: file for n, file in images.items() if n not in keep and file.stat().st_mtime < before}
            unused = {n: file for n, file in old.items() if not is_locked(self._locks / n)}
            if not dry_run:
                for file in (*unused.values(), *self._stale_memos(images.keys() - unused.keys())):
                    file.unlink()
                for name in unused:
                    (self._locks / name).unlink(missing_ok=True)
            return tuple(sorted(unused))

    def _take(
        self, path: str, roots: Sequence[str], largest: int | None, admit: Callable[[int], None], at_once: int
    ) -> StoredImage:
        with _open_source(path, roots, largest) as source, _store_errors(self._directory):
            status = os.fstat(source.fileno())
            with self._lock(shared=True):
                stored = self._read_memo(source, status)
                if stored is not None and self._has(stored):
                    return stored
            if status.st_size > at_once:
                raise _LargeImageError
            admit(status.st_size)
            return self._add(path, source, status)

    def _read_memo(self, source: FileIO, status: os.stat_result) -> StoredImage | None:
        with suppress(FileNotFoundError, InvalidRequestError):
            return StoredImage.decode(self._memo(source, status).read_bytes(), str(self._directory))
        return None

    def _has(self, image: StoredImage) -> bool:
        """Return whether the store has an image, which is used now."""
        path = Path(image.path)
        with suppress(FileNotFoundError):
            if path.lstat().st_size == image.size:
                os.utime(path)  # the time of its last use, for `collect`
                return True
            path.unlink()  # cut short by a crash of the machine
        return False

    def _add(self, path: str, source: FileIO, status: os.stat_result) -> StoredImage:
        _manifest(path, source, status.st_size)  # first, to avoid the copy of a large file that is no image
        with (
            self._reserved_room(path, status.st_blocks * 512),
            os.fdopen(open_unnamed(self._directory, 0o444), "w+b") as copy,
        ):
            _copy(source, copy, status.st_size)
            if version_of(os.fstat(source.fileno())) != version_of(status):
                raise ImageError(f"image {path!r} changed while it was copied: start it again.")
            stored = self._read(path, copy, status.st_size)
            os.fchmod(copy.fileno(), 0o444)
            os.fsync(copy.fileno())
            with self._lock(shared=True):
                # Against other processes: room is checked and used in one step.
                with closing(lock_file(self._locks / _ADD)):
                    if not self._has(stored):  # another start may have added the same content
                        self._check_room(path, status.st_blocks * 512)
                        link_unnamed(copy.fileno(), Path(stored.path))
                if time.time() - status.st_ctime > _TIMES_SETTLE_S:  # a write right now might leave the times unchanged
                    with suppress(OSError):  # only a cache: without room for it, the image is there all the same
                        self._limit_memos()
                        replace_file(self._memo(source, status), stored.encode(), several_writers=True)
        return stored

    def _read(self, path: str, file: FileIO | BufferedRandom, size: int) -> StoredImage:
        """Return an image as the store has it or would have it, read from its content."""
        manifest = _manifest(path, file, size)
        file.seek(0)
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return StoredImage(path=str(self._directory / sha256), sha256=sha256, size=size, manifest=manifest)

    @contextmanager
    def _reserved_room(self, path: str, size: int) -> Iterator[None]:
        """Reserve room for an image while it is copied: concurrent copies of this process count for the quota."""
        with self._pending_lock:
            self._make_directories()
            self._check_room(path, size, self._pending_bytes)
            if self._pending_bytes + size > (room := self._room()):
                raise StoreFullError(
                    f"image {path!r} needs {size} bytes of the file system of {self._directory}: expected at most "
                    f"{max(0, room - self._pending_bytes)}, since the rest is promised to other tasks or stays "
                    "free as a reserve.",
                    "Free some space in it; the operator sets limits.reserve_mb in solo5.toml(5).",
                )
            self._pending_bytes += size
        try:
            yield
        finally:
            with self._pending_lock:
                self._pending_bytes -= size

    def _check_room(self, path: str, size: int, pending: int = 0) -> None:
        quota = self._quota()
        used = pending
        for file in self._images():
            with suppress(FileNotFoundError):  # `collect` has removed it since: the store is not always locked here
                used += file.stat().st_blocks * 512
        if used + size > quota:
            raise StoreFullError(
                f"image {path!r} needs {size} bytes, and the store {self._directory} has {used} of {quota}: "
                "expected room for it.",
                "Set image_store_mb to more: see solo5.toml(5).",
            )

    def _images(self) -> Iterator[Path]:
        return (file for file in self._directory.iterdir() if is_sha256(file.name))

    def _limit_memos(self) -> None:
        names = os.listdir(self._memos)  # noqa: PTH208 - for their number
        memos = [name for name in names if not name.startswith(".")]  # without those that are being written
        for name in memos if len(memos) >= MEMOS_MAX else ():
            (self._memos / name).unlink(missing_ok=True)  # another process removes the same ones

    def _memo(self, source: FileIO, status: os.stat_result) -> Path:
        is_read_only = os.fstatvfs(source.fileno()).f_flag & os.ST_RDONLY
        return self._memos / (version_of(status) + (f"-{boot_id()}" if is_read_only else ""))

    def _stale_memos(self, images: Set[str]) -> Iterator[Path]:
        for file in self._memos.iterdir():
            with suppress(InvalidRequestError):
                if StoredImage.decode(file.read_bytes(), "").sha256 in images:
                    continue
            yield file

    def _make_directories(self) -> None:
        """Make the directories like the package's tmpfiles.d(5), if they are missing: only root and tenders can search.

        An image may come from a path that only its owner can read.
        """
        if self._memos.is_dir():  # made last, so that the others are there
            return
        self._directory.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with suppress(FileExistsError):
            self._directory.mkdir(mode=0o700)
            with suppress(KeyError, PermissionError):  # no such group, or the caller is not root
                os.chown(self._directory, -1, grp.getgrnam(GROUP).gr_gid)
                self._directory.chmod(0o750)
        self._memos.mkdir(mode=0o700, exist_ok=True)

    def _lock(self, *, shared: bool = False) -> AbstractContextManager[int]:
        """Lock the store: shared for `take`; exclusive for `collect`, so that no image is removed as it is found."""
        self._make_directories()
        return closing(lock_file(self._locks / _STORE, shared=shared))


def manifest_of(path: str) -> Manifest:
    """Read the manifest of an image in place, as `solo5ctl image` shows it; raises as `ImageStore.take`."""
    with _open_source(path) as source:
        return _manifest(path, source, os.fstat(source.fileno()).st_size)


def _open_source(path: str, roots: Sequence[str] = (), largest: int | None = None) -> FileIO:
    """Open an image after a check of its place and kind: open(2) may act on a device, and block on a FIFO."""
    if "\0" in path:  # os.open would raise a ValueError
        raise InvalidRequestError(f"image {path!r} is not a path: it contains a NUL byte.")
    found, _ = open_path(f"image {path!r}", path, roots)
    with closing(found), host_errors(f"image {path!r} cannot be read"):
        status = os.fstat(found)
        if not stat.S_ISREG(status.st_mode):
            raise ImageError(f"image {path!r} is {kind_of(status)}: expected a regular file.")
        most = MAX_SIZE if largest is None else min(largest, MAX_SIZE)
        if (size := status.st_size) > most:
            hint = _SIZE_HINT if size <= MAX_SIZE else ""  # no setting permits more than MAX_SIZE
            raise ImageError(f"image {path!r} has {size} bytes: expected at most {most}.", hint)
        return FileIO(os.open(f"/proc/self/fd/{found}", READ_UNTRUSTED))


def _manifest(path: str, file: FileIO | BufferedRandom, size: int) -> Manifest:
    from solo5_systemd.image.elf import read_manifest  # imported here for startup time: not of a stored image

    try:
        return read_manifest(file, size)
    except ImageError as error:
        raise ImageError(f"image {path!r} cannot run: {error.sentence}", error.hint) from error


def _copy(source: FileIO, copy: BufferedRandom, size: int) -> None:
    """Copy a file by FICLONE, else by sendfile(2); holes stay holes."""
    if share(source.fileno(), copy.fileno()):
        return
    for at, end in data_of(source.fileno(), size):
        os.lseek(copy.fileno(), at, os.SEEK_SET)
        # A source that has become shorter ends the loop, and the caller compares its times.
        while at < end and (sent := os.sendfile(copy.fileno(), source.fileno(), at, min(end - at, 1 << 30))):
            at += sent
    os.ftruncate(copy.fileno(), size)


@contextmanager
def _store_errors(directory: Path) -> Iterator[None]:
    """Turn an OSError into a StoreFullError (no space, quota) or a HostError."""
    try:
        yield
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        kind, hint = (StoreFullError, "Free some space in its file system.") if is_full else (HostError, "")
        raise kind(f"the image store {directory} cannot be used: {error.strerror or error}.", hint) from error
