"""Quotas of directories; disks that jobs have created are limited together while their files are there."""

import os
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest
from tests.fast.storage.conftest import in_bytes

from solo5_systemd.base.errors import HostError, InvalidRequestError, TakenError
from solo5_systemd.base.locks import LockedError
from solo5_systemd.base.names import DeviceName, DiskName, SnapshotName
from solo5_systemd.settings.node_limits import OPERATOR, Limits, Resource, Share, tenant
from solo5_systemd.settings.solo5_toml import Settings
from solo5_systemd.storage import backing_files
from solo5_systemd.storage import quotas as module
from solo5_systemd.storage.backing_files import ImageFiles
from solo5_systemd.storage.model import DiskRequest
from solo5_systemd.storage.named_disks import NamedDisks
from solo5_systemd.storage.quotas import DiskClaims, used
from solo5_systemd.storage.snapshots import Snapshots

K = 1024


def sparse(path: Path, size: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size)
    return path


@pytest.fixture
def volumes(tmp_path: Path) -> Path:
    path = tmp_path / "volumes"
    path.mkdir()
    return path


def test_every_file_counts_once_with_its_size_or_its_blocks(volumes: Path, tmp_path: Path) -> None:
    image = sparse(volumes / "one/disk.img", 64 * K)
    os.link(image, volumes / "one/again.img")
    full = volumes / "two/a/b/full.img"
    full.parent.mkdir(parents=True)
    full.write_bytes(b"x" * 8 * K)
    preallocated = sparse(volumes / "two/small.img", 0)
    with preallocated.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, 16 * K)
        file.truncate(512)
    outside = sparse(tmp_path / "outside/large.img", 1 << 40)
    (volumes / "link.img").symlink_to(outside)
    (volumes / "directory").symlink_to(outside.parent)
    os.mkfifo(volumes / "fifo")
    assert used(str(volumes)) == 64 * K + full.stat().st_blocks * 512 + preallocated.stat().st_blocks * 512
    (tmp_path / "by-link").symlink_to(volumes)
    assert used(str(tmp_path / "by-link")) == used(str(volumes))
    assert used(str(tmp_path / "none")) == 0


@pytest.mark.timeout(300)  # a thousand directories are made and removed, and other processes may have the disk for long
def test_deeply_nested_directories_are_counted(tmp_path: Path) -> None:
    top = tmp_path
    for _ in range(sys.getrecursionlimit() + 50):
        top = top / "d"
        top.mkdir()
    sparse(top.parent / "x", 512)
    assert used(str(tmp_path)) == 512
    subprocess.run(["rm", "--recursive", str(tmp_path / "d")], check=True)  # too deep for pytest's own removal


