"""Full file systems of disks: which disks of an ended task are named, and that nothing waits for them."""

import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from solo5_systemd.names import DeviceName
from solo5_systemd.storage import disk_space
from solo5_systemd.storage.disk_space import DiskSpace, DiskSpaceInThread, full_disks
from solo5_systemd.storage.locks import lock
from solo5_systemd.storage.model import SECTOR_SIZE, Backing, Disk, FullDisk

FULL = SimpleNamespace(f_bavail=0, f_frsize=4096, f_blocks=1 << 20)
FREE = SimpleNamespace(f_bavail=1 << 19, f_frsize=4096, f_blocks=1 << 20)


@pytest.fixture
def locks(tmp_path: Path) -> Path:
    return tmp_path / "locks"


@pytest.fixture
def space(monkeypatch: pytest.MonkeyPatch) -> dict[str, SimpleNamespace]:
    """The file system of each path; any other is full."""
    found: dict[str, SimpleNamespace] = {}
    monkeypatch.setattr(os, "statvfs", lambda path: found.get(str(path), FULL))
    return found


def sparse(path: Path, size: int = 1 << 20) -> Path:
    with path.open("wb") as file:
        file.truncate(size)
    return path


def disk(name: str, path: Path, backing: Backing = Backing.FILE, source: str = "") -> Disk:
    status = path.stat()
    return Disk(
        disk=DeviceName(name), path=str(path), sector_size=SECTOR_SIZE, device=None,
        identity=(status.st_dev, status.st_ino), backing=backing, source=source,
    )  # fmt: skip


def ended(locks: Path, *disks: Disk, task: str = "web") -> None:
    os.close(lock(disks, directory=locks, task=task))


def found(locks: Path, task: str = "web") -> dict[str, int]:
    return {each.disk: each.free for each in full_disks(task, locks, locks)}


def test_sparse_disks_on_full_file_systems_are_named(
    tmp_path: Path, locks: Path, space: dict[str, SimpleNamespace]
) -> None:
    one, two, three = (sparse(tmp_path / name) for name in ("one", "two", "three"))
    with three.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, 1 << 20)
    space[str(two)] = FREE
    ended(locks, disk("one", one), disk("two", two), disk("three", three))
    ended(locks, disk("other", sparse(tmp_path / "other")), task="db")
    assert list(full_disks("web", locks, locks)) == [FullDisk(disk="one", path=str(one), free=0)]
    assert found(locks, "none") == {}
    assert found(tmp_path / "nowhere") == {}


@pytest.mark.parametrize(
    "blocks, free, is_full",
    [(1 << 20, 255, True), (1 << 20, 256, False), (16, 0, True), (16, 1, False), (0, 0, True)],
    ids=["1 MiB is none", "1 MiB", "no block", "a small one's last block", "no size"],
)
def test_a_file_system_is_full_with_its_reserve(
    tmp_path: Path, locks: Path, space: dict[str, SimpleNamespace], blocks: int, free: int, is_full: bool
) -> None:
    path = sparse(tmp_path / "one")
    space[str(path)] = SimpleNamespace(f_bavail=free, f_frsize=4096, f_blocks=blocks)
    ended(locks, disk("one", path))
    assert found(locks) == ({"one": free * 4096} if is_full else {})


def test_copies_are_on_the_file_system_of_copies_and_archives_in_memory(
    tmp_path: Path, locks: Path, space: dict[str, SimpleNamespace]
) -> None:
    copy, archive = sparse(tmp_path / "copy"), sparse(tmp_path / "archive")
    ended(locks, disk("copy", copy, Backing.COPY, "/srv/golden"), disk("config", archive, Backing.ARCHIVE))
    copy.unlink()
    assert list(full_disks("web", locks, locks)) == [FullDisk(disk="copy", path="/srv/golden", free=0)]
    space[str(locks)] = FREE
    assert found(locks) == {}


def test_disks_of_an_earlier_run_and_other_files_are_not_named(
    tmp_path: Path, locks: Path, space: dict[str, SimpleNamespace]
) -> None:
    first, second = sparse(tmp_path / "first"), sparse(tmp_path / "second")
    ended(locks, disk("first", first))
    os.utime(next(locks.iterdir()), ns=(1, 1))
    ended(locks, disk("second", second))
    assert found(locks) == {"second": 0}
    second.rename(tmp_path / "moved")
    assert found(locks) == {}
    sparse(second)
    assert found(locks) == {}, "another file has its path"
    second.unlink()
    second.symlink_to(tmp_path / "moved")
    assert found(locks) == {}


def test_what_is_no_record_is_passed_over(tmp_path: Path, locks: Path, space: dict[str, SimpleNamespace]) -> None:
    path = sparse(tmp_path / "one")
    ended(locks, disk("one", path))
    for name, content in (
        ("x-y", "{"),
        ("1-2", "[]"),
        ("3-4", '{"task": "web", "disks": [1, {}]}'),
        ("no", '{"task": "web"}'),
    ):
        (locks / name).write_text(content)
        os.utime(locks / name, ns=(1, 1))
    assert found(locks) == {"one": 0}


async def test_a_file_system_that_hangs_is_left_behind(locks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr(disk_space, "full_disks", lambda *_: [over.wait(60)])
    began = time.monotonic()
    assert await DiskSpace(locks, locks, timeout=0.05).full_disks("web") == ()
    assert await DiskSpaceInThread(locks, locks, timeout=0.05).full_disks("web") == ()
    assert time.monotonic() - began < 30
    over.set()
    for thread in threading.enumerate():
        if thread.name == "disk-space":
            thread.join()


async def test_what_cannot_be_read_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(disk_space, "full_disks", fail)
    assert await DiskSpace(tmp_path, tmp_path).full_disks("web") == ()
    monkeypatch.undo()
    ended(tmp_path / "locks", disk("one", sparse(tmp_path / "one")))
    monkeypatch.setattr(os, "statvfs", lambda path: FULL)
    [each] = await DiskSpaceInThread(tmp_path / "locks", tmp_path).full_disks("web")
    assert each.disk == "one"
