"""Files that a start creates: complete or absent."""

import errno
import fcntl
import os
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fast.storage.conftest import solo5_is
from tests.support.fakes.kernel import failing
from tests.support.interpreter import python

from solo5_systemd.base.errors import HostError, InvalidRequestError, NotFoundError
from solo5_systemd.base.locks import closing
from solo5_systemd.base.names import DeviceName
from solo5_systemd.settings.node_limits import OPERATOR
from solo5_systemd.storage import backing_files, new_file, owner
from solo5_systemd.storage.backing_files import ImageFiles, inspect, make
from solo5_systemd.storage.locks import lock
from solo5_systemd.storage.model import DiskRequest
from solo5_systemd.storage.new_file import check_mounted, remember_mount


@pytest.fixture(autouse=True)
def user(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user that runs the tests stands for user solo5 and for root."""
    solo5_is(monkeypatch, os.getuid())
    monkeypatch.setattr(owner, "ROOT", os.getuid())


@pytest.fixture(params=[True, False], ids=["unnamed", "temporary name"])
def unnamed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """A file system with O_TMPFILE, and one without."""
    if not request.param:
        without_unnamed(monkeypatch)
    return bool(request.param)


def without_unnamed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def opened(path: str, flags: int, *words: int, dir_fd: int | None = None) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return real(path, flags, *words, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", opened)


def request(path: Path, size: int = 1 << 20, *, roots: tuple[str, ...] = ()) -> DiskRequest:
    return DiskRequest(disk=DeviceName("storage"), path=str(path), create=size, roots=roots, allocation=roots)


def test_the_file_has_its_size_mode_and_owner(tmp_path: Path, unnamed: bool) -> None:
    wanted = request(tmp_path / "disk")
    planned = inspect(wanted)
    assert (planned.planned, planned.path, planned.identity) == (True, str(tmp_path / "disk"), (0, 0))
    assert not list(tmp_path.iterdir()), "a check creates nothing"
    disk, is_new = make(wanted)
    status = (tmp_path / "disk").stat()
    assert (is_new, disk.planned, disk.identity) == (True, False, (status.st_dev, status.st_ino))
    assert (status.st_size, status.st_mode & 0o7777, status.st_uid) == (1 << 20, 0o600, os.getuid())
    assert status.st_blocks * 512 < 1 << 20
    assert [path.name for path in tmp_path.iterdir()] == ["disk"]


def test_a_file_that_is_there_is_checked_and_left_as_it_is(tmp_path: Path, unnamed: bool) -> None:
    path = tmp_path / "disk"
    path.write_bytes(b"kept".ljust(512, b"\0"))
    assert not inspect(request(path)).planned
    disk, is_new = make(request(path))
    assert (is_new, disk.planned, path.read_bytes()[:4], path.stat().st_size) == (False, False, b"kept", 512)


def test_a_file_that_appears_meanwhile_wins(tmp_path: Path, unnamed: bool) -> None:
    directory = os.open(tmp_path, os.O_PATH)
    try:
        assert new_file.create_file(directory, "disk", new_file.zeros(512))
        (tmp_path / "disk").write_bytes(b"first".ljust(512, b"\0"))
        assert not new_file.create_file(directory, "disk", new_file.zeros(1024))
    finally:
        os.close(directory)
    assert (tmp_path / "disk").read_bytes()[:5] == b"first"
    assert [path.name for path in tmp_path.iterdir()] == ["disk"]


def test_a_preallocation_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "posix_fallocate", failing(errno.ENOSPC))
    with closing(os.open(tmp_path, os.O_PATH)) as directory, pytest.raises(OSError, match="No space left"):
        new_file.create_file(directory, "disk", new_file.zeros(4096, preallocate=True))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("step", ["ftruncate", "fchown", "fsync", "link"])
def test_a_creation_that_fails_leaves_nothing(
    tmp_path: Path, unnamed: bool, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, step, failing(errno.ENOSPC))
    if step == "fchown":  # as on NFS with root_squash: the file is another user's, and not locked
        monkeypatch.setattr(new_file, "try_lock", lambda _: False)
    with pytest.raises(HostError, match=r"cannot be created with 1048576 bytes: No space left on device\.$"):
        make(request(tmp_path / "disk"))
    assert not list(tmp_path.iterdir())


KILLED = """
import errno, os, signal, sys
from solo5_systemd.storage import new_file
real = os.open
def opened(path, flags, *words, dir_fd=None):
    if flags & os.O_TMPFILE == os.O_TMPFILE and sys.argv[2] == "named":
        raise OSError(errno.EOPNOTSUPP, "")
    return real(path, flags, *words, dir_fd=dir_fd)
os.open = opened
setattr(os, sys.argv[3], lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
new_file.create_file(real(sys.argv[1], os.O_PATH), "disk", new_file.zeros(4096))
"""


@pytest.mark.parametrize("step", ["ftruncate", "link"])
def test_a_process_that_is_killed_leaves_no_disk(tmp_path: Path, unnamed: bool, step: str) -> None:
    words = (str(tmp_path), "unnamed" if unnamed else "named", step)
    assert python(KILLED, *words, check=False).returncode == -9
    assert [path.name for path in tmp_path.iterdir()] == ([] if unnamed else [".disk.solo5-new"])
    assert make(request(tmp_path / "disk"))[1]
    assert [path.name for path in tmp_path.iterdir()] == ["disk"], "the next creation removes what is left"


def test_two_processes_do_not_share_a_temporary_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_unnamed(monkeypatch)
    with (tmp_path / ".disk.solo5-new").open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(HostError, match="another process creates the disk now"):
            make(request(tmp_path / "disk"))
    assert [path.name for path in tmp_path.iterdir()] == [".disk.solo5-new"]


@pytest.mark.parametrize("size", [0, 511, 513])
def test_a_size_that_no_tender_takes_is_refused_before_anything_is_created(tmp_path: Path, size: int) -> None:
    for act in (inspect, make):
        with pytest.raises(InvalidRequestError, match=f"has {size} bytes: expected one or more whole sectors of 512"):
            act(request(tmp_path / "disk", size))
    assert not list(tmp_path.iterdir())


def test_the_directory_must_exist(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="the directory of .* does not exist") as caught:
        inspect(request(tmp_path / "none" / "disk"))
    assert caught.value.hint == "A start creates the file of a disk, and no directory."


@pytest.mark.parametrize("path", ["../outside/disk", "link/disk", "file/disk", "dangling", "inside/..", "/"])
def test_no_file_is_created_outside_of_the_roots(tmp_path: Path, path: str) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "inside").mkdir(parents=True)
    outside.mkdir()
    (root / "link").symlink_to(outside)
    (root / "dangling").symlink_to(outside / "disk")
    (root / "file").write_bytes(b"")
    wanted = request(root / path, roots=(str(root),))
    for act in (inspect, make):
        with pytest.raises(InvalidRequestError):
            act(wanted)
    assert not list(outside.iterdir())


def test_a_link_inside_of_the_roots_is_followed(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "link").symlink_to("inside")
    disk, _ = make(request(tmp_path / "link" / "disk", roots=(str(tmp_path),)))
    assert disk.path == str(tmp_path / "inside" / "disk")


async def test_a_created_file_is_removed_unless_it_is_in_use_or_another_one(tmp_path: Path) -> None:
    disks, wanted, path = ImageFiles(), request(tmp_path / "disk"), tmp_path / "disk"
    disk, is_new = await disks.make(wanted, await disks.inspect(wanted, OPERATOR), OPERATOR)
    assert is_new
    held = lock([disk])
    await disks.unmake(wanted, disk)
    assert path.exists(), "another task has it"
    os.close(held)
    await disks.unmake(wanted, replace(disk, identity=(disk.identity[0], disk.identity[1] + 1)))
    assert path.exists(), "another file has its name"
    for _ in range(2):
        await disks.unmake(wanted, disk)
        assert not path.exists()


async def test_a_removal_that_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = request(tmp_path / "disk")
    disk, _ = make(wanted)
    monkeypatch.setattr(backing_files, "lock", lambda *_, **__: os.open("/", os.O_PATH))
    monkeypatch.setattr(os, "unlink", failing(errno.EROFS))
    with pytest.raises(HostError, match="cannot be removed: Read-only file system"):
        await ImageFiles().unmake(wanted, disk)


# --- nothing in the place of a file system that is not mounted ---------------------------------------------------


@pytest.fixture
def mounted(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Which directories have a file system mounted."""
    found: set[str] = set()

    def above(path: str) -> str:
        return next((str(each) for each in (Path(path), *Path(path).parents) if str(each) in found), "")

    monkeypatch.setattr(new_file, "mount_point_of", above)
    return found


def test_the_file_system_of_the_root_directory_has_no_record(tmp_path: Path, mounted: set[str], mounts: Path) -> None:
    assert make(request(tmp_path / "disk"))[1]
    assert not mounts.exists()


def test_a_mount_point_is_recorded_once_and_a_removed_directory_no_longer(
    tmp_path: Path, mounted: set[str], mounts: Path
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        mounted.add(str(tmp_path / name))
    for _ in range(2):
        remember_mount(str(tmp_path / "one/disk"))
    (mounts / ".interrupted").touch()
    [record] = mounts.glob("[!.]*")
    assert (record.read_text(), record.stat().st_mode & 0o777) == (str(tmp_path / "one"), 0o600)
    (tmp_path / "one").rmdir()
    remember_mount(str(tmp_path / "two/disk"))
    assert [each.read_text() for each in mounts.glob("[!.]*")] == [str(tmp_path / "two")]


def test_records_that_cannot_be_read_are_one_sentence(
    tmp_path: Path, mounted: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted.add(str(tmp_path))
    remember_mount(str(tmp_path / "disk"))
    monkeypatch.setattr(new_file, "mount_point_of", failing(errno.EIO))
    with pytest.raises(HostError, match="disk storage: .*/mounts cannot be read: Input/output error"):
        check_mounted(str(tmp_path / "disk"), "disk storage")
