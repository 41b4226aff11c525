"""The block devices under a file, in a tree like that of sysfs."""

import os
from pathlib import Path

import pytest

from solo5_systemd.base import procfs
from solo5_systemd.storage import block_devices
from solo5_systemd.storage.block_devices import btrfs_device, chain, devices_of
from solo5_systemd.storage.io_limits import BlockDevice

UUID = bytes.fromhex("0d5a8e9c11d24bb1a6c7e0f5b1c2d3e4")


class Sysfs:
    """Block devices as directories and symbolic links."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "dev/block").mkdir(parents=True)

    def device(self, name: str, number: str, *, of: str = "", slaves: tuple[str, ...] = ()) -> None:
        """Add a device; `of`: the disk of which it is a partition."""
        directory = self.root / "devices" / of / name
        directory.mkdir(parents=True)
        (directory / "dev").write_text(f"{number}\n")
        if of:
            (directory / "partition").write_text("1\n")
        (self.root / "dev/block" / number).symlink_to(directory)
        (directory / "slaves").mkdir()
        for slave in slaves:
            (directory / "slaves" / slave.rpartition("/")[2]).symlink_to(self.root / "devices" / slave)


@pytest.fixture
def sysfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sysfs:
    found = Sysfs(tmp_path / "sys")
    monkeypatch.setattr(procfs, "SYS", found.root)
    monkeypatch.setattr(procfs, "DEV", found.root / "nodes")
    found.device("vda", "254:0")
    found.device("vda2", "254:2", of="vda")
    found.device("vda3", "254:3", of="vda")
    found.device("vdb", "254:16")
    return found


def names(found: tuple[BlockDevice, ...]) -> list[str]:
    return [each.name for each in found]


def test_a_partition_is_its_whole_disk(sysfs: Sysfs) -> None:
    whole = (BlockDevice(number="254:0", name="vda"),)
    assert chain("254:2") == chain("254:0") == whole


def test_a_mapped_device_is_on_the_disk_under_it(sysfs: Sysfs) -> None:
    sysfs.device("dm-0", "253:0", slaves=("vda/vda2",))
    sysfs.device("dm-1", "253:1", slaves=("dm-0",))
    assert names(chain("253:1")) == ["dm-1", "dm-0", "vda"]


def test_a_device_of_two_parts_of_one_disk_is_on_that_disk(sysfs: Sysfs) -> None:
    """Such as dm-verity, with its data and its hashes."""
    sysfs.device("dm-0", "253:0", slaves=("vda/vda2", "vda/vda3"))
    assert names(chain("253:0")) == ["dm-0", "vda"]


def test_a_device_of_several_disks_is_the_last_one(sysfs: Sysfs) -> None:
    sysfs.device("md0", "9:0", slaves=("vda/vda2", "vdb"))
    assert names(chain("9:0")) == ["md0"]


def test_a_chain_has_an_end(sysfs: Sysfs) -> None:
    sysfs.device("dm-0", "253:0", slaves=("dm-0",))
    assert len(chain("253:0")) < 10


def test_a_device_that_is_gone_is_an_error(sysfs: Sysfs) -> None:
    with pytest.raises(OSError, match="No such file"):
        chain("7:7")


def test_a_btrfs_of_one_device_is_on_it(sysfs: Sysfs) -> None:
    devices = sysfs.root / "fs/btrfs/0d5a8e9c-11d2-4bb1-a6c7-e0f5b1c2d3e4/devices"
    devices.mkdir(parents=True)
    assert btrfs_device(UUID) is None
    (devices / "vda2").symlink_to(sysfs.root / "devices/vda/vda2")
    assert btrfs_device(UUID) == "254:2"
    (devices / "vdb").symlink_to(sysfs.root / "devices/vdb")
    assert btrfs_device(UUID) is None


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


def test_a_file_of_a_btrfs_is_on_its_device(sysfs: Sysfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def information(_: int, request: int, buffer: bytearray) -> int:
        assert (request, len(buffer)) == (0x8400941F, 1024), "the size is a part of the request's number"
        buffer[16:32] = UUID
        return 0

    pool = sysfs.root / "fs/btrfs/0d5a8e9c-11d2-4bb1-a6c7-e0f5b1c2d3e4/devices"
    pool.mkdir(parents=True)
    (pool / "vda2").symlink_to(sysfs.root / "devices/vda/vda2")
    monkeypatch.setattr(block_devices.os, "major", lambda _: 0)  # type: ignore[attr-defined]
    monkeypatch.setattr(block_devices.fcntl, "ioctl", information)  # type: ignore[attr-defined]
    assert names(devices(tmp_path)) == ["vda"]


def test_an_error_of_the_ioctl_is_no_answer(sysfs: Sysfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(block_devices.os, "major", lambda _: 0)  # type: ignore[attr-defined]
    monkeypatch.setattr(block_devices.fcntl, "ioctl", failing)  # type: ignore[attr-defined]
    with pytest.raises(OSError, match="Input/output error"):
        devices(tmp_path)
