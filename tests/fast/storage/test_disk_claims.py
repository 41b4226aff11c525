"""Disks that jobs have created: limited together while their files are there, beside one another."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from solo5_systemd.base.errors import HostError, TakenError
from solo5_systemd.base.names import DeviceName
from solo5_systemd.settings.node_limits import OPERATOR, Limits, Resource, Scope, Share, tenant
from solo5_systemd.settings.solo5_toml import Settings
from solo5_systemd.storage import backing_files
from solo5_systemd.storage.backing_files import ImageFiles
from solo5_systemd.storage.model import DiskRequest, NewFile
from solo5_systemd.storage.quotas import DiskClaims

WEB = tenant("shop", "web")
LIMITS = Limits(reserve_mb=0, shares={Scope.JOB: Share(amounts={Resource.DISKS: 4096})})


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


def test_what_is_created_beside_has_the_reserve_and_the_promises(tmp_path: Path) -> None:
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

    monkeypatch.setattr("os.lstat", look)
    for place, unwritten in ((Path("/proc"), 0), (tmp_path, 4096)):
        assert (str(tmp_path / "first") in seen) is False
        assert of.unwritten(place) == unwritten
    assert str(tmp_path / "first") in seen


def test_a_file_that_is_gone_at_once_has_no_claim(tmp_path: Path) -> None:
    of = claims(tmp_path)
    with of.admitted(str(tmp_path / "first"), 512, 512, "disk first", WEB):
        pass
    assert not list((tmp_path / "claims").iterdir())


def test_a_volume_of_its_own_and_what_root_creates_are_not_limited(tmp_path: Path) -> None:
    of = DiskClaims(lambda: Settings(limits=LIMITS), own=(Path("/proc"),))
    create(of, tmp_path / "first", 1 << 20)
    with claims(tmp_path).admitted(str(tmp_path / "second"), 1 << 20, 1 << 20, "disk second", OPERATOR):
        pass
    assert not (tmp_path / "claims").exists()


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
    me = SimpleNamespace(pw_uid=os.getuid(), pw_gid=os.getgid())
    monkeypatch.setattr("pwd.getpwnam", {"solo5": me}.__getitem__)
    monkeypatch.setattr(backing_files, "remember_mount", lambda _: None)
    files = ImageFiles(claims=claims(tmp_path))

    def request(name: str) -> DiskRequest:
        new = NewFile(size=4096, tenant=WEB)
        return DiskRequest(disk=DeviceName("storage"), path=str(tmp_path / name), create=new)

    other = await files.inspect(request("other"))
    await files.make(request("first"), await files.inspect(request("first")))
    for act in (lambda: files.inspect(request("other")), lambda: files.make(request("other"), other)):
        with pytest.raises(TakenError, match="disk storage would have 4096 bytes of disks"):
            await act()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["claims", "first"]
