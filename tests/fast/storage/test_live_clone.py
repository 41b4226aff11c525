"""A clone in passes shares what has changed, and nothing else. The extents are those of a file system in memory."""

import errno
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from solo5_systemd.storage import live_clone
from solo5_systemd.storage.live_clone import PASSES, SHARED_AT_ONCE, LiveClone, _extents

BLOCK = 4096
SIZE = 1000 * BLOCK
LAST, ENCODED = 0x1, 0x8


class FileSystem:
    """Extents of two files by FIEMAP, and clones of ranges; an extent is (first block, place, blocks, flags).

    `shared` has the ranges that were shared, in blocks; the length 0 is up to the end.
    """

    def __init__(self, source: int, target: int) -> None:
        self.source = source
        self.target = target
        self.extents: dict[int, list[tuple[int, int, int, int]]] = {source: [], target: []}
        self.shared: list[tuple[int, int]] = []
        self.synced = 0
        self.error = 0

    def ioctl(self, descriptor: int, request: int, buffer: bytearray) -> None:
        assert request == live_clone.FIEMAP
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        at, length, flags, _, room, _ = live_clone._HEADER.unpack_from(buffer)
        self.synced += flags
        inside = [e for e in self.extents[descriptor] if (e[0] + e[2]) * BLOCK > at and e[0] * BLOCK < at + length]
        live_clone._HEADER.pack_into(buffer, 0, at, length, flags, len(inside[:room]) if room else len(inside), room, 0)
        for i, (first, place, count, kind) in enumerate(inside[:room]):
            values = (first * BLOCK, place * BLOCK, count * BLOCK, kind)
            live_clone._EXTENT.pack_into(buffer, live_clone._HEADER.size + i * live_clone._EXTENT.size, *values)

    def share(self, source: int, target: int, begin: int, length: int) -> bool:
        self.shared.append((begin // BLOCK, length // BLOCK))
        end = begin + length if length else SIZE * 2
        kept = [e for e in self.extents[target] if e[0] * BLOCK >= end or (e[0] + e[2]) * BLOCK <= begin]
        new = [e for e in self.extents[source] if begin <= e[0] * BLOCK < end]
        self.extents[target] = sorted(kept + new)
        return True

    def taken(self) -> Sequence[tuple[int, int]]:
        """Return the ranges that were shared since the last call."""
        found, self.shared = self.shared, []
        return found


@pytest.fixture
def fs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    with (tmp_path / "source").open("w+b") as source, (tmp_path / "target").open("w+b") as target:
        source.truncate(SIZE)
        subject = FileSystem(source.fileno(), target.fileno())
        monkeypatch.setattr("fcntl.ioctl", subject.ioctl)
        yield subject


@pytest.fixture
def clone(fs: FileSystem) -> LiveClone:
    return LiveClone(fs.source, fs.target, fs.share)


def test_only_what_has_changed_is_shared_again(fs: FileSystem, clone: LiveClone) -> None:
    assert os.fstat(fs.target).st_size == SIZE
    fs.extents[fs.source] = [(0, 100, 10, 0), (20, 200, 10, 0), (900, 300, 100, LAST)]
    assert clone.catch_up()
    assert fs.taken() == [(0, 10), (20, 10), (900, 0)]
    assert clone.finish()
    assert fs.taken() == []
    fs.extents[fs.source][1:2] = [(20, 200, 5, 0), (25, 400, 1, 0), (26, 206, 4, 0)]
    assert clone.finish()
    assert fs.taken() == [(20, 10)]
    assert fs.extents[fs.target] == fs.extents[fs.source]


def test_many_extents_are_read_and_compared_in_sections(
    fs: FileSystem, clone: LiveClone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_clone, "SECTION", 3)
    read: list[int] = []

    def extents(descriptor: int, begin: int, end: int, flags: int) -> bytes | None:
        read.append(begin)
        return _extents(descriptor, begin, end, flags)

    monkeypatch.setattr(live_clone, "_extents", extents)
    fs.extents[fs.source] = [(10 * i, 100 + 20 * i, 5, 0) for i in range(10)]
    assert clone.catch_up(1)
    assert read == [0, 0, 30 * BLOCK, 60 * BLOCK, 90 * BLOCK], "the source as a whole, the clone in sections"
    fs.taken()
    fs.extents[fs.source][4:6] = [(40, 900, 1, 0), (41, 181, 4, 0), (55, 950, 40, 0)]  # across the third section
    fs.extents[fs.source][7:8] = []
    assert clone.finish()
    assert fs.extents[fs.target] == fs.extents[fs.source]
    assert (0, 5) not in fs.taken(), "a section that has not changed"


def test_a_clone_without_a_place_of_its_own_is_replaced(fs: FileSystem, clone: LiveClone) -> None:
    """Also where the source has a hole by now."""
    fs.extents[fs.source] = [(0, 100, 10, 0), (20, 200, 10, ENCODED)]
    assert clone.catch_up()
    del fs.extents[fs.source][1]
    assert clone.finish()
    assert fs.extents[fs.target] == fs.extents[fs.source]


def test_a_hole_that_was_made_is_in_the_clone(fs: FileSystem, clone: LiveClone) -> None:
    fs.extents[fs.source] = [(0, 100, 10, 0), (20, 200, 10, 0)]
    assert clone.catch_up()
    del fs.extents[fs.source][1]
    assert clone.finish()
    assert fs.extents[fs.target] == fs.extents[fs.source]


def test_nothing_but_holes_is_shared_as_a_whole(fs: FileSystem, clone: LiveClone) -> None:
    assert clone.catch_up()
    assert set(fs.taken()) == {(0, 0)}, "which shows that the file system can"


def test_writers_wait_for_some_extents_at_a_time(fs: FileSystem, clone: LiveClone) -> None:
    fs.extents[fs.source] = [(i, 100 + 2 * i, 1, 0) for i in range(2 * SHARED_AT_ONCE + 1)]
    assert clone.finish()
    assert fs.taken() == [(0, SHARED_AT_ONCE), (SHARED_AT_ONCE, SHARED_AT_ONCE), (2 * SHARED_AT_ONCE, 1)]
    assert fs.extents[fs.target] == fs.extents[fs.source]


def test_what_is_allocated_beyond_the_end_is_not_shared(fs: FileSystem, clone: LiveClone) -> None:
    fs.extents[fs.source] = [(0, 100, 10, 0), (999, 200, 50, LAST)]
    assert clone.finish()
    assert fs.taken() == [(0, 10), (999, 0)]
    assert list(live_clone._ranges([live_clone._EXTENT.pack(SIZE, 0, BLOCK, 0)], SIZE)) == []


def test_an_extent_without_a_place_of_its_own_is_always_shared_again(fs: FileSystem, clone: LiveClone) -> None:
    """A part of a compressed extent has the place of the whole, so that the same place can be other data."""
    fs.extents[fs.source] = [(0, 100, 10, 0), (20, 200, 10, ENCODED)]
    assert clone.catch_up()
    fs.taken()
    assert clone.finish()
    assert fs.taken() == [(20, 10)]


def test_more_extents_than_one_call_returns_are_all_read(
    fs: FileSystem, clone: LiveClone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_clone, "_AT_ONCE", 2)
    fs.extents[fs.source] = [(10 * i, 100 * i, 1, 0) for i in range(5)]
    assert clone.catch_up()
    assert fs.extents[fs.target] == fs.extents[fs.source]
    fs.extents[fs.source] = [(0, 100, 10, 0), (20, 200, 10, LAST)]
    assert clone.finish()
    assert fs.extents[fs.target] == fs.extents[fs.source]


@pytest.mark.parametrize(
    "seconds, passes", [((1.0, 0.5, 0.2, 0.19), 4), ((1.0, 1.0), 2), ([0.6**i for i in range(20)], PASSES)]
)
def test_passes_are_made_while_they_get_shorter(
    fs: FileSystem, clone: LiveClone, monkeypatch: pytest.MonkeyPatch, seconds: Sequence[float], passes: int
) -> None:
    clock = itertools.accumulate(itertools.chain.from_iterable((0.0, each) for each in seconds))
    monkeypatch.setattr(live_clone, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    assert clone.catch_up()
    assert len(fs.taken()) == passes


def test_without_extents_all_is_shared_each_time(fs: FileSystem, clone: LiveClone) -> None:
    fs.error = errno.EOPNOTSUPP
    assert clone.catch_up()
    assert fs.taken() == [(0, 0)]
    clone.sync()
    assert clone.finish()
    assert fs.taken() == [(0, 0)]


def test_another_error_is_no_lack_of_extents(fs: FileSystem, clone: LiveClone) -> None:
    fs.error = errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        clone.catch_up()
    with pytest.raises(OSError, match="Input/output error"):
        clone.sync()


def test_dirty_pages_are_written_without_reading_extents(fs: FileSystem, clone: LiveClone) -> None:
    fs.extents[fs.source] = [(0, 100, 10, 0)]
    clone.sync()
    assert (fs.synced, fs.taken()) == (1, [])


@pytest.mark.parametrize("has_extents", [True, False])
def test_a_file_system_that_cannot_share_is_told(fs: FileSystem, has_extents: bool) -> None:
    fs.extents[fs.source] = [(0, 100, 10, 0)] if has_extents else []
    assert not LiveClone(fs.source, fs.target, lambda *_: False).catch_up()
