"""Named disks: bad input, locks, import and export."""

import errno
import hashlib
import os
from pathlib import Path

import pytest
from tests.fast.storage.conftest import in_bytes
from tests.fast.storage.test_new_file import without_unnamed
from tests.support.fakes.kernel import failing

from solo5_systemd.base.errors import HostError, InvalidRequestError, NotFoundError, TakenError
from solo5_systemd.base.names import DeviceName, DiskName
from solo5_systemd.storage import block_devices, named_disks
from solo5_systemd.storage.backing_files import inspect
from solo5_systemd.storage.model import Disk, named_disk
from solo5_systemd.storage.named_disks import NamedDisks
from solo5_systemd.storage.quotas import DiskClaims
from solo5_systemd.storage.snapshots import Snapshots

DATA = DiskName("data")


def test_a_disk_is_created_listed_and_removed(disks: NamedDisks, tmp_path: Path) -> None:
    assert disks.all() == ()
    made = disks.create(DATA, 1 << 20)
    assert (made.name, made.size, made.allocated, made.task) == ("data", 1 << 20, 0, None)
    assert (tmp_path / "disks" / "data").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "disks").stat().st_mode & 0o777 == 0o700
    assert disks.create(DiskName("full"), 1 << 20, preallocate=True).allocated >= 1 << 20
    (tmp_path / "disks" / "no disk").touch()
    (tmp_path / "disks" / "directory").mkdir()
    (tmp_path / "disks" / ".hidden").touch()
    assert [disk.name for disk in disks.all()] == ["data", "full"]
    Snapshots(disks).remove_disk(DATA)
    with pytest.raises(NotFoundError, match="no disk is named 'data'"):
        disks.get(DATA)


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_disk_that_is_replaced_before_it_is_locked_is_refused(
    disks: NamedDisks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_removed: bool
) -> None:
    """What is done to a file without a name would be lost: another process has restored a snapshot, for example."""
    path = Path(disks.create(DATA, 1024).path)
    other = tmp_path / "other"
    other.touch()

    def replaced(_disk: Disk) -> None:
        path.unlink() if is_removed else other.rename(path)

    monkeypatch.setattr(block_devices, "check_unused", replaced)
    with pytest.raises(TakenError, match="disk 'data' was replaced or removed meanwhile"):
        disks.resize(DATA, 2048)


def piped(content: bytes) -> int:
    """Return the read end of a pipe with this content."""
    read, write = os.pipe()
    os.write(write, content)
    os.close(write)
    return read


@pytest.mark.parametrize("content", [b"x" * 1000, b""])
def test_a_pipe_without_whole_sectors_leaves_no_disk(disks: NamedDisks, content: bytes) -> None:
    read = piped(content)
    with pytest.raises(InvalidRequestError, match=f"would have {len(content)} bytes"):
        disks.import_(DATA, read)
    assert disks.all() == ()
    os.close(read)


@pytest.mark.parametrize("mode", ["wb", "ab"])
def test_exports_to_one_file_follow_each_other(disks: NamedDisks, tmp_path: Path, mode: str) -> None:
    """As of `{ solo5ctl disk export data -; solo5ctl disk export data -; } > FILE`, or `>> FILE`."""
    read = piped(b"x" * 512)
    disks.import_(DATA, read)
    os.close(read)
    with (tmp_path / "out").open(mode, buffering=0) as out:
        disks.export(DATA, out.fileno())
        disks.export(DATA, out.fileno())
        out.write(b"end")
    assert (tmp_path / "out").read_bytes() == b"x" * 1024 + b"end"


@pytest.fixture
def limited(tmp_path: Path) -> NamedDisks:
    """Disks of at most 4096 bytes altogether."""
    quotas = {str(tmp_path / "disks"): 4096}
    claims = DiskClaims(in_bytes(quotas))
    return NamedDisks(tmp_path / "disks", claims)


@pytest.mark.parametrize("is_unnamed", [True, False], ids=["unnamed", "temporary name"])
def test_a_disk_beyond_the_quota_is_refused(
    limited: NamedDisks, tmp_path: Path, is_unnamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = DiskName("other")
    words = "disk 'other' would take 2560 bytes: expected at most 2048, since the quota of .* is 4096 bytes and .* 2048"
    limited.create(DATA, 2048)
    (tmp_path / "in").write_bytes(bytes(2560))
    with pytest.raises(HostError, match=words):
        limited.create(other, 2560)
    with monkeypatch.context() as patch:  # locks need O_TMPFILE
        if not is_unnamed:
            without_unnamed(patch)
        with (tmp_path / "in").open("rb") as source, pytest.raises(HostError, match=words):
            limited.import_(other, source.fileno())
        read = piped(bytes(2560))
        with pytest.raises(HostError, match=words):
            limited.import_(other, read)
        os.close(read)
    with pytest.raises(HostError, match="disk 'data' would take 2560 bytes: expected at most 2048"):
        limited.resize(DATA, 4608)
    assert [path.name for path in (tmp_path / "disks").iterdir()] == ["data"]
    assert limited.resize(DATA, 512, shrink=True).size == 512
    read = piped(b"x" * 3584)
    assert limited.import_(other, read)[0].size == 3584, "up to the quota"
    os.close(read)


def test_a_file_system_that_shares_blocks_is_hashed_too(
    disks: NamedDisks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def share(source: int, target: int) -> bool:
        os.sendfile(target, source, 0, 1 << 20)
        return True

    monkeypatch.setattr(named_disks, "share", share)
    (tmp_path / "in").write_bytes(b"x" * 512)
    with (tmp_path / "in").open("rb") as source, (tmp_path / "out").open("w+b") as target:
        digest = hashlib.sha256(b"x" * 512).hexdigest()
        assert disks.import_(DATA, source.fileno())[1] == digest
        monkeypatch.setattr(named_disks, "share", lambda *_: True)
        assert disks.export(DATA, target.fileno()) == digest


def test_errors_of_the_file_system_are_sentences(
    disks: NamedDisks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "disks").write_bytes(b"")
    for act in (
        lambda: disks.create(DATA, 512),
        disks.all,
        lambda: disks.get(DATA),
        lambda: Snapshots(disks).remove_disk(DATA),
    ):
        with pytest.raises(HostError, match="cannot be"):
            act()
    (tmp_path / "disks").unlink()
    disks.create(DATA, 512)
    monkeypatch.setattr(os, "ftruncate", failing(errno.ENOSPC))
    with pytest.raises(HostError, match="disk 'data' cannot be used: No space left on device"):
        disks.resize(DATA, 1024)


def test_a_link_is_no_disk(disks: NamedDisks, tmp_path: Path) -> None:
    disks.create(DATA, 512)
    (tmp_path / "disks" / "link").symlink_to("data")
    (tmp_path / "disks" / "directory").mkdir()
    with pytest.raises(HostError, match="cannot be opened: Too many levels of symbolic links"):
        Snapshots(disks).remove_disk(DiskName("link"))
    with pytest.raises(InvalidRequestError, match="is no disk: expected a regular file"):
        Snapshots(disks).remove_disk(DiskName("directory"))


def test_a_missing_disk_is_named(tmp_path: Path) -> None:
    wanted = named_disk(DeviceName("storage"), DATA, directory=str(tmp_path))
    with pytest.raises(NotFoundError, match="disk storage: no disk is named 'data'") as caught:
        inspect(wanted)
    assert caught.value.hint == "Create it: solo5ctl disk create data SIZE"
