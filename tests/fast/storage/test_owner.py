"""Given disks: the checks before a file of an allocation gets the task's user as its owner."""

import errno
import os
import stat
import time
from pathlib import Path

import pytest
from tests.fast.storage.conftest import Running, disk_of
from tests.support.fakes.kernel import failing

from solo5_systemd.base.errors import HostError, TakenError
from solo5_systemd.base.names import DeviceName
from solo5_systemd.base.paths import identity
from solo5_systemd.storage import owner as module
from solo5_systemd.storage.backing_files import ImageFiles, inspect
from solo5_systemd.storage.model import DiskRequest, GivenDisk
from solo5_systemd.storage.owner import give

TENDER = 990
TASK = 70123
Given = list[tuple[int, int, int]]


@pytest.fixture(autouse=True)
def given(monkeypatch: pytest.MonkeyPatch) -> Given:
    """The calls of chown(2): inode, user and group."""
    calls: Given = []
    monkeypatch.setattr(os, "chown", lambda path, user, group: calls.append((Path(path).stat().st_ino, user, group)))
    return calls


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A disk of an allocation as Nomad makes it, with sibling directories."""
    for directory in ("task/local", "alloc", "elsewhere"):
        (tmp_path / directory).mkdir(parents=True)
    return made(tmp_path / "task/local/disk.img")


def made(path: Path) -> Path:
    path.write_bytes(bytes(4096))
    path.chmod(0o644)
    return path


def request(path: Path, root: Path) -> DiskRequest:
    allocation, offered = (str(root / "task"), str(root / "alloc")), str(root / "elsewhere")
    return DiskRequest(disk=DeviceName("storage"), path=str(path), roots=(*allocation, offered), allocation=allocation)


@pytest.mark.parametrize("mode", [0o444, 0o4755, 0o000])
def test_its_new_owner_may_write_it_and_it_is_no_program_of_theirs(file: Path, tmp_path: Path, mode: int) -> None:
    disk = inspect(request(file, tmp_path))
    with file.open("r+b") as opened:
        file.chmod(mode)
        give(disk, opened.fileno(), TASK)
    assert stat.S_IMODE(file.stat().st_mode) == mode & 0o777 | 0o600


async def test_a_file_that_may_be_written_stays_as_it_is(file: Path, tmp_path: Path, given: Given) -> None:
    file.chmod(0o666)
    await ImageFiles().change_owner(inspect(request(file, tmp_path)), TASK)
    assert given == []
    assert stat.S_IMODE(file.stat().st_mode) == 0o666


async def test_the_former_owner_is_known_and_that_of_a_task_has_lost_the_disk_for_good(
    file: Path, tmp_path: Path, syscalls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = inspect(request(file, tmp_path))
    me = os.getuid()
    assert await ImageFiles().change_owner(disk, TASK) == me
    assert syscalls == [f"chown disk.img {TASK} -1"], "not of a task: no wait for the disk"
    monkeypatch.setattr(module, "TASK_UIDS", range(me, me + 1))
    with pytest.raises(TakenError, match="is in use by another task"):
        await ImageFiles().change_owner(disk, TASK)
    assert syscalls[1:] == [], "its former owner has processes, such as this one: of a scope that has unlocked it"
    monkeypatch.setattr(module, "_has_processes", lambda _: False)
    assert await ImageFiles().change_owner(disk, TASK) == me
    assert syscalls[1:] == [f"chown disk.img {TASK} -1", "fsync disk.img"]


@pytest.fixture
def old_disk(tmp_path: Path) -> Path:
    path = tmp_path / "srv" / "disk.img"
    path.parent.mkdir()
    path.write_bytes(bytes(4096))
    return path


@pytest.fixture
def syscalls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls of chown(2) and fsync(2), in order."""
    calls: list[str] = []
    monkeypatch.setattr(
        os, "chown", lambda path, uid, gid: calls.append(f"chown {Path(path).readlink().name} {uid} {gid}")
    )
    monkeypatch.setattr(os, "fsync", lambda fd: calls.append(f"fsync {Path(f'/proc/self/fd/{fd}').readlink().name}"))
    return calls


def disk(old_disk: Path) -> GivenDisk:
    return GivenDisk(str(old_disk), *identity(old_disk.stat()), os.statvfs(old_disk).f_fsid)


def reclaim_disk(of: GivenDisk, uid: int | None = None) -> None:
    module.reclaim_disk(os.getuid() if uid is None else uid, of._replace(owner=TENDER))


TAKEN = [f"chown disk.img {TENDER} -1", "fsync disk.img"]


