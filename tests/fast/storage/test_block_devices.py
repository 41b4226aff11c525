"""The block devices under a file, in a tree like that of sysfs."""

import errno
import os
from pathlib import Path

import pytest
from tests.fast.storage.conftest import Sysfs
from tests.support.fakes.kernel import failing

from solo5_systemd.storage import block_devices
from solo5_systemd.storage.block_devices import chain, devices_of
from solo5_systemd.storage.io_limits import BlockDevice

UUID = bytes.fromhex("0d5a8e9c11d24bb1a6c7e0f5b1c2d3e4")


def names(found: tuple[BlockDevice, ...]) -> list[str]:
    return [each.name for each in found]


def test_a_partition_is_its_whole_disk(sysfs: Sysfs) -> None:
    whole = (BlockDevice(number="254:0", name="vda"),)
    assert chain("254:2") == chain("254:0") == whole


def test_a_mapped_device_is_on_the_one_disk_under_it(sysfs: Sysfs) -> None:
    sysfs.device("vdb", "254:16")
    sysfs.device("dm-0", "253:0", slaves=("vda/vda2",))
    sysfs.device("dm-1", "253:1", slaves=("dm-0",))
    sysfs.device("dm-2", "253:2", slaves=("vda/vda2", "vda/vda3"))  # as of dm-verity, with its data and its hashes
    sysfs.device("md0", "9:0", slaves=("vda/vda2", "vdb"))
    assert names(chain("253:1")) == ["dm-1", "dm-0", "vda"]
    assert names(chain("253:2")) == ["dm-2", "vda"]
    assert names(chain("9:0")) == ["md0"], "of several disks"
    sysfs.device("dm-3", "253:3", slaves=("dm-3",))
    assert len(chain("253:3")) < 10, "a chain has an end"


def test_a_device_that_is_gone_is_an_error(sysfs: Sysfs) -> None:
    with pytest.raises(OSError, match="No such file"):
        chain("7:7")


def devices(path: Path) -> tuple[BlockDevice, ...]:
    descriptor = os.open(path, os.O_PATH)
    try:
        return devices_of(descriptor)
    finally:
        os.close(descriptor)


def test_a_file_in_memory_has_no_device(sysfs: Sysfs) -> None:
    """/dev/shm is a tmpfs, and /proc no file system of a device either."""
    assert devices(Path("/dev/shm")) == ()
    assert devices(Path("/proc/self/status")) == ()


def test_a_file_is_on_the_device_of_its_file_system(
    sysfs: Sysfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "disk.img"
    file.touch()
    monkeypatch.setattr(block_devices.os, "major", lambda _: 254)  # type: ignore[attr-defined]
    monkeypatch.setattr(block_devices.os, "minor", lambda _: 3)  # type: ignore[attr-defined]
    assert names(devices(file)) == ["vda"]


def test_a_file_of_a_btrfs_is_on_the_one_device_of_it(
    sysfs: Sysfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def information(_: int, request: int, buffer: bytearray) -> int:
        assert (request, len(buffer)) == (0x8400941F, 1024), "the size is a part of the request's number"
        buffer[16:32] = UUID
        return 0

    pool = sysfs.root / "fs/btrfs/0d5a8e9c-11d2-4bb1-a6c7-e0f5b1c2d3e4/devices"
    pool.mkdir(parents=True)
    monkeypatch.setattr(block_devices.os, "major", lambda _: 0)  # type: ignore[attr-defined]
    monkeypatch.setattr(block_devices.fcntl, "ioctl", information)  # type: ignore[attr-defined]
    for name, found in (("vda2", ["vda"]), ("vda3", [])):
        (pool / name).symlink_to(sysfs.root / "devices/vda" / name)
        assert names(devices(tmp_path)) == found, "none of several"


def test_an_error_of_the_ioctl_is_no_answer(sysfs: Sysfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_devices.os, "major", lambda _: 0)  # type: ignore[attr-defined]
    monkeypatch.setattr(block_devices.fcntl, "ioctl", failing(errno.EIO))  # type: ignore[attr-defined]
    with pytest.raises(OSError, match="Input/output error"):
        devices(tmp_path)
