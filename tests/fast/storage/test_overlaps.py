"""Disks that are parts of each other, in a tree like that of sysfs, and what the kernel itself uses."""

import os
from pathlib import Path

import pytest
from tests.fast.storage.conftest import Sysfs, disk_of
from tests.support.fakes.refusal import refusal

from solo5_systemd.base.errors import InvalidRequestError, TakenError
from solo5_systemd.base.names import DeviceName
from solo5_systemd.storage import block_devices
from solo5_systemd.storage.block_devices import check_distinct, check_unused, overlapping
from solo5_systemd.storage.model import Backing, Disk


@pytest.fixture
def sysfs(sysfs: Sysfs) -> Sysfs:
    """The same with a loop device that has a partition."""
    sysfs.device("loop0", "7:0")
    sysfs.device("loop0p1", "259:1", of="loop0")
    (sysfs.root / "block").mkdir()
    for name in ("vda", "loop0"):
        (sysfs.root / "block" / name).symlink_to(sysfs.root / "devices" / name)
    (sysfs.root / "devices/loop0/ro").write_text("0\n")
    return sysfs


@pytest.fixture
def image(tmp_path: Path, sysfs: Sysfs) -> Path:
    """The file of loop0, which has no device node here."""
    path = tmp_path / "image"
    path.touch()
    (sysfs.root / "devices/loop0/loop").mkdir()
    (sysfs.root / "devices/loop0/loop/backing_file").write_text(f"{path}\n")
    return path


def device(major: int, minor: int, path: str = "/dev/x") -> Disk:
    number = os.makedev(major, minor)
    return Disk(disk=DeviceName("data"), path=path, device=(major, minor), identity=(number, 0))


def found(disk: Disk) -> set[tuple[int, int]]:
    return set(overlapping(disk))


def number(major: int, minor: int) -> tuple[int, int]:
    return os.makedev(major, minor), 0


def test_a_partition_and_its_disk_overlap_and_two_partitions_do_not(sysfs: Sysfs) -> None:
    assert found(device(254, 2)) == {number(254, 0)}
    assert found(device(254, 0)) == {number(254, 2), number(254, 3)}


def test_a_loop_device_and_its_partitions_overlap_with_its_file(sysfs: Sysfs, image: Path) -> None:
    of_file = disk_of(image).identity
    assert found(device(7, 0)) == {number(259, 1), of_file}
    assert found(device(259, 1)) == {number(7, 0), of_file}
    assert found(disk_of(image)) == set()
    image.unlink()
    assert found(device(7, 0)) == {number(259, 1)}


def test_a_device_that_is_gone_overlaps_with_nothing(sysfs: Sysfs) -> None:
    (sysfs.root / "devices/vda/vda2/dev").unlink()
    assert found(device(254, 0)) == {number(254, 3)}
    assert found(device(8, 0)) == set()


def test_a_loop_device_has_its_file_from_the_kernel(
    sysfs: Sysfs, image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By path, it would be the file that is there now."""
    nodes = sysfs.root / "nodes"
    nodes.mkdir()
    (nodes / "loop0").touch()

    def ioctl(descriptor: int, request: int, info: bytearray) -> None:
        assert request == block_devices.LOOP_GET_STATUS64
        block_devices._ATTACHED.pack_into(info, 0, 65025, 4711, 0)

    monkeypatch.setattr("fcntl.ioctl", ioctl)
    assert set(overlapping(device(7, 0))) == {number(259, 1), (65025, 4711)}


@pytest.fixture
def stacked(sysfs: Sysfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sysfs:
    """loop1, which is attached to vda2; dm-0, which is mapped to vda3."""
    sysfs.device("loop1", "7:1")
    sysfs.device("dm-0", "253:0", slaves=("vda/vda3",))
    (sysfs.root / "devices/loop1/loop").mkdir()
    (sysfs.root / "devices/loop1/ro").write_text("0\n")
    (sysfs.root / "block/loop1").symlink_to(sysfs.root / "devices/loop1")
    nodes = sysfs.root / "nodes"
    nodes.mkdir()
    (nodes / "loop1").touch()

    def ioctl(descriptor: int, request: int, info: bytearray) -> None:
        devtmpfs, inode = 5, 310  # of the node, the same for each container with a /dev of its own
        block_devices._ATTACHED.pack_into(info, 0, devtmpfs, inode, os.makedev(254, 2))

    monkeypatch.setattr("fcntl.ioctl", ioctl)
    return sysfs


def test_a_device_overlaps_with_all_that_is_below_it(stacked: Sysfs) -> None:
    assert found(device(7, 1)) == {number(254, 2), number(254, 0)}
    assert found(device(253, 0)) == {number(254, 3), number(254, 0)}


def test_a_device_of_a_loop_device_is_in_use_and_other_partitions_are_not(stacked: Sysfs) -> None:
    for disk in (device(254, 2), device(254, 0)):
        with pytest.raises(TakenError, match="is attached to loop1: expected a disk that nothing else uses"):
            check_unused(disk)
    for disk in (device(254, 3), device(7, 1)):
        check_unused(disk)


def test_one_file_has_no_two_loop_devices_that_write(sysfs: Sysfs, image: Path) -> None:
    check_unused(device(7, 0))
    sysfs.device("loop1", "7:1")
    (sysfs.root / "devices/loop1/loop").mkdir()
    (sysfs.root / "devices/loop1/loop/backing_file").write_text(f"{image}\n")
    (sysfs.root / "devices/loop1/ro").write_text("0\n")
    (sysfs.root / "block/loop1").symlink_to(sysfs.root / "devices/loop1")
    for disk, other in ((device(7, 0), "loop1"), (device(259, 1), "loop1"), (device(7, 1), "loop0")):
        with pytest.raises(TakenError, match=f"is attached to {other}: "):
            check_unused(disk)


def test_a_file_of_a_loop_device_is_in_use_unless_that_is_read_only(sysfs: Sysfs, image: Path) -> None:
    with pytest.raises(TakenError, match="is attached to loop0: expected a disk that nothing else uses") as error:
        check_unused(disk_of(image))
    assert error.value.hint == "Use /dev/loop0 as the disk, or detach it: losetup -d loop0"
    other = image.with_name("other")
    other.touch()
    check_unused(disk_of(other))
    check_unused(disk_of(image, backing=Backing.COPY))
    (sysfs.root / "devices/loop0/ro").write_text("1\n")
    check_unused(disk_of(image))


def test_one_file_cannot_be_two_disks_of_a_task() -> None:
    def disk(name: str, *identity: int) -> Disk:
        major, inode = identity
        return Disk(disk=DeviceName(name), path="/srv/disk", identity=(major, inode))

    assert refusal(check_distinct, [disk("a", 1, 2), disk("b", 2, 2), disk("c", 1, 3)]) == ""
    with pytest.raises(InvalidRequestError, match="disks a and c are both '/srv/disk'"):
        check_distinct([disk("a", 1, 2), disk("b", 2, 2), disk("c", 1, 2)])
