"""Files of disks that other programs have changed under a task, and block devices that are gone from under it."""

import os
from pathlib import Path

import pytest
from tests.fast.storage.conftest import Device

from solo5_systemd.storage.disk_state import change_of, is_lost


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "directory" / "disk.img"
    path.parent.mkdir()
    path.write_bytes(bytes(1024))
    return path


def change(path: Path, of: os.stat_result, **more: str) -> str:
    disk = {"disk": "data", "backing": "file", "path": str(path), "size": "1024", **more}
    return change_of(disk, {(of.st_dev, of.st_ino)})


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


def test_a_device_is_the_one_of_the_start_or_gone(device: Device) -> None:
    disk = {"disk": "data", "backing": "block device", "path": str(device.path)}
    assert change_of(disk, {(device.number, 0)}) == ""
    device.pull()
    assert change_of(disk, {(device.number, 0)}) == "its device is gone"


def lost(device: Device, path: Path | None = None, number: int | None = None) -> bool:
    identity = (device.number if number is None else number, 0)
    return is_lost(str(path or device.path), {identity})


def test_a_device_is_there_and_lost_at_any_moment_of_its_removal(device: Device) -> None:
    assert not lost(device)
    """The kernel sets its size to 0 first, then removes it from sysfs, and its node."""
    device.size.write_text("0\n")
    assert lost(device)
    device.size.unlink()
    assert lost(device)
    device.path.unlink()
    assert lost(device)


def test_another_device_or_a_file_at_its_path_is_not_it(device: Device, tmp_path: Path) -> None:
    assert lost(device, number=device.number + 1)
    (tmp_path / "file").touch()
    assert lost(device, tmp_path / "file")
    assert lost(device, tmp_path / "file/below")


def test_a_path_that_cannot_be_looked_at_is_not_known(device: Device, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="File name too long"):
        lost(device, tmp_path / ("x" * 300))
