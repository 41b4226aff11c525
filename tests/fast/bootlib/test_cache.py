"""The cache of what takes long to make."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.support.bootlib import cache


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "solo5-systemd"


def test_an_entry_is_made_once_however_many_need_it_at_the_same_time() -> None:
    made: list[Path] = []

    def make(target: Path) -> None:
        made.append(target)
        (target / "file").write_text("whole")

    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: cache.entry("tree", "a", make), range(4)))
    assert len(made) == 1
    assert [(path / "file").read_text() for path in found] == ["whole"]


def test_entries_of_one_name_are_made_side_by_side() -> None:
    both = threading.Barrier(2, timeout=30)

    def make(_: Path) -> None:
        both.wait()

    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(lambda key: cache.entry("tree", key, make), "ab"))
    assert [path.name for path in made] == ["tree-a", "tree-b"]


def test_what_fails_leaves_no_entry(directory: Path) -> None:
    def fail(target: Path) -> None:
        (target / "half").touch()
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        cache.entry("tree", "a", fail)
    assert list(directory.glob("*tree-a*")) == [directory / ".tree-a.lock"]


def passes(entry: Path, seconds: float) -> None:
    """Have an entry last used so much earlier."""
    used = entry.stat().st_mtime - seconds
    os.utime(entry, (used, used))


def test_what_was_used_within_the_hour_is_kept(directory: Path) -> None:
    for key in "01234":
        cache.entry("tree", key, lambda _: None)
    assert len(list(directory.glob("tree-*"))) == 5 > cache.KEPT_PER_NAME


def test_only_the_newest_are_kept_and_those_in_use(directory: Path) -> None:
    first = cache.entry("tree", "0", lambda _: None)
    with cache.in_use(first):
        for key in "1234":
            for earlier in directory.glob("tree-*"):
                passes(earlier, cache.KEPT_HOURS * 3600 + 1)
            cache.entry("tree", key, lambda _: None)
    assert sorted(path.name for path in directory.glob("tree-*")) == ["tree-0", "tree-2", "tree-3", "tree-4"]
