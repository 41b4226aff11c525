"""No blank disk takes the place of a file system that is not mounted."""

import errno
import os
from pathlib import Path

import pytest
from tests.fast.storage.test_new_file import request

from solo5_systemd.base.errors import HostError
from solo5_systemd.storage import new_file
from solo5_systemd.storage.backing_files import inspect, make
from solo5_systemd.storage.new_file import check_mounted, remember_mount


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    path = tmp_path / "volume"
    path.mkdir()
    return path


class Mounts:
    """Which directories have a file system mounted."""

    def __init__(self) -> None:
        self.found: set[str] = set()

    def above(self, path: str) -> str:
        """As `paths.mount_point_of`."""
        return next((str(each) for each in (Path(path), *Path(path).parents) if str(each) in self.found), "")


@pytest.fixture
def mounted(monkeypatch: pytest.MonkeyPatch) -> Mounts:
    found = Mounts()
    monkeypatch.setattr(new_file, "mount_point_of", found.above)
    return found


def test_no_disk_is_created_where_its_file_system_is_not_mounted(
    volume: Path, mounted: Mounts, mounts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted.found.add(str(volume))
    wanted = request(volume / "disk")
    assert make(wanted).created
    (volume / "disk").unlink()
    mounted.found.clear()
    sentence = f"'{volume}/disk' does not exist, and nothing is mounted at '{volume}': expected the file system that"
    with pytest.raises(HostError, match=sentence):
        inspect(wanted)
    with pytest.raises(HostError, match=sentence) as error:
        make(wanted)
    assert list(volume.iterdir()) == []
    [record] = mounts.iterdir()
    assert error.value.hint == f"Mount it; to create disks without it: rm {record}"
    assert inspect(request(volume.with_name("elsewhere"))).planned
    mounted.found.add(str(volume))
    assert make(wanted).created
    (volume / "disk").unlink()
    mounted.found.clear()
    record.unlink()
    assert make(wanted).created


def test_the_file_system_of_the_root_directory_has_no_record(volume: Path, mounted: Mounts, mounts: Path) -> None:
    assert make(request(volume / "disk")).created
    assert not mounts.exists()


def test_a_mount_point_is_recorded_once_and_a_removed_directory_no_longer(
    tmp_path: Path, mounted: Mounts, mounts: Path
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        mounted.found.add(str(tmp_path / name))
    for _ in range(2):
        remember_mount(str(tmp_path / "one/disk"))
    (mounts / ".interrupted").touch()
    [record] = mounts.glob("[!.]*")
    assert (record.read_text(), record.stat().st_mode & 0o777) == (str(tmp_path / "one"), 0o600)
    (tmp_path / "one").rmdir()
    remember_mount(str(tmp_path / "two/disk"))
    assert [each.read_text() for each in mounts.glob("[!.]*")] == [str(tmp_path / "two")]


def test_records_that_cannot_be_read_are_one_sentence(
    volume: Path, mounted: Mounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_path: str) -> str:
        raise OSError(errno.EIO, os.strerror(errno.EIO), "/records")

    mounted.found.add(str(volume))
    remember_mount(str(volume / "disk"))
    monkeypatch.setattr(new_file, "mount_point_of", fail)
    with pytest.raises(HostError, match="disk storage: .*/mounts cannot be read: Input/output error"):
        check_mounted(str(volume / "disk"), "disk storage")
