"""What the kernel holds a task to. Needs the controllers of cgroup v2: the `vm` backend has them."""

import fcntl
import itertools
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.machine.conftest import Machine, Runner, console, eventually, inspect, ok, says, unit_property
from tests.machine.test_statistics import stats

pytestmark = pytest.mark.vm
MIB = 1 << 20


def cgroup(name: str) -> Path:
    return Path("/sys/fs/cgroup" + unit_property(inspect(name)["unit"], "ControlGroup"))


def count(text: str, key: str) -> int:
    """One number of a keyed file, such as memory.stat and cpu.stat."""
    found = re.search(rf"^{key} (\d+)$", text, re.MULTILINE)
    assert found is not None, key
    return int(found[1])


@pytest.mark.parametrize("target, allotment", [("spt", 32), ("hvt", 192)])
def test_memory_is_all_of_the_allotment(run: Runner, target: str, allotment: int) -> None:
    """A guest that touches all of its memory stays within the unit's, and nothing had to be reclaimed for it.

    Also: the limit of its threads, and the slice of all tasks.
    """
    name = run(f"toucher.{target}", options=("-m", f"{allotment}M"))
    says(name, "touched all")
    group = cgroup(name)
    assert (group / "memory.max").read_text().strip() == str(allotment * MIB)
    assert (group / "memory.swap.max").read_text().strip() == "0"
    assert ((group / "pids.max").read_text().strip(), group.parent.name) == ("16", "solo5.slice")
    assert inspect(name)["phase"] == "running"
    events = (group / "memory.events").read_text()
    assert (count(events, "max"), count(events, "oom")) == (0, 0), "the limit was never met"
    seen = re.search(r"memory (\d+) bytes", console(name))
    assert seen is not None
    guest = int(seen[1])
    assert (allotment - 10) * MIB <= guest < allotment * MIB
    stat = (group / "memory.stat").read_text()
    beside = int((group / "memory.peak").read_text()) - count(stat, "anon") - count(stat, "shmem")
    assert beside < 4 * MIB + guest // 128, "half of what is set aside, however large the guest"


@pytest.fixture
def tight(machine: Machine) -> Iterator[str]:
    """A slice with less memory than its tasks may use: a guest itself never gets to its unit's limit."""
    name = "solo5-tight.slice"
    settings = Path(f"/run/systemd/system/{name}.d")
    settings.mkdir(parents=True)
    (settings / "limit.conf").write_text("[Slice]\nMemoryMax=20M\n")
    ok("systemctl", "daemon-reload")
    yield name
    shutil.rmtree(settings)
    ok("systemctl", "stop", name)
    ok("systemctl", "daemon-reload")


def test_out_of_memory_is_distinguished_from_every_other_end(run: Runner, tight: str) -> None:
    """The peak says whose memory it was: this task's own limit is far away."""
    name = run("toucher.spt", options=("-m", "64M", "--property", f"Slice={tight}"))
    ok("solo5ctl", "wait", name)
    outcome = inspect(name)["outcome"]
    assert (outcome["ending"], outcome["signal"], outcome["retry"]) == ("out-of-memory", 9, True)
    assert 15 * MIB < outcome["memory_peak"] < 32 * MIB, "with what the kernel counted before the slice refused it"
    assert "the host or a slice ran out of memory" in outcome["sentence"]


def test_a_task_that_needs_more_than_its_own_memory_would_need_it_again(machine: Machine, run: Runner) -> None:
    settings = Path("/run/systemd/system/solo5-task-small.service.d")
    settings.mkdir(parents=True)
    (settings / "limit.conf").write_text("[Service]\nMemoryMax=20M\n")
    run("toucher.hvt", name="small", options=("-m", "64M"))
    ok("solo5ctl", "wait", "small")
    shutil.rmtree(settings)
    outcome = inspect("small")["outcome"]
    assert outcome["sentence"] == "OOM-killed: guest and tender needed more than the task's 20 MiB"
    assert (outcome["retry"], outcome["retry_reason"]) == (False, "its memory has to be raised")
    assert 19 * MIB < outcome["memory_peak"] <= 20 * MIB


