"""Disks on full file systems, with changed files, without their device; and as `solo5ctl disk inspect` shows them."""

import errno
import os
import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.fast.storage.conftest import Device, Running, disk_of
from tests.support.fakes.kernel import failing

from solo5_systemd.base.errors import HostError, InvalidRequestError, NotFoundError
from solo5_systemd.base.names import DeviceName
from solo5_systemd.storage import disk_space, disk_state, locks
from solo5_systemd.storage.disk_space import DiskSpace
from solo5_systemd.storage.disk_state import DiskPath, change_of, failed_disks, inspect_path, may_be_full
from solo5_systemd.storage.locks import Record, lock, lock_shared
from solo5_systemd.storage.model import COPIES, SNAPSHOTS, Backing, Disk, FailedDisk

FULL = SimpleNamespace(f_bavail=0, f_frsize=4096, f_blocks=1 << 20)
FREE = SimpleNamespace(f_bavail=1 << 19, f_frsize=4096, f_blocks=1 << 20)


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
    return disk_of(path, name, backing=backing, source=source)


def ended(*disks: Disk, task: str = "web") -> None:
    os.close(lock(disks, task=task))


def found(task: str = "web") -> dict[str, int | None]:
    return {each.disk: each.free for each in failed_disks(task)}


def test_sparse_disks_on_full_file_systems_are_named(
    tmp_path: Path, space: dict[str, SimpleNamespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, three = (sparse(tmp_path / name) for name in ("one", "two", "three"))
    with three.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, 1 << 20)
    space[str(two)] = FREE
    ended(disk("one", one), disk("two", two), disk("three", three))
    ended(disk("other", sparse(tmp_path / "other")), task="db")
    assert list(failed_disks("web")) == [FailedDisk(task="web", disk="one", path=str(one), free=0)]
    monkeypatch.setattr(disk_state, "btrfs_of", lambda _: "its UUID")
    assert found() == {"one": 0, "three": 0}, "Btrfs writes no block in its place"
    assert found("none") == {}
    shutil.rmtree(locks.LOCKS)
    assert found() == {}


@pytest.mark.parametrize(
    "blocks, free, is_full",
    [(1 << 20, 255, True), (1 << 20, 256, False), (16, 0, True), (16, 1, False), (0, 0, True)],
    ids=["1 MiB is none", "1 MiB", "no block", "a small one's last block", "no size"],
)
def test_a_file_system_is_full_with_its_reserve(
    tmp_path: Path, space: dict[str, SimpleNamespace], blocks: int, free: int, is_full: bool
) -> None:
    path = sparse(tmp_path / "one")
    space[str(path)] = SimpleNamespace(f_bavail=free, f_frsize=4096, f_blocks=blocks)
    ended(disk("one", path))
    assert found() == ({"one": free * 4096} if is_full else {})


def test_copies_are_on_the_file_system_of_copies_and_archives_in_memory(
    tmp_path: Path, space: dict[str, SimpleNamespace]
) -> None:
    copy, archive = sparse(tmp_path / "copy"), sparse(tmp_path / "archive")
    ended(disk("copy", copy, Backing.COPY, "/srv/golden"), disk("config", archive, Backing.ARCHIVE))
    copy.unlink()
    assert list(failed_disks("web")) == [FailedDisk(task="web", disk="copy", path="/srv/golden", free=0)]
    space[COPIES] = FREE
    assert found() == {}


def test_disks_of_an_earlier_run_and_other_files_are_not_named(
    tmp_path: Path, space: dict[str, SimpleNamespace]
) -> None:
    first, second = sparse(tmp_path / "first"), sparse(tmp_path / "second")
    ended(disk("first", first))
    os.utime(next(locks.LOCKS.iterdir()), ns=(1, 1))
    ended(disk("second", second))
    assert found() == {"second": 0}
    second.rename(tmp_path / "moved")
    assert found() == {}
    sparse(second)
    assert found() == {}, "another file has its path"
    second.unlink()
    second.symlink_to(tmp_path / "moved")
    assert found() == {}


def test_what_is_no_record_is_passed_over(tmp_path: Path, space: dict[str, SimpleNamespace]) -> None:
    path = sparse(tmp_path / "one")
    ended(disk("one", path))
    for name, text in (("1-2", "{"), ("3-4", "[]"), ("5-6", '{"later": 1}')):
        (locks.LOCKS / name).write_text(text)
    assert found() == {"one": 0}


def test_a_disk_with_snapshots_needs_blocks_for_what_is_written_again(
    tmp_path: Path, space: dict[str, SimpleNamespace]
) -> None:
    path = sparse(tmp_path / "web", 4096)
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, 4096)
    ended(disk("data", path, Backing.NAMED))
    assert found() == {}
    (tmp_path / SNAPSHOTS / "web").mkdir(parents=True)
    assert found() == {"data": 0}


