"""Clones of a file that a guest writes meanwhile: after the first pass, only changed extents are shared again.

FICLONE takes time for each extent of a file (50 µs on XFS), and keeps writers waiting for so long. A disk of 10 GB that
was written in places has thousands of extents. So a clone is made in passes while the guest runs, a few extents at a
time; the last pass, with the guest frozen, shares what was written since the pass before.

An extent that source and clone have in common cannot change as long as the clone has it: the file system writes to
another place. So what has changed is the difference of both lists of extents (FIEMAP). They are compared in sections,
most of which have not changed, so that what is left is the kernel's time: 2 to 3 µs for each extent on XFS, which looks
up whether it is shared, also in several threads.
"""

import errno
import fcntl
import math
import os
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

FIEMAP = 0xC020660B
"""ioctl FS_IOC_FIEMAP, from linux/fs.h."""

_SYNC = 1
"""FIEMAP_FLAG_SYNC: dirty pages are written first, since they have no place until then."""

_LAST = 0x1
_WITHOUT_PLACE = 0x2 | 0x4 | 0x8 | 0x80 | 0x100 | 0x200 | 0x400
"""Flags of extents without a place of their own: unknown, delayed, encoded, encrypted, not aligned, inline, tail."""

_NO_EXTENTS = {errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.EBADR, errno.ENOSYS}
"""Errors of file systems without FIEMAP."""

_SMALL = 4096
"""Bytes of a file of which the extents are not wanted."""

_HEADER = struct.Struct("=QQLLLL")
_EXTENT = struct.Struct("=QQQ16xL12x")
_AT_ONCE = 4096
"""Extents that are read by one ioctl."""

SECTION = 256
"""Extents of a section, whose lists are compared as a whole first."""

SHARED_AT_ONCE = 32
"""Extents that are shared by one ioctl: writers wait for these, and not for all."""

PASSES = 10
GAIN = 0.7
"""A pass that took more than this part of the time of the one before is the last: more passes gain nothing."""

Share = Callable[[int, int, int, int], bool]
"""`storage.copies.share`."""

Sections = Sequence[bytes]
"""The extents of each section, as FIEMAP has them."""


class LiveClone:
    """A file that becomes a clone of another one.

    Args:
        source: descriptor of a regular file, whose size stays.
        target: descriptor of an empty file, which nothing else writes.
        share: shares blocks; False where the file systems cannot.
    """

    def __init__(self, source: int, target: int, share: Share) -> None:
        self._source = source
        self._target = target
        self._share = share
        self._size = os.fstat(source).st_size
        self._bounds: Sequence[int] = (0, self._size)
        self._common: Sections = ()
        self._placeless: Sequence[frozenset[bytes]] = ()
        os.ftruncate(target, self._size)

    def catch_up(self, passes: int = PASSES) -> bool:
        """Make passes while they get shorter, `passes` at most.

        Returns:
            False: the file systems cannot share blocks.

        Raises:
            OSError: another error of ioctl_ficlonerange(2) or FIEMAP.
        """
        took = math.inf
        for _ in range(passes):
            begun = time.monotonic()
            if not self.finish():
                return False
            mapped = self._extents(self._target, 0)
            if mapped is None:
                break
            self._common = mapped
            self._placeless = [frozenset(filter(_is_placeless, _each(section))) for section in mapped]
            took, before = time.monotonic() - begun, took
            if took > GAIN * before:
                break
        return True

    def sync(self) -> None:
        """Write the dirty pages of the source, so that the next pass has few of them; raises OSError as `catch_up`."""
        _mapped(self._source, _header(0, min(self._size, _SMALL), _SYNC, 0))  # all of them, and one extent is read

    def finish(self) -> bool:
        """Make one pass; otherwise as `catch_up`. If nothing wrote meanwhile, the target has the source's content."""
        mapped = self._extents(self._source, _SYNC)
        if mapped is None or not any(mapped):  # not known, or nothing but holes
            return self._share(self._source, self._target, 0, 0)
        if self._common:
            parts = zip(mapped, self._common, self._placeless, strict=True)
            changed = [each for part in parts for each in _changed(*part)]
        else:
            changed = [each for section in mapped for each in _each(section)]
            self._bounds = _sections(changed, self._size)
        return all(
            self._share(self._source, self._target, begin, 0 if end >= self._size else end - begin)
            for begin, end in _ranges(changed, self._size)
        )

    def _extents(self, descriptor: int, flags: int) -> Sections | None:
        """Return the extents of each section; None: the file system has no FIEMAP."""
        found: list[bytes] = []
        for begin, end in pairwise(self._bounds):
            section = _extents(descriptor, begin, end, flags)
            if section is None:
                return None
            found.append(section)
        return found