def test_a_directory_that_becomes_a_link_meanwhile_does_not_count(
    volumes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user's files elsewhere are not in the volume, in whose place a link to them leads."""
    sparse(tmp_path / "outside/deep/large.img", 1 << 40)
    sparse(volumes / "one/deep/disk.img", 64 * K)
    real = os.open

    def swapped(swap: str, path: str, flags: int, *more: int) -> int:
        if path.endswith(swap) and not (volumes / "moved").exists():
            (volumes / "one").rename(volumes / "moved")
            (volumes / "one").symlink_to(tmp_path / "outside")
        return real(path, flags, *more)

    for swap in ("volumes/one", "one/deep"):
        monkeypatch.setattr(os, "open", partial(swapped, swap))
        assert used(str(volumes)) == 0
        monkeypatch.undo()
        (volumes / "one").unlink()
        (volumes / "moved").rename(volumes / "one")
    assert used(str(volumes)) == 64 * K


def test_snapshots_of_named_disks_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.setattr(module, "_UNCOUNTED", f"{tmp_path}/link/.snapshots")
    sparse(tmp_path / ".snapshots/data/one", 64 * K)
    sparse(tmp_path / "data", 64 * K)
    assert used(str(tmp_path)) == 64 * K


def check(quotas: Mapping[str, int], path: Path, more: int, what: str) -> None:
    DiskClaims(in_bytes(quotas)).check(str(path), more, what)


def test_a_file_beyond_a_quota_is_refused_with_figures(volumes: Path, tmp_path: Path) -> None:
    sparse(volumes / "one/disk.img", 64 * K)
    quotas = {str(volumes): 100 * K, str(tmp_path / "other"): 0}
    new = volumes / "two/disk.img"
    check(quotas, new, 36 * K, "volume two")
    with pytest.raises(HostError) as caught:
        check(quotas, new, 36 * K + 1, "volume two")
    assert caught.value.sentence == (
        f"volume two would take {36 * K + 1} bytes: expected at most {36 * K}, since the quota of {volumes} is "
        f"{100 * K} bytes and the files in it have {64 * K}."
    )
    check(quotas, tmp_path / "volumes-two/disk.img", 1 << 40, "a directory beside")
    check({str(volumes): 0}, new, 0, "an existing one")
    with pytest.raises(HostError, match="expected at most 0, since the quota"):
        check({str(volumes): 1}, new, 1, "over it already")


def test_every_quota_above_a_file_holds(volumes: Path, tmp_path: Path) -> None:
    (tmp_path / "by-link").symlink_to(volumes)
    new = tmp_path / "by-link/disk.img"
    for quotas in ({str(tmp_path): 1, str(volumes): K}, {str(tmp_path): K, str(tmp_path / "by-link"): 1}):
        with pytest.raises(HostError, match="is 1 bytes"):
            check(quotas, new, 2, "disk")


async def test_two_files_are_not_admitted_at_once(volumes: Path) -> None:
    """The second one waits for the first, except in the thread of an event loop."""
    claims = DiskClaims(in_bytes({str(volumes): 100}))

    def second() -> None:
        with claims.admitted(str(volumes / "two"), 60, 60, "two"):
            pass

    with claims.admitted(str(volumes / "one"), 60, 60, "one"):
        with pytest.raises(LockedError, match="claims is locked by another process"):
            second()
        sparse(volumes / "one", 60)
    with pytest.raises(HostError, match="two would take 60 bytes: expected at most 40"):
        second()


WEB = tenant("shop", "web")
LIMITS = Limits(reserve_mb=0, job=Share(amounts={Resource.DISKS: 4096}))


def claims(tmp_path: Path, limits: Limits = LIMITS) -> DiskClaims:
    return DiskClaims(lambda: Settings(limits=limits), own=(tmp_path,))


def create(of: DiskClaims, path: Path, size: int = 4096) -> None:
    with of.admitted(str(path), size, size, f"disk {path.name}", WEB), path.open("wb") as file:
        file.truncate(size)


def test_what_a_job_has_created_counts_as_long_as_it_is_there(tmp_path: Path) -> None:
    of, first = claims(tmp_path), tmp_path / "first"
    create(of, first)
    assert of.unwritten(tmp_path) == 4096
    with pytest.raises(TakenError, match="disk other would have 512 bytes of disks in .*: expected at most 0"):
        create(of, tmp_path / "other", 512)
    with pytest.raises(TakenError, match="expected at most 0"):
        of.check(str(tmp_path / "other"), 512, "disk other", WEB)
    of.check(str(tmp_path / "other"), 512, "another job", tenant("shop", "api"))
    of.check(str(tmp_path / "other"), 512, "root", OPERATOR)
    first.write_bytes(bytes(4096))
    assert of.unwritten(tmp_path) == 0
    first.unlink()
    create(of, tmp_path / "other")
    assert len(list((tmp_path / "claims").iterdir())) == 1
    (tmp_path / "claims/damaged").symlink_to("[]")
    assert of.unwritten(tmp_path) == 4096


def test_a_disk_of_a_job_is_still_counted_after_root_has_changed_it(tmp_path: Path) -> None:
    of, directory = claims(tmp_path), tmp_path / "disks"
    disks, data, one = NamedDisks(directory, of), DiskName("data"), SnapshotName("one")
    directory.mkdir(mode=0o700)
    create(of, directory / data, 1024)
    Snapshots(disks).take(data, one, copy=True)
    disks.resize(data, 2048)
    with pytest.raises(TakenError, match="disk name 'data' is taken"):
        disks.create(data, 4096)
    with pytest.raises(TakenError, match="expected at most 2048"):
        create(of, directory / "other")
    Snapshots(disks).restore(data, one)
    with pytest.raises(TakenError, match="expected at most 3072"):
        create(of, directory / "other")


def test_a_file_is_refused_that_would_take_of_the_reserve(tmp_path: Path) -> None:
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    of = claims(tmp_path, Limits(reserve_mb=free >> 20))
    with pytest.raises(HostError, match="of the file system of"):
        create(of, tmp_path / "first", 8 << 20)
    assert [each.name for each in tmp_path.iterdir()] == ["claims"]


def test_a_disk_of_another_file_system_is_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be a remote one that hangs."""
    of = claims(tmp_path)
    create(of, tmp_path / "first")
    seen: list[object] = []
    lstat = os.lstat

    def look(path: str) -> os.stat_result:
        seen.append(path)
        return lstat(path)

    monkeypatch.setattr(os, "lstat", look)
    for place, unwritten in ((Path("/proc"), 0), (tmp_path, 4096)):
        assert (str(tmp_path / "first") in seen) is False
        assert of.unwritten(place) == unwritten
    assert str(tmp_path / "first") in seen


def test_a_file_that_is_gone_at_once_has_no_claim(tmp_path: Path) -> None:
    of = claims(tmp_path)
    with of.admitted(str(tmp_path / "first"), 512, 512, "disk first", WEB):
        pass
    assert not list((tmp_path / "claims").iterdir())


def test_a_volume_of_its_own_and_what_root_creates_are_not_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = DiskClaims(lambda: Settings(limits=LIMITS), own=(Path("/proc"),))
    create(of, tmp_path / "first", 1 << 20)
    with claims(tmp_path).admitted(str(tmp_path / "second"), 1 << 20, 1 << 20, "disk second", OPERATOR):
        pass
    assert not (tmp_path / "claims").exists()
    monkeypatch.setattr(module, "btrfs_of", lambda _: "the UUID of both, which are subvolumes")
    with pytest.raises(InvalidRequestError, match="disk third would have 1048576 bytes"):
        of.check(str(tmp_path / "third"), 1 << 20, "disk third", WEB)


def test_a_disk_is_recorded_before_it_is_there(tmp_path: Path) -> None:
    """A process that is killed in between leaves no disk without a claim, and no disk is made that has none."""
    first = tmp_path / "first"
    with claims(tmp_path).admitted(str(first), 4096, 4096, "disk first", WEB), first.open("wb") as file:
        file.truncate(4096)
        assert claims(tmp_path).unwritten(tmp_path) == 4096
    assert claims(tmp_path).unwritten(tmp_path) == 4096
    deep = tmp_path
    while len(str(deep)) < 4060:  # too long for a claim, and not for a file
        deep /= "d" * min(250, 4070 - len(str(deep)))
        deep.mkdir()
    with pytest.raises(OSError, match="File name too long"):
        create(claims(tmp_path), deep / "disk", 0)
    assert not list(deep.iterdir())


async def test_a_start_creates_no_disk_beyond_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backing_files, "remember_mount", lambda _: None)
    files = ImageFiles(claims(tmp_path))

    def request(name: str) -> DiskRequest:
        return DiskRequest(disk=DeviceName("storage"), path=str(tmp_path / name), create=4096)

    other = await files.inspect(request("other"), WEB)
    await files.make(request("first"), await files.inspect(request("first"), WEB), WEB)
    for act in (lambda: files.inspect(request("other"), WEB), lambda: files.make(request("other"), other, WEB)):
        with pytest.raises(TakenError, match="disk storage would have 4096 bytes of disks"):
            await act()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["claims", "first"]
