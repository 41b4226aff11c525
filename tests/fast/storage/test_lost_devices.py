"""Block devices that are gone from under a task."""

from pathlib import Path

import pytest
from tests.fast.storage.conftest import Device

from solo5_systemd.storage.lost_devices import is_lost


def lost(device: Device, path: Path | None = None, number: int | None = None) -> bool:
    identity = (device.number if number is None else number, 0)
    return is_lost(str(path or device.path), {identity}, device.sys)


def test_a_device_with_its_node_and_a_size_is_there(device: Device) -> None:
    assert not lost(device)


def test_a_device_is_lost_at_any_moment_of_its_removal(device: Device) -> None:
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