def _changed(now: bytes, then: bytes, placeless: frozenset[bytes]) -> frozenset[bytes]:
    """Return the extents that only one of two lists has, and those of the first without a place of their own.

    Args:
        now: a section of the source.
        then: the same section of the clone, after the pass before.
        placeless: the extents of `then` without a place of their own.
    """
    if now == then:
        return placeless
    ours = frozenset(_each(now))
    return (ours ^ frozenset(_each(then))) | frozenset(filter(_is_placeless, ours))


def _each(extents: bytes) -> Iterator[bytes]:
    return (extents[at : at + _EXTENT.size] for at in range(0, len(extents), _EXTENT.size))


def _is_placeless(extent: bytes) -> bool:
    return bool(_EXTENT.unpack(extent)[3] & _WITHOUT_PLACE)


def _sections(extents: Iterable[bytes], size: int) -> Sequence[int]:
    """Return where sections begin, and the size of the file."""
    begins = sorted(_EXTENT.unpack(each)[0] for each in extents)
    return (0, *(each for each in begins[SECTION::SECTION] if 0 < each < size), size)


def _ranges(extents: Iterable[bytes], size: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end of the ranges of extents: neighbours together, of SHARED_AT_ONCE extents at most."""
    begin = end = count = 0
    for at, _, length, _ in sorted(map(_EXTENT.unpack, extents)):
        if at >= size:  # allocated beyond the end
            break
        if count and at <= end and count < SHARED_AT_ONCE:
            end, count = max(end, at + length), count + 1
            continue
        if count:
            yield begin, end
        begin, end, count = max(at, end), max(end, at + length), 1
    if begin < end:
        yield begin, end


def _extents(descriptor: int, begin: int, end: int, flags: int) -> bytes | None:
    """Return the extents of a part of a file, as FIEMAP has them; None: its file system has no FIEMAP."""
    found = b""
    while begin < end:
        buffer = _header(begin, end, flags, _AT_ONCE)
        if not _mapped(descriptor, buffer):
            return None
        count = _HEADER.unpack_from(buffer)[3]
        found += buffer[_HEADER.size : _HEADER.size + count * _EXTENT.size]
        if not count:
            break
        at, _, length, kind = _EXTENT.unpack(found[-_EXTENT.size :])
        if kind & _LAST or count < _AT_ONCE:
            break
        begin = at + length
    return found


def _header(begin: int, end: int, flags: int, count: int) -> bytearray:
    """Return a request for the extents from `begin` to `end`, with room for so many."""
    buffer = bytearray(_HEADER.size + count * _EXTENT.size)
    _HEADER.pack_into(buffer, 0, begin, end - begin, flags, 0, count, 0)
    return buffer


def _mapped(descriptor: int, buffer: bytearray) -> bool:
    """Have the kernel complete a request; False: the file system has no FIEMAP."""
    try:
        fcntl.ioctl(descriptor, FIEMAP, buffer)
    except OSError as error:
        if error.errno not in _NO_EXTENTS:
            raise
        return False
    return True
