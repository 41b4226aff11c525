import errno
import os
import re
import stat
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.fast.storage.conftest import solo5_is
from tests.support.fakes.refusal import refusal

from solo5_systemd.base.errors import HostError, InvalidRequestError, NotFoundError, Solo5Error
from solo5_systemd.base.names import DeviceName
from solo5_systemd.base.paths import mount_point_of
from solo5_systemd.storage.backing_files import inspect
from solo5_systemd.storage.bind_mounts import reopen
from solo5_systemd.storage.model import Disk, DiskRequest, GivenDisk, check_size

DEVICE = os.makedev(254, 7)


@pytest.fixture(autouse=True)
def user(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user that runs the tests stands for user solo5."""
    solo5_is(monkeypatch, os.getuid())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "disk.img"
    path.write_bytes(bytes(4096))
    return path


def request(path: Path, sector_size: int = 512) -> DiskRequest:
    return DiskRequest(disk=DeviceName("storage"), path=str(path), sector_size=sector_size)


def test_a_file_is_known_by_its_device_and_inode_under_every_name(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(file)
    status = file.stat()
    assert inspect(request(link, sector_size=4096)) == Disk(
        disk=DeviceName("storage"),
        path=str(file),
        sector_size=4096,
        device=None,
        identity=(status.st_dev, status.st_ino),
        size=4096,
        given=GivenDisk(str(file), status.st_dev, status.st_ino, os.statvfs(file).f_fsid, mount_point_of(str(file))),
    )


def test_a_block_device_is_known_by_its_number(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, fstat = file.stat(), os.fstat
    node = SimpleNamespace(
        st_mode=stat.S_IFBLK | 0o660, st_rdev=DEVICE, st_dev=5, st_ino=99, st_uid=real.st_uid, st_gid=real.st_gid,
        st_size=0,
    )  # fmt: skip
    monkeypatch.setattr(os, "fstat", lambda found: node if fstat(found).st_ino == real.st_ino else fstat(found))
    disk = inspect(request(file))
    assert (disk.device, disk.identity) == ((254, 7), (DEVICE, 0))


@pytest.mark.parametrize(
    "path, error, words",
    [
        ("missing", NotFoundError, "does not exist"),
        ("disk.img/below", NotFoundError, "does not exist"),
        (".", InvalidRequestError, "is no disk: expected a regular file or a block device"),
        ("/dev/null", InvalidRequestError, "is no disk"),
        ("fifo", InvalidRequestError, "is no disk"),
        ("odd", InvalidRequestError, "has 513 bytes"),
        ("empty", InvalidRequestError, "has 0 bytes"),
        ("loop", HostError, "Too many levels of symbolic links"),
    ],
)
def test_what_no_tender_could_use_is_refused(
    file: Path, tmp_path: Path, path: str, error: type[Solo5Error], words: str
) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "odd").write_bytes(bytes(513))
    (tmp_path / "empty").touch()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(error, match=re.escape(words)) as caught:
        inspect(request(tmp_path / path))
    assert type(caught.value) is error


def test_a_disk_lies_below_its_roots_links_followed(file: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(file)
    assert inspect(replace(request(root / "link"), roots=(str(root), str(tmp_path)))).path == str(file)
    with pytest.raises(
        InvalidRequestError, match=f"disk storage: '{root}/link' cannot be used: expected a file below {root}"
    ):
        inspect(replace(request(root / "link"), roots=(str(root),)))


def test_what_was_looked_at_is_opened_again_and_nothing_in_its_place(file: Path, tmp_path: Path) -> None:
    looked_at = inspect(request(file))
    descriptor = reopen(looked_at)
    assert os.path.samestat(os.fstat(descriptor), file.stat())
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.read(descriptor, 1)
    os.close(descriptor)
    before = {fd.name for fd in Path("/proc/self/fd").iterdir()}
    kept = file.rename(tmp_path / "kept")
    with pytest.raises(HostError, match="cannot be opened: No such file or directory"):
        reopen(looked_at)
    for replace_by in (lambda: file.symlink_to(kept), lambda: file.write_bytes(bytes(4096))):
        replace_by()
        with pytest.raises(HostError, match="was replaced during the start"):
            reopen(looked_at)
        file.unlink()
    kept.rename(file)
    os.truncate(file, 512)
    with pytest.raises(HostError, match="has 512 bytes now: expected [0-9]+, as it was checked"):
        reopen(looked_at)
    assert {fd.name for fd in Path("/proc/self/fd").iterdir()} == before


def test_a_read_only_file_system_is_the_hosts_refusal(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def refuse(path: str, flags: int) -> int:
        if flags & os.O_PATH:
            return real(path, flags)
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(HostError, match=r"cannot be opened for reading and writing: Read-only file system\."):
        inspect(request(file))


@pytest.mark.parametrize("size", [-512, 0, 1, 256, 513, 1000, 65536, 66048])
def test_a_sector_size_that_tenders_refuse_or_misread_is_refused(size: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"sector size {size} is not supported: expected a power of two"):
        request(Path("/srv/disk"), sector_size=size)


@pytest.mark.parametrize(
    "size, sector, is_whole",
    [
        *((512, 512, True), (1 << 40, 512, True), (8192, 4096, True), (0, 512, False)),
        *((511, 512, False), (513, 512, False), (512, 4096, False), (4608, 4096, False)),
    ],
)
def test_a_size_is_one_of_whole_sectors(size: int, sector: int, *, is_whole: bool) -> None:
    found = refusal(check_size, "disk x has", size, sector)
    assert (found == "") is is_whole
    assert is_whole or f"disk x has {size} bytes: expected one or more whole sectors of {sector}" in found