def test_cpu_quota_holds(run: Runner) -> None:
    name = run("spinner.spt", options=("--cpus", "0.25"))
    says(name, "spinning")
    stat = cgroup(name) / "cpu.stat"
    before, begun = count(stat.read_text(), "usage_usec"), time.monotonic()
    time.sleep(3)
    share = (count(stat.read_text(), "usage_usec") - before) / 1e6 / (time.monotonic() - begun)
    assert 0 < share < 0.40


def test_stats_are_the_kernels(run: Runner) -> None:
    name = run("toucher.hvt", "mb=16", options=("-m", "64M"))
    says(name, "touched all")
    row = stats(name)
    memory = row["memory"]
    assert 16 * MIB <= memory["rss"] <= 24 * MIB, "a guest's memory is resident, though hvt shares it"
    assert memory["cache"] < 8 * MIB
    assert memory["limit"] == 64 * MIB
    assert memory["swap"] == 0
    assert row["cpu"]["total"] > 0
    assert row["processes"] == int((cgroup(name) / "pids.current").read_text())
    assert row["pressure"].keys() == {"cpu", "memory", "io"}


def test_what_a_guest_reads_counts_on_the_hosts_device(run: Runner) -> None:
    with tempfile.NamedTemporaryFile(dir="/var/tmp", suffix=".img") as disk:  # /tmp is in memory
        disk.write(b"first".ljust(MIB, b"\0"))
        disk.flush()
        os.fchmod(disk.fileno(), 0o666)  # tenders are not root
        os.fsync(disk.fileno())
        os.posix_fadvise(disk.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # out of the page cache
        name = run("disk.spt", "read", "stay", options=("--block", f"storage={disk.name}"))
        says(name, "'first'")
        row = stats(name)
        number = Path(disk.name).stat().st_dev
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()
    [counted] = row["disks"]
    assert counted["device"] in device.parts, "the whole disk, of which the file system may have a part"
    assert row["io"]["read_bytes"] == counted["read_bytes"] >= 4096


@pytest.fixture
def loop(machine: Machine) -> Iterator[str]:
    """A block device of 64 MiB of its own, on which nothing else counts."""
    with tempfile.NamedTemporaryFile(dir="/var/tmp", suffix=".img") as backing:
        backing.truncate(64 * MIB)
        device = new_loop_device()
        ok("losetup", device, backing.name)
        ok("chown", "solo5:", device)
        yield device
        eventually(lambda: subprocess.run(["losetup", "--detach", device], check=False).returncode == 0, "it is unused")


_LOOP_CTL_ADD = 0x4C80  # linux/loop.h


def new_loop_device() -> str:
    """Make a device that did not exist: writes of an earlier one can be charged to the task that wrote to it before.

    A block device's dirty pages are written for the cgroup that the kernel associates with the device: that of its
    first writer, or an ancestor once that has ended, until another has written to it for a while (cgroup-v2.rst,
    Writeback).
    """
    number = next(number for number in itertools.count(64) if not Path(f"/sys/block/loop{number}").exists())
    with Path("/dev/loop-control").open(encoding="ascii") as control:
        fcntl.ioctl(control, _LOOP_CTL_ADD, number)
    device = f"/dev/loop{number}"
    eventually(Path(device).is_block_device, "the device is there")
    return device


def number_of(device: str) -> str:
    status = Path(device).stat()
    return f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"


def io_max(name: str) -> dict[str, dict[str, str]]:
    lines = [line.split() for line in (cgroup(name) / "io.max").read_text().splitlines()]
    return {words[0]: dict(word.split("=") for word in words[1:]) for words in lines}


PLACES = 40
UNREAD = 65536
"""A sector of a device that udev does not read: what it has read is in the page cache, and no read of a guest."""


def seconds_to_read(run: Runner, device: str, limit: str) -> float:
    """The time in which a guest reads a sector at each of many places, none of them in the page cache."""
    ok("blockdev", "--setra", "8", device)
    ok("blockdev", "--flushbufs", device)
    words = [word for place in range(PLACES) for word in (f"sector={place * 1024}", "read")]
    name = f"reader-{time.monotonic_ns()}"  # the journal keeps the lines of earlier tasks of a name
    run("disk.spt", *words, name=name, options=("--block", f"storage={device},{limit}"))
    ok("solo5ctl", "wait", name)
    assert console(name).count("\nsector ") == PLACES
    lines = [json.loads(line) for line in ok("journalctl", "-o", "json", f"SOLO5_TASK={name}").splitlines()]
    read = [int(line["__REALTIME_TIMESTAMP"]) for line in lines if str(line["MESSAGE"]).startswith("sector ")]
    ok("solo5ctl", "rm", name)
    return (read[-1] - read[0]) / 1e6


@pytest.mark.long
def test_a_limit_of_a_disk_slows_its_guest(run: Runner, loop: str) -> None:
    """40 reads of 4 KiB: 4 s and 1.6 s with the lower limits; the kernel lets the first pass."""
    unhindered = seconds_to_read(run, loop, "read_iops=100K,read_bps=1G")
    for limit, seconds in (("read_iops=10", PLACES / 10), ("read_bps=100K", PLACES * 4096 / 100_000)):
        limited = seconds_to_read(run, loop, limit)
        print(f"{limit}: {limited:.2f} s, without {unhindered:.2f} s")
        assert limited > 0.8 * seconds, (limit, limited)
        assert limited > 2 * unhindered, (limit, limited, unhindered)


def test_limits_and_counters_are_those_of_the_disks_device(run: Runner, loop: str) -> None:
    limits = "read_bps=10M,write_bps=5M,read_iops=500,write_iops=100"
    words = (f"sector={UNREAD}", "write=kept", f"sector={UNREAD + 8}", "read", "stay")
    name = run("disk.spt", *words, options=("--block", f"storage={loop},{limits}"))
    says(name, f"sector {UNREAD + 8}: ''")
    assert io_max(name) == {number_of(loop): {"rbps": "10000000", "wbps": "5000000", "riops": "500", "wiops": "100"}}
    ok("sync")  # writes what the page cache has, which is charged to the guest

    def written() -> bool:
        [row] = [each for each in stats(name)["disks"] if each["device"] == Path(loop).name]
        return bool(row["disks"] == ["storage"] and row["read_bytes"] >= 4096 and row["written_bytes"] >= 512)

    eventually(written, "the write is counted on the device")
    [disk] = inspect(name)["disks"]
    assert disk["devices"] == [Path(loop).name]
    assert disk["io_limits"] == {"read_bps": "10M", "write_bps": "5M", "read_iops": "500", "write_iops": "100"}
    assert disk["device_io"]["written_bytes"] >= 512
    counted = f'device="{Path(loop).name}",disks="storage"'
    assert re.search(rf"^solo5_task_block_read_bytes_total.*{counted}", ok("solo5ctl", "metrics"), re.MULTILINE)
    ok("systemctl", "daemon-reload")
    assert io_max(name).keys() == {number_of(loop)}, "the limits are those of the unit, also when PID 1 has reloaded"


def test_a_file_is_limited_on_the_whole_disk_of_its_file_system(run: Runner) -> None:
    with tempfile.NamedTemporaryFile(dir="/var/tmp", suffix=".img") as disk:
        disk.truncate(MIB)
        os.fchmod(disk.fileno(), 0o666)
        name = run("disk.spt", "stay", options=("--block", f"storage={disk.name},write_bps=5M"))
        number = Path(disk.name).stat().st_dev
    own = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()
    [(limited, values)] = io_max(name).items()
    assert Path(f"/sys/dev/block/{limited}").resolve() in (own, *own.parents)
    assert values == {"rbps": "max", "wbps": "5000000", "riops": "max", "wiops": "max"}