# --- running tasks ------------------------------------------------------------------------------------------------


def seen(watch: DiskSpace) -> list[tuple[str, str, bool]]:
    return sorted((each.task, each.disk, is_full) for each, is_full in watch.look())


def test_a_file_system_that_becomes_full_is_seen_once(
    tmp_path: Path, space: dict[str, SimpleNamespace], running: Running
) -> None:
    watch, one, two = DiskSpace(), sparse(tmp_path / "one"), sparse(tmp_path / "two")
    assert seen(watch) == []
    running("web", disk("data", one))
    running("db", disk("data", two), disk("config", sparse(tmp_path / "archive"), Backing.ARCHIVE))
    space.update({str(one): FREE, str(two): FREE})
    assert seen(watch) == []
    space.update({str(one): FULL, str(two): FULL})
    assert seen(watch) == [("db", "data", True), ("web", "data", True)]
    assert seen(watch) == []
    space.update({str(one): FREE, str(two): FREE})
    assert seen(watch) == [("db", "data", False), ("web", "data", False)]
    assert seen(watch) == []
    running.close()


def test_a_file_system_may_be_full_unless_the_disk_is_there_and_it_has_space(
    tmp_path: Path, space: dict[str, SimpleNamespace]
) -> None:
    path, other, link, gone = (tmp_path / name for name in ("one", "other", "link", "gone"))
    identity = locks.name_of((sparse(path).stat().st_dev, path.stat().st_ino))
    link.symlink_to(sparse(other))
    space.update({str(each): FREE for each in (path, other, link, gone)})

    def may_be(path: Path) -> bool:
        return may_be_full(Record(disks=[{"identity": identity, "backing": "file", "path": str(path)}]))

    assert [may_be(each) for each in (path, other, link, gone)] == [False, True, True, True]
    assert may_be_full(Record())


def test_disks_of_ended_tasks_and_block_devices_are_no_sample(tmp_path: Path, device: Device, running: Running) -> None:
    ended(disk("data", sparse(tmp_path / "old")), task="old")
    running("web", disk("data", sparse(tmp_path / "new")))
    running("db", Disk(disk=DeviceName("data"), path=str(device.path), identity=(device.number, 0)))
    assert [each.task for each in locks.samples()] == ["web"]
    running.close()


def end_thread(over: threading.Event) -> None:
    over.set()
    for thread in threading.enumerate():
        if thread.name == "disk-space":
            thread.join()


