"""Files and block devices by path, as `solo5ctl disk inspect` shows them."""

import os
from pathlib import Path

import pytest
from tests.fast.storage.conftest import Device, disk_of

from solo5_systemd.base.errors import HostError, InvalidRequestError, NotFoundError
from solo5_systemd.storage.disk_state import DiskPath, inspect_path
from solo5_systemd.storage.locks import lock, lock_shared
from solo5_systemd.storage.model import Backing


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