@pytest.mark.parametrize("device", [None, 1], ids=["as before", "after a boot that numbers devices otherwise"])
def test_a_disk_is_taken_back_with_its_size_and_its_time_and_that_is_on_stable_storage(
    old_disk: Path, syscalls: list[str], device: int | None
) -> None:
    """Truncated to its own size: what is allocated beyond it is freed."""
    os.utime(old_disk, ns=(10**18, 10**18))
    before = old_disk.stat()
    reclaim_disk(disk(old_disk) if device is None else disk(old_disk)._replace(device=device))
    after = old_disk.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert syscalls == TAKEN


def test_what_is_not_the_users_disk_stays_as_it_is(old_disk: Path, tmp_path: Path, syscalls: list[str]) -> None:
    of = disk(old_disk)
    reclaim_disk(of, os.getuid() + 1)
    reclaim_disk(disk(old_disk)._replace(inode=1))
    link = old_disk.with_name("link.img")
    link.symlink_to(old_disk)
    reclaim_disk(of._replace(path=str(link)))
    old_disk.unlink()
    reclaim_disk(of)
    link.unlink()
    old_disk.parent.rmdir()
    reclaim_disk(of)
    assert syscalls == []


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS, errno.EPERM])
def test_a_disk_whose_owner_cannot_be_changed_is_no_disk_that_was_taken_back(
    old_disk: Path, tmp_path: Path, syscalls: list[str], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    for call in ("chown", "fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, failing(number))
            with pytest.raises(HostError) as refused:
                reclaim_disk(disk(old_disk))
        assert refused.value.sentence == (
            f"disk {str(old_disk)!r} cannot be reclaimed from user {os.getuid()}: {os.strerror(number)}."
        )


def test_a_disk_whose_file_system_is_not_mounted_is_no_disk_that_was_removed(
    old_disk: Path, tmp_path: Path, syscalls: list[str]
) -> None:
    of = disk(old_disk)._replace(device=1, filesystem=1)
    old_disk.unlink()
    with pytest.raises(HostError, match="its file system is not mounted"):
        reclaim_disk(of)
    old_disk.write_bytes(bytes(512))
    for other in (GivenDisk(str(old_disk), 1, 1, 1), disk(old_disk)._replace(inode=1, mount=str(tmp_path))):
        with pytest.raises(HostError, match="its file system is not mounted"):
            reclaim_disk(other)
    reclaim_disk(GivenDisk("/dev/solo5-is-no-device", 1, 0, 1))  # its owner was the node's
    assert syscalls == []


def test_a_device_whose_path_is_gone_has_a_node_in_dev(tmp_path: Path) -> None:
    """A CSI volume in block mode is a bind mount of the node, which keeps its owner."""
    number = os.makedev(7, 9999)
    of = GivenDisk(str(tmp_path / "gone"), number, 0, 0, str(tmp_path))
    assert module._with_node(of).path == "/dev/block/7:9999"
    reclaim_disk(of)
    (tmp_path / "gone").touch()  # what the bind mount was on
    assert module._with_node(of).path == "/dev/block/7:9999"


def test_a_disk_that_is_locked_is_taken_back_once_it_is_not(
    old_disk: Path, syscalls: list[str], monkeypatch: pytest.MonkeyPatch, running: Running
) -> None:
    """PID 1 closes stdin of an ended service, and so the lock, some time later."""
    running("web", disk_of(old_disk))
    with monkeypatch.context() as patch:
        patch.setattr(module, "ENDED_TIMEOUT_S", 0.0)
        with pytest.raises(HostError, match="it is in use"):
            reclaim_disk(disk(old_disk))
    assert syscalls == []
    monkeypatch.setattr(time, "sleep", lambda _: running.close())
    reclaim_disk(disk(old_disk))
    assert syscalls == TAKEN


def test_a_disk_that_another_task_is_given_meanwhile_is_that_tasks(
    old_disk: Path, syscalls: list[str], monkeypatch: pytest.MonkeyPatch, running: Running
) -> None:
    of, status = disk(old_disk), old_disk.stat()
    owners = iter([os.getuid(), os.getuid(), os.getuid() + 1])
    monkeypatch.setattr(module, "ENDED_TIMEOUT_S", 0.0)
    running("web", disk_of(old_disk))
    fstat = os.fstat

    def given(descriptor: int) -> object:
        found = fstat(descriptor)
        return os.stat_result((*found[:4], next(owners), *found[5:])) if found.st_ino == status.st_ino else found

    monkeypatch.setattr(os, "fstat", given)
    reclaim_disk(of)
    running.close()
    assert syscalls == []
