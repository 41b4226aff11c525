"""I/O limits of disks as properties of the unit: one limit of a kind for each device."""

from dataclasses import replace

import pytest

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import DeviceName
from solo5_systemd.storage.io_limits import KEYS, NO_IO_LIMITS, IoLimits
from solo5_systemd.storage.model import Backing, Disk
from solo5_systemd.task.properties import DISK_LIMITS, PROPERTIES, SETTABLE, Property, directive, parse_property
from solo5_systemd.unit.translate import io_properties

VDA, VDB, MAPPED = ("254:0", "vda"), ("254:16", "vdb"), ("253:0", "dm-0")
SLOW = IoLimits(read_bps=10_000_000, write_iops=100)


def disk(name: str, io: IoLimits = NO_IO_LIMITS, *devices: tuple[str, str]) -> Disk:
    path = f"/srv/{name}\n%n a"
    return Disk(disk=DeviceName(name), path=path, identity=(1, 2), io=io, devices=dict(devices))


def lines(*disks: Disk, beside: tuple[str, ...] = ()) -> list[str]:
    return [directive(each) for each in io_properties(disks, beside)]


def refusal(*disks: Disk, beside: tuple[str, ...] = ()) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        list(io_properties(disks, beside))
    return caught.value.sentence


def test_each_limit_has_its_property() -> None:
    assert tuple(DISK_LIMITS) == KEYS
    assert all(SETTABLE[name].controller == "io" and name in PROPERTIES for name in DISK_LIMITS.values())


def test_limits_are_on_the_last_device_and_no_path_of_a_disk_is_in_the_unit() -> None:
    data = disk("data", SLOW, MAPPED, VDA)
    assert lines(data) == ["IOReadBandwidthMax=/dev/block/254:0 10000000", "IOWriteIOPSMax=/dev/block/254:0 100"]
    [first, _] = io_properties([data], ())
    assert first == Property("IOReadBandwidthMax", "a(st)", [("/dev/block/254:0", 10_000_000)])


def test_a_device_is_in_the_form_that_systemd_reads_again() -> None:
    [line, _] = lines(disk("data", SLOW, VDA))
    assert directive(parse_property(*line.split("=", 1))) == line


def test_each_device_has_its_own_limits_once() -> None:
    data = disk("data", SLOW, VDA)
    assert lines(data, disk("log", IoLimits(read_bps=1_000_000), VDB)) == [
        "IOReadBandwidthMax=/dev/block/254:0 10000000\nIOReadBandwidthMax=/dev/block/254:16 1000000",
        "IOWriteIOPSMax=/dev/block/254:0 100",
    ]
    in_memory = replace(disk("config"), backing=Backing.ARCHIVE)
    for other in (disk("log", NO_IO_LIMITS, VDB), disk("log", SLOW, MAPPED, VDA), in_memory):
        assert lines(data, other) == lines(data)


@pytest.mark.parametrize("other, text", [(NO_IO_LIMITS, "no limit"), (IoLimits(read_bps=10**9), "read_bps=1G")])
def test_different_limits_of_one_device_are_refused(other: IoLimits, text: str) -> None:
    for disks in (
        (disk("data", SLOW, VDA), disk("log", other, VDA)),
        (disk("log", other, VDA), disk("data", SLOW, VDA)),
    ):
        sentence = refusal(*disks)
        assert f"log ({text})" in sentence
        assert sentence.endswith(
            "are on one device, vda: expected equal I/O limits, since the kernel limits a task by device."
        )


def test_a_limited_disk_without_a_device_is_refused() -> None:
    assert "has I/O limits (read_bps=10M write_iops=100), and no block device" in refusal(disk("data", SLOW))
    assert lines(disk("data")) == [], "nothing to limit"


def test_a_property_of_the_task_would_replace_a_limit() -> None:
    """systemd writes all limits of a device at once, for each path that the unit has for it."""
    sentence = refusal(disk("data", SLOW, VDA), beside=("TasksMax", "IOWriteIOPSMax"))
    assert sentence.startswith("unit property IOWriteIOPSMax is set, and an I/O limit of a disk: expected one of both")
    assert lines(disk("data", NO_IO_LIMITS, VDA), beside=("IOWriteIOPSMax",)) == []
    assert len(lines(disk("data", SLOW, VDA), beside=("TasksMax",))) == 2
