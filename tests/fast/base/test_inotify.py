"""Removed and replaced files, on the kernel's inotify."""

import asyncio
import ctypes
import errno
import os
import select
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.fakes.background import yields

from solo5_systemd.base import inotify as module
from solo5_systemd.base.inotify import Removals, RemovedEntries


@pytest.fixture
def link(tmp_path: Path) -> Path:
    path = tmp_path / "link"
    path.symlink_to("nowhere")
    return path


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def settled(removals: Removals, directory: Path) -> None:
    """Wait until all events so far have been read: the kernel keeps their order."""
    last, seen = directory / "last", asyncio.Event()
    last.touch()
    removals.watch(str(last), seen.set)
    last.unlink()
    await seen.wait()


async def test_the_removal_of_a_symbolic_link_is_noticed_once(link: Path) -> None:
    before, removals, removed = descriptors(), Removals(), asyncio.Event()
    removals.watch(str(link), removed.set)
    await settled(removals, link.parent)
    assert not removed.is_set()
    link.unlink()
    await removed.wait()
    removed.clear()
    link.symlink_to("elsewhere")
    link.unlink()
    await settled(removals, link.parent)
    assert not removed.is_set()
    assert descriptors() == before


async def test_a_file_that_is_renamed_over_another_removes_that(link: Path) -> None:
    removals, removed = Removals(), asyncio.Event()
    removals.watch(str(link), removed.set)
    other = link.with_name("other")
    other.symlink_to("elsewhere")
    other.rename(link)
    await removed.wait()
    assert link.is_symlink()


async def test_each_watch_of_a_file_is_called_and_other_files_are_not(link: Path, tmp_path: Path) -> None:
    removals, calls = Removals(), list[str]()
    done = asyncio.Event()
    (tmp_path / "other").touch()
    first = removals.watch(str(link), lambda: calls.append("first"))
    assert removals.watch(str(link), done.set) == first
    other = removals.watch(str(tmp_path / "other"), lambda: calls.append("other"))
    link.unlink()
    await done.wait()
    assert calls == ["first"]
    removals.unwatch(other, done.set)  # a callback of another watch: without effect
    (tmp_path / "other").unlink()
    await settled(removals, tmp_path)
    assert calls == ["first", "other"]


async def test_without_watches_there_is_no_descriptor(link: Path) -> None:
    before, removals = descriptors(), Removals()
    calls: list[str] = []

    def removed() -> None:
        calls.append("removed")

    watch = 0
    for _ in range(3):
        watch = removals.watch(str(link), removed)
        removals.unwatch(watch, removed)
        assert descriptors() == before + 1  # for the next watch, if it comes at once
    await yields()
    assert descriptors() == before
    removals.unwatch(watch, removed)  # again: without effect
    link.unlink()
    await settled(removals, link.parent)
    assert calls == []


async def test_a_file_that_does_not_exist_cannot_be_watched(tmp_path: Path) -> None:
    before, removals = descriptors(), Removals()
    with pytest.raises(FileNotFoundError):
        removals.watch(str(tmp_path / "none"), lambda: None)
    assert descriptors() == before


@pytest.fixture
def no_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reach the limit max_user_instances."""

    class Full:
        def inotify_init1(self, _: int) -> int:
            ctypes.set_errno(errno.EMFILE)
            return -1

    monkeypatch.setattr(module, "libc", Full)


@pytest.mark.usefixtures("no_instances")
async def test_a_limit_of_inotify_is_an_error(link: Path) -> None:
    with pytest.raises(OSError, match="Too many open files"):
        Removals().watch(str(link), lambda: None)


async def test_after_an_overflow_of_the_queue_every_file_may_be_removed(
    link: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removals, removed = Removals(), asyncio.Event()
    removals.watch(str(link), removed.set)
    overflow = module._EVENT.pack(-1, module.IN_Q_OVERFLOW, 0, 0)
    monkeypatch.setattr(os, "read", lambda *_: overflow)
    removals._readable()
    assert removed.is_set()


def test_names_removed_from_a_directory_are_read_and_no_others(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).touch()
    with closing(RemovedEntries(tmp_path)) as removed:
        assert removed.read() == frozenset()
        (tmp_path / "a").unlink()
        (tmp_path / "b").rename(tmp_path / "c")  # over another: no removal
        (tmp_path / "d").touch()
        assert select.select([removed], [], [], 0)[0] == [removed]
        assert removed.read() == frozenset({"a"})
        assert removed.read() == frozenset()


def test_names_that_were_removed_are_unknown_after_an_overflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(RemovedEntries(tmp_path)) as removed, monkeypatch.context() as patch:
        patch.setattr(os, "read", lambda *_: module._EVENT.pack(-1, module.IN_Q_OVERFLOW, 0, 0))
        assert removed.read() is None


def test_a_directory_that_does_not_exist_cannot_be_watched(tmp_path: Path) -> None:
    before = descriptors()
    with pytest.raises(FileNotFoundError):
        RemovedEntries(tmp_path / "none")
    assert descriptors() == before


def test_names_added_to_a_directory_are_read_where_they_are_wanted(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with closing(RemovedEntries(tmp_path, added=True)) as changed:
        os.mkfifo(tmp_path / "b")
        (tmp_path / "a").unlink()
        assert changed.read() == frozenset({"a", "b"})
        (tmp_path / "b").unlink()
        os.mkfifo(tmp_path / "b")
        assert changed.read() == frozenset({"b"}), "once"
        assert changed.read() == frozenset()
