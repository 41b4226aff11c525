"""The block devices under a file, and disks that are parts of each other, in a tree like that of sysfs."""

import errno
import fcntl
import os
from pathlib import Path

import pytest
from tests.fast.storage.conftest import Sysfs, disk_of
from tests.support.fakes.kernel import failing
from tests.support.fakes.refusal import refusal

from solo5_systemd.base.errors import InvalidRequestError, TakenError
from solo5_systemd.base.names import DeviceName
from solo5_systemd.storage import block_devices
from solo5_systemd.storage.block_devices import chain, check_distinct, check_unused, devices_of, overlapping
from solo5_systemd.storage.model import Backing, Disk

UUID = bytes.fromhex("0d5a8e9c11d24bb1a6c7e0f5b1c2d3e4")


def test_a_partition_is_its_whole_disk(sysfs: Sysfs) -> None:
    assert chain("254:2") == chain("254:0") == {"254:0": "vda"}


def test_a_mapped_device_is_on_the_one_disk_under_it(sysfs: Sysfs) -> None:
    sysfs.device("vdb", "254:16")
    sysfs.device("dm-0", "253:0", slaves=("vda/vda2",))
    sysfs.device("dm-1", "253:1", slaves=("dm-0",))
    sysfs.device("dm-2", "253:2", slaves=("vda/vda2", "vda/vda3"))  # as of dm-verity, with its data and its hashes
    sysfs.device("md0", "9:0", slaves=("vda/vda2", "vdb"))
    assert [*chain("253:1").values()] == ["dm-1", "dm-0", "vda"]
    assert [*chain("253:2").values()] == ["dm-2", "vda"]
    assert [*chain("9:0").values()] == ["md0"], "of several disks"


def test_a_device_that_is_gone_is_an_error(sysfs: Sysfs) -> None:
    with pytest.raises(OSError, match="No such file"):
        chain("7:7")


def devices(path: Path) -> dict[str, str]:
    descriptor = os.open(path, os.O_PATH)
    try:
        return devices_of(descriptor)
    finally:
        os.close(descriptor)


def test_a_file_in_memory_has_no_device(sysfs: Sysfs) -> None:
    """/dev/shm is a tmpfs, and /proc no file system of a device either."""
    assert devices(Path("/dev/shm")) == {}
    assert devices(Path("/proc/self/status")) == {}


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
        assert [*devices(tmp_path).values()] == found, "none of several"


def test_an_error_of_the_ioctl_is_no_answer(sysfs: Sysfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_devices.os, "major", lambda _: 0)  # type: ignore[attr-defined]
    monkeypatch.setattr(block_devices.fcntl, "ioctl", failing(errno.EIO))  # type: ignore[attr-defined]
    with pytest.raises(OSError, match="Input/output error"):
        devices(tmp_path)


# --- parts of each other, and what the kernel itself uses --------------------------------------------------------


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "image"
    path.touch()
    return path


@pytest.fixture
def loops(sysfs: Sysfs, image: Path) -> Sysfs:
    """The same with a loop device of the image, which has a partition, and no device node here."""
    sysfs.loop("loop0", "7:0", image)
    sysfs.device("loop0p1", "259:1", of="loop0")
    return sysfs


def device(major: int, minor: int, path: str = "/dev/x") -> Disk:
    number = os.makedev(major, minor)
    return Disk(disk=DeviceName("data"), path=path, device=(major, minor), identity=(number, 0))


def found(disk: Disk) -> set[tuple[int, int]]:
    return set(overlapping(disk))


def number(major: int, minor: int) -> tuple[int, int]:
    return os.makedev(major, minor), 0


def test_a_partition_and_its_disk_overlap_and_two_partitions_do_not(loops: Sysfs) -> None:
    assert found(device(254, 2)) == {number(254, 0)}
    assert found(device(254, 0)) == {number(254, 2), number(254, 3)}


