"""The memory of a task that sleeps, on files as those of a cgroup."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from solo5_systemd.networkd import sleep
from solo5_systemd.networkd.sleep import FRUITLESS_MAX, RECLAIM_MAX, WRITING_INTERVAL_S, reclaim

GROUP = "/solo5.slice/web.service"
MIB = 1 << 20


class Group:
    """A cgroup whose memory is reclaimed by as much as is asked for, down to what cannot be swapped."""

    def __init__(self, mount: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sleep, "CGROUPS", str(mount))
        self.directory = mount / GROUP[1:]
        self.directory.mkdir(parents=True)
        self.asked, self.least = list[int](), 0
        self.put("memory.swap.max", "max")
        self.put("memory.current", f"{10 * MIB}")
        self.put("memory.reclaim", "")
        self.put("memory.stat", "anon 4096\nswapcached 0")
        self.paused = list[float]()
        write = os.write

        def reclaimed(descriptor: int, content: bytes) -> int:
            if Path(f"/proc/self/fd/{descriptor}").readlink().name != "memory.reclaim":
                return write(descriptor, content)
            self.asked.append(int(content))
            left = self.current - self.asked[-1]
            self.put("memory.current", f"{max(left, self.least)}")
            if left < self.least:
                raise BlockingIOError
            return len(content)

        monkeypatch.setattr(os, "write", reclaimed)
        monkeypatch.setattr(time, "sleep", self.pause)

    def pause(self, seconds: float) -> None:
        """Let time pass, in which the swap gets a MiB."""
        self.paused.append(seconds)
        self.least = max(0, self.least - MIB)
        self.put("memory.stat", f"swapcached {self.least}")

    @property
    def current(self) -> int:
        return int((self.directory / "memory.current").read_text())

    def put(self, name: str, content: str) -> None:
        (self.directory / name).write_text(f"{content}\n")

    def reclaim(self, wanted: Callable[[], bool] = lambda: True) -> int:
        """Return how much is reclaimed."""
        before, descriptors = self.current, len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        reclaim(GROUP, wanted)
        assert len(os.listdir("/proc/self/fd")) == descriptors  # noqa: PTH208
        return before - self.current


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Group:
    return Group(tmp_path, monkeypatch)


@pytest.mark.parametrize("least, asked", [(0, [RECLAIM_MAX, RECLAIM_MAX, 2 * MIB]), (5, [RECLAIM_MAX, RECLAIM_MAX])])
def test_memory_is_reclaimed_in_parts_until_no_more_can_be(group: Group, least: int, asked: list[int]) -> None:
    group.least = least * MIB
    assert group.reclaim() == (10 - least) * MIB
    assert (group.asked, group.paused) == (asked, [])


def test_what_is_written_to_the_swap_is_reclaimed_afterwards(group: Group) -> None:
    group.least = 5 * MIB
    group.put("memory.stat", f"anon 0\nswapcached {5 * MIB}")
    assert group.reclaim() == 10 * MIB
    assert group.paused == [WRITING_INTERVAL_S] * 5


def test_it_ends_where_pages_stay_in_the_swap_cache(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", group.paused.append)
    group.least = 5 * MIB
    group.put("memory.stat", f"swapcached {5 * MIB}")
    assert group.reclaim() == 5 * MIB
    assert len(group.paused) == FRUITLESS_MAX + 1


def test_a_task_that_is_woken_meanwhile_keeps_the_rest(group: Group) -> None:
    assert group.reclaim(lambda: not group.asked) == RECLAIM_MAX
    assert group.asked == [RECLAIM_MAX]


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("memory.swap.max", "0"),
        ("memory.swap.max", None),
        ("memory.current", None),
        ("memory.reclaim", None),
    ],
    ids=["not to be swapped", "cgroup v1", "its end", "before Linux 5.19"],
)
def test_nothing_is_asked_for_where_it_cannot_be(group: Group, file: str, content: str | None) -> None:
    if content is None:
        (group.directory / file).unlink()
    else:
        group.put(file, content)
    reclaim(GROUP, lambda: True)
    assert group.asked == []
