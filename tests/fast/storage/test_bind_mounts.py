"""Bind mounts of disks with an exposed path, and directories of starts: removed by the start, or by a sweep."""

import errno
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fast.storage.conftest import disk_of
from tests.support.fakes.kernel import failing

from solo5_systemd.base.errors import HostError, InvalidRequestError, StartError
from solo5_systemd.base.names import DeviceName
from solo5_systemd.storage import bind_mounts
from solo5_systemd.storage.backing_files import ImageFiles
from solo5_systemd.storage.bind_mounts import StartDirectories, bind, check_bound
from solo5_systemd.storage.model import Disk


def link(source: str, target: str) -> None:
    """Imitate a bind mount by a hard link of the descriptor's file at the target."""
    Path(target).unlink()
    directory = os.open(Path(target).parent, os.O_PATH)
    os.link(source, Path(target).name, dst_dir_fd=directory)
    os.close(directory)


@pytest.fixture
def binds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StartDirectories:
    monkeypatch.setattr(bind_mounts, "bind_mount", link)
    return StartDirectories(tmp_path / "run" / "disks")


def disk(path: Path, name: str = "storage", *, is_exposed: bool = True) -> Disk:
    path.write_bytes(bytes(512))
    return disk_of(path, name, exposed=is_exposed)


def left(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "run" / "disks").iterdir())


async def test_nothing_is_made_where_only_root_may_change_the_paths(tmp_path: Path, binds: StartDirectories) -> None:
    safe = disk(tmp_path / "1.img", is_exposed=False)
    assert await ImageFiles().bind([safe]) == [safe]
    assert not (tmp_path / "run").exists()


def test_a_disk_of_a_directory_that_was_replaced_is_not_bound(tmp_path: Path, binds: StartDirectories) -> None:
    """The same inode at another path: after a deletion, a new file may get its number."""
    directory = tmp_path / "local"
    directory.mkdir()
    found = disk(directory / "disk.img")
    directory.rename(tmp_path / "moved")
    directory.symlink_to(tmp_path / "moved")
    with pytest.raises(HostError, match="was replaced during the start"):
        bind([found], binds)
    assert left(tmp_path) == []


def test_a_mount_that_pid_1_does_not_see_is_refused(
    tmp_path: Path, binds: StartDirectories, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a mount namespace of the agent: PID 1 has the file below the mount point."""
    monkeypatch.setattr(bind_mounts, "bind_mount", lambda *_: None)
    with pytest.raises(HostError, match="PID 1 has another file at .* expected both in one mount namespace"):
        bind([disk(tmp_path / "1.img")], binds)
    assert left(tmp_path) == []


def test_a_start_that_ends_while_others_are_looked_at_is_none_that_was_killed(
    tmp_path: Path, binds: StartDirectories, monkeypatch: pytest.MonkeyPatch
) -> None:
    [bound] = bind([disk(tmp_path / "1.img")], binds)
    real = Path.glob

    def late(path: Path, pattern: str) -> list[Path]:
        found = list(real(path, pattern))
        binds.remove(Path(bound.path).parent)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Path, "glob", late)
        assert binds.sweep() == ()


def test_one_file_is_bound_for_one_disk(tmp_path: Path, binds: StartDirectories) -> None:
    one = disk(tmp_path / "1.img")
    with pytest.raises(InvalidRequestError, match="two"):
        bind([one, replace(one, disk=DeviceName("two"))], binds)
    assert not (tmp_path / "run").exists()


def test_a_tender_is_shown_to_have_the_file_that_was_checked(tmp_path: Path) -> None:
    good, other = disk(tmp_path / "1.img"), disk(tmp_path / "2.img")
    check_bound([(good, good.path)], os.getpid())
    with pytest.raises(StartError, match="has another file than '.*/1.img', which was checked"):
        check_bound([(good, other.path)], os.getpid())
    with pytest.raises(StartError, match="has nothing at /nowhere"):
        check_bound([(good, "/nowhere")], os.getpid())
    with subprocess.Popen(["/bin/true"]) as ended:
        pass
    check_bound([(good, other.path)], ended.pid)
    good = replace(good, size=512)
    check_bound([(good, good.path)], os.getpid())
    os.truncate(good.path, 1024)
    with pytest.raises(StartError, match="has '.*/1.img' with 1024 bytes: expected [0-9]+, as it was checked"):
        check_bound([(good, good.path)], os.getpid())


# --- directories of starts, with private disks -------------------------------------------------------------------


@pytest.fixture
def directories(tmp_path: Path) -> StartDirectories:
    return StartDirectories(tmp_path / "copies")


def made_in(directories: StartDirectories) -> Path:
    with directories.made() as made:
        return made


def test_a_sweep_takes_what_no_process_has_locked(directories: StartDirectories) -> None:
    running, killed = made_in(directories), made_in(directories)
    assert directories.directory.stat().st_mode & 0o777 == 0o700
    (killed / "storage").write_bytes(b"x")
    os.close(directories._held.pop(killed))
    assert directories.sweep(dry_run=True) == (str(killed),)
    assert killed.exists()
    assert directories.sweep() == (str(killed),)
    assert list(directories.directory.iterdir()) == [running]
    (running / "storage").write_bytes(b"x")
    directories.remove(running)
    assert not list(directories.directory.iterdir())


def test_a_file_system_of_its_own_is_mounted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounted: list[str] = []
    own, stat = StartDirectories(tmp_path / "memory", mount=mounted.append), Path.stat

    def other_device(path: Path, **more: bool) -> os.stat_result:
        found = stat(path, **more)
        return os.stat_result((*found[:2], found.st_dev + len(mounted), *found[3:])) if path == own.directory else found

    monkeypatch.setattr(Path, "stat", other_device)
    made, killed = made_in(own), made_in(own)
    assert mounted == [str(tmp_path / "memory")]
    assert {path.stat().st_mode & 0o777 for path in (own.directory, made)} == {0o700}
    os.close(own._held.pop(killed))
    assert own.sweep() == (str(killed),)
    own.remove(made)
    assert not list(own.directory.iterdir())


def test_a_mount_that_fails_leaves_no_directory_of_a_start(tmp_path: Path) -> None:
    own = StartDirectories(tmp_path / "starts", mount=failing(errno.EPERM))
    with pytest.raises(HostError, match="cannot be used: Operation not permitted"):
        made_in(own)
    assert not list((tmp_path / "starts").iterdir())