def test_a_loop_device_and_its_partitions_overlap_with_its_file(loops: Sysfs, image: Path) -> None:
    of_file = disk_of(image).identity
    assert found(device(7, 0)) == {number(259, 1), of_file}
    assert found(device(259, 1)) == {number(7, 0), of_file}
    assert found(disk_of(image)) == set()
    image.unlink()
    assert found(device(7, 0)) == {number(259, 1)}


def test_a_device_that_is_gone_overlaps_with_nothing(loops: Sysfs) -> None:
    (loops.root / "devices/vda/vda2/dev").unlink()
    assert found(device(254, 0)) == {number(254, 3)}
    assert found(device(8, 0)) == set()


def test_a_loop_device_has_its_file_from_the_kernel(
    loops: Sysfs, image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By path, it would be the file that is there now."""
    nodes = loops.root / "nodes"
    nodes.mkdir()
    (nodes / "loop0").touch()

    def ioctl(descriptor: int, request: int, info: bytearray) -> None:
        assert request == block_devices.LOOP_GET_STATUS64
        block_devices._ATTACHED.pack_into(info, 0, 65025, 4711, 0)

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    assert set(overlapping(device(7, 0))) == {number(259, 1), (65025, 4711)}


@pytest.fixture
def stacked(loops: Sysfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sysfs:
    """loop1, which is attached to vda2; dm-0, which is mapped to vda3."""
    loops.loop("loop1", "7:1")
    loops.device("dm-0", "253:0", slaves=("vda/vda3",))
    nodes = loops.root / "nodes"
    nodes.mkdir()
    (nodes / "loop1").touch()

    def ioctl(descriptor: int, request: int, info: bytearray) -> None:
        devtmpfs, inode = 5, 310  # of the node, the same for each container with a /dev of its own
        block_devices._ATTACHED.pack_into(info, 0, devtmpfs, inode, os.makedev(254, 2))

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    return loops


def test_a_device_overlaps_with_all_that_is_below_it(stacked: Sysfs) -> None:
    assert found(device(7, 1)) == {number(254, 2), number(254, 0)}
    assert found(device(253, 0)) == {number(254, 3), number(254, 0)}


def test_a_device_of_a_loop_device_is_in_use_and_other_partitions_are_not(stacked: Sysfs) -> None:
    for disk in (device(254, 2), device(254, 0)):
        with pytest.raises(TakenError, match="is attached to loop1: expected a disk that nothing else uses"):
            check_unused(disk)
    for disk in (device(254, 3), device(7, 1)):
        check_unused(disk)


def test_one_file_has_no_two_loop_devices_that_write(loops: Sysfs, image: Path) -> None:
    check_unused(device(7, 0))
    loops.loop("loop1", "7:1", image)
    for disk, other in ((device(7, 0), "loop1"), (device(259, 1), "loop1"), (device(7, 1), "loop0")):
        with pytest.raises(TakenError, match=f"is attached to {other}: "):
            check_unused(disk)


def test_a_file_of_a_loop_device_is_in_use_unless_that_is_read_only(loops: Sysfs, image: Path) -> None:
    with pytest.raises(TakenError, match="is attached to loop0: expected a disk that nothing else uses") as error:
        check_unused(disk_of(image))
    assert error.value.hint == "Use /dev/loop0 as the disk, or detach it: losetup -d loop0"
    other = image.with_name("other")
    other.touch()
    check_unused(disk_of(other))
    check_unused(disk_of(image, backing=Backing.COPY))
    (loops.root / "devices/loop0/ro").write_text("1\n")
    check_unused(disk_of(image))


def test_one_file_cannot_be_two_disks_of_a_task() -> None:
    def disk(name: str, *identity: int) -> Disk:
        major, inode = identity
        return Disk(disk=DeviceName(name), path="/srv/disk", identity=(major, inode))

    assert refusal(check_distinct, [disk("a", 1, 2), disk("b", 2, 2), disk("c", 1, 3)]) == ""
    with pytest.raises(InvalidRequestError, match="disks a and c are both '/srv/disk'"):
        check_distinct([disk("a", 1, 2), disk("b", 2, 2), disk("c", 1, 2)])