async def test_one_thread_is_left_behind_by_all_looks(locks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    change = FailedDisk(task="web", disk="data", path="/srv/data", free=0), True

    def look(_: DiskSpace) -> list[tuple[FailedDisk, bool]]:
        over.wait(60)
        return [change]

    monkeypatch.setattr(DiskSpace, "look", look)
    monkeypatch.setattr(disk_space, "TIMEOUT_S", 0.05)
    subject = DiskSpace()
    for _ in range(3):
        with pytest.raises(HostError, match="the file system of a disk has not answered"):
            await subject.changes()
    assert sum(thread.name == "disk-space" for thread in threading.enumerate()) == 1
    end_thread(over)
    assert change in await subject.changes(), "what the late thread has found is not lost"


async def test_a_file_system_that_hangs_is_left_behind(locks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr(disk_state, "failed_disks", lambda *_: [over.wait(60)])
    monkeypatch.setattr(disk_space, "TIMEOUT_S", 0.05)
    began = time.monotonic()
    assert await DiskSpace().failed_disks("web") == ()
    assert time.monotonic() - began < 30
    end_thread(over)


async def test_what_cannot_be_read_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_state, "failed_disks", failing(errno.EPERM))
    assert await DiskSpace().failed_disks("web") == ()


async def test_disks_whose_device_is_gone_are_named(tmp_path: Path, device: Device) -> None:
    name = DeviceName("data")
    data = Disk(
        disk=name, path=str(device.path), device=(8, 0), identity=(device.number, 0),
        backing=Backing.DEVICE,
    )  # fmt: skip
    ended(data, disk("file", sparse(tmp_path / "one")))
    assert list(failed_disks("web")) == []
    device.pull()
    lost = FailedDisk(task="web", disk="data", path=str(device.path))
    space = DiskSpace()
    assert await space.failed_disks("web") == (lost,)
    assert await space.failed_disks("none") == ()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "directory" / "disk.img"
    path.parent.mkdir()
    path.write_bytes(bytes(1024))
    return path


def change(path: Path, of: os.stat_result, **more: str) -> str:
    name = locks.name_of((of.st_dev, of.st_ino))
    return change_of({"identity": name, "backing": "file", "path": str(path), "size": "1024", **more})


def test_path_and_size_are_those_of_the_start(file: Path) -> None:
    before = file.stat()
    assert change(file, before) == change(file, before, backing="named disk") == ""
    os.truncate(file, 512)
    assert change(file, before) == "its file has 512 bytes instead of 1024"
    file.rename(file.with_name("moved"))
    assert change(file, before) == "no file has its path any more"
    file.with_name("moved").rename(file.parent.parent / "moved")
    file.parent.rmdir()
    file.parent.touch()
    assert change(file, before) == "no file has its path any more"
    file.parent.unlink()
    file.parent.mkdir()
    file.write_bytes(bytes(1024))
    assert change(file, before) == "another file has its path"
    file.unlink()
    file.symlink_to(file.parent.parent / "moved")
    assert change(file, before) == "another file has its path"


def test_what_is_not_known_is_no_change(file: Path) -> None:
    before = file.stat()
    os.truncate(file, 512)
    for backing in ("private copy", "archive"):
        assert change(file, before, backing=backing) == ""
    assert change(file, before, size="") == ""
    for backing in ("file", "block device"):
        assert change(file.parent / ("x" * 300), before, backing=backing) == ""


def test_a_device_is_the_one_of_the_start_or_gone(device: Device, tmp_path: Path) -> None:
    def is_gone(path: Path = device.path, number: int = device.number) -> bool:
        disk = {"identity": locks.name_of((number, 0)), "backing": "block device", "path": str(path)}
        return change_of(disk) == "its device is gone"

    (tmp_path / "file").touch()
    assert not is_gone()
    assert is_gone(number=device.number + 1)
    assert is_gone(tmp_path / "file")
    assert is_gone(tmp_path / "file/below")
    # The kernel sets its size to 0 first, then removes it from sysfs, and its node.
    device.size.write_text("0\n")
    assert is_gone()
    device.size.unlink()
    assert is_gone()
    device.path.unlink()
    assert is_gone()


def test_a_file_by_a_link_with_the_task_that_has_it(tmp_path: Path) -> None:
    path, link = tmp_path / "web.img", tmp_path / "link"
    path.write_bytes(bytes(1024))
    link.symlink_to(path)
    free = DiskPath(path=str(path), backing=Backing.FILE, size=1024, sector_size=None, task=None, use="")
    assert inspect_path(str(link)) == free
    disk = disk_of(path)
    held = lock([disk], task="web")
    assert inspect_path(str(path)).task == "web"
    os.close(held)
    held = lock_shared(disk)
    assert inspect_path(str(path)).task == "", "a reader"
    os.close(held)


def test_a_device_has_the_size_and_the_sectors_of_sysfs(device: Device, tmp_path: Path) -> None:
    found = inspect_path(str(device.path))
    assert found == DiskPath(
        path=str(device.path), backing=Backing.DEVICE, size=8 << 20, sector_size=4096, task=None, use=""
    )
    (device.sys / "dev/block/8:0/partition").touch()  # the blocks of a partition are those of its disk
    with pytest.raises(HostError, match="cannot be read: No such file"):
        inspect_path(str(device.path))
    (device.sys / "dev/block/8:0/partition").unlink()
    device.size.unlink()
    with pytest.raises(HostError, match="cannot be read: No such file"):
        inspect_path(str(device.path))


def test_what_is_no_disk(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="is no disk: expected a regular file or a block device"):
        inspect_path(str(tmp_path))
    with pytest.raises(NotFoundError, match="does not exist"):
        inspect_path(str(tmp_path / "none"))
