"""Copies of the files of disks and images: shared blocks where the file system can, else the data without the holes."""

import errno
import fcntl
import hashlib
import os
import stat
import struct
from collections.abc import Callable, Iterator

FICLONERANGE = 0x4020940D
"""ioctl_ficlonerange(2), from linux/fs.h."""

CHUNK = 1 << 20
"""Bytes that are read at a time."""

_CANNOT_SHARE = {errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.EPERM, errno.ENOSYS, errno.EISDIR}
_ZEROS = bytes(CHUNK)

Progress = Callable[[int], None]
"""Called with the bytes that are done; a hole counts."""


def no_progress(_done: int) -> None:
    """Report nothing."""


def share(source: int, target: int, length: int = 0) -> bool:
    """Make a file share the blocks of another one, both by descriptor; False where the file systems cannot.

    Args:
        length: bytes from the beginning, a multiple of the file system's block; 0: all.

    Raises:
        OSError: another error, such as ENOSPC.
    """
    try:
        fcntl.ioctl(target, FICLONERANGE, struct.pack("=qQQQ", source, 0, length, 0))
    except OSError as error:
        if error.errno not in _CANNOT_SHARE:
            raise
        return False
    return True


def can_share(source: int, target: int) -> bool:
    """Return whether a file can share the blocks of another one, whose first block it then has; raises as `share`."""
    block = os.fstatvfs(target).f_bsize
    return share(source, target, block if os.fstat(source).st_size > block else 0)


def takes_holes(target: int) -> bool:
    """Return whether a file can get holes: an empty regular file. One that has content, of others, gets all bytes."""
    status, flags = os.fstat(target), fcntl.fcntl(target, fcntl.F_GETFL)
    return stat.S_ISREG(status.st_mode) and not status.st_size and not flags & os.O_APPEND


def data_of(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each part of a file that is no hole, in order, up to `size` bytes."""
    at = 0
    while at < size:
        try:
            begin = os.lseek(descriptor, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                return
            if error.errno != errno.EINVAL:
                raise
            yield at, size  # the file system reports no holes
            return
        at = min(size, os.lseek(descriptor, begin, os.SEEK_HOLE))
        if begin < at:
            yield begin, at


def copy_data(source: int, target: int, size: int, progress: Progress = no_progress, *, hashed: bool = True) -> str:
    """Copy a file without its holes into an empty one, or with them to any other file at its position.

    Args:
        source: descriptor of a regular file.
        target: descriptor.
        size: bytes of the source.
        progress: called after each chunk.
        hashed: False: no SHA-256, which takes longer than the copy: holes are hashed, too.

    Returns:
        The SHA-256 of the content with its holes, in hexadecimal digits; empty if it is not `hashed`.

    Raises:
        OSError: a file cannot be read or written, or the source is shorter.
    """
    digest = hashlib.sha256() if hashed else None
    is_file = takes_holes(target)
    if is_file:
        os.ftruncate(target, size)
    done = 0
    for begin, end in data_of(source, size) if is_file else [(0, size)]:
        if digest:
            _zeros(digest.update, begin - done)
        for at in range(begin, end, CHUNK):
            data = _read(source, at, min(CHUNK, end - at))
            if digest:
                digest.update(data)
            write_all(target, data, at if is_file else None)
            progress(at + len(data))
        done = end
    if digest:
        _zeros(digest.update, size - done)
    progress(size)
    return digest.hexdigest() if digest else ""


def receive_data(source: int, target: int, progress: Progress = no_progress) -> tuple[int, str]:
    """Copy what a pipe has into an empty file, with holes for chunks of zeros; return its size and SHA-256."""
    digest, at = hashlib.sha256(), 0
    while data := _filled(source, CHUNK):
        digest.update(data)
        if data != _ZEROS[: len(data)]:
            write_all(target, data, at)
        at += len(data)
        progress(at)
    os.ftruncate(target, at)
    return at, digest.hexdigest()


def write_all(descriptor: int, data: bytes, at: int | None) -> None:
    """Write all of `data`; `at`: the position; None: the current one, of a pipe."""
    view = memoryview(data)
    while view:
        written = os.write(descriptor, view) if at is None else os.pwrite(descriptor, view, at)
        view = view[written:]
        at = None if at is None else at + written


def _filled(descriptor: int, count: int) -> bytes:
    """Read `count` bytes of a pipe, or fewer at its end.

    A file object would take a pipe that does not block, and is empty, for one that has ended.
    """
    parts: list[bytes] = []
    while count and (data := os.read(descriptor, count)):
        parts.append(data)
        count -= len(data)
    return b"".join(parts)


def _read(descriptor: int, at: int, count: int) -> bytes:
    data = os.pread(descriptor, count, at)
    if not data:
        raise OSError(errno.EIO, "it has become shorter meanwhile")
    return data if len(data) == count else data + _read(descriptor, at + len(data), count - len(data))


def _zeros(put: Callable[[bytes], object], count: int) -> None:
    while count > 0:
        put(_ZEROS[: min(count, CHUNK)])
        count -= CHUNK
