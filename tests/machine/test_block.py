"""Disks: writes reach the file, one task at a time has a disk, and it is the checked file."""

import asyncio
import json
import os
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from tests.machine.acting import Instead, by_path, killed, start
from tests.machine.conftest import (
    GUESTS,
    NOBODY,
    Files,
    Machine,
    Runner,
    console,
    eventually,
    given,
    inspect,
    ok,
    over,
    says,
    sh,
    unit_property,
)
from tests.machine.declared import Declarations, status
from tests.machine.records import attached

from solo5_systemd.base.errors import StartError, TakenError
from solo5_systemd.base.names import TaskName
from solo5_systemd.engine.backends import Backends, host_backends
from solo5_systemd.engine.runtime import Runtime
from solo5_systemd.settings import files
from solo5_systemd.task.workload import Workload

BOUND = Path("/run/solo5/binds")

RELEASES_STDIN = int(ok("systemctl", "--version").split()[1]) < 254
"""Whether systemd closes the stdin of a service before it restarts it by Restart= (Debian 12)."""


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return given(tmp_path / "a disk with blanks.img", bytes(64 << 10))


def test_what_a_guest_writes_is_in_the_file(run: Runner, disk: Path) -> None:
    name = run("disk.spt", "sector=3", "write=kept", "read", options=("--block", f"storage={disk}"))
    assert "sector 3: 'kept'" in over(name)
    assert disk.owner().startswith("solo5-"), "the task's own user"
    ok("solo5ctl", "rm", name)
    assert disk.owner() == "root", "the owner of disks at rest"
    assert not list(Path("/var/lib/solo5/users").iterdir())
    assert disk.read_bytes()[3 * 512 :].startswith(b"kept\0")
    over(run("disk.hvt", "sector=1", "write=far", options=("--block", f"storage={disk},sector-size=4096")))
    assert disk.read_bytes()[4096:].startswith(b"far\0")


def test_one_disk_has_one_task(run: Runner, disk: Path) -> None:
    first = run("netdisk.hvt", options=("--block", f"storage={disk}"))
    refused = run.fail("--block", f"storage={disk}", f"{GUESTS}/disk.spt", "read")
    assert refused.returncode == 125
    assert str(disk) in refused.stderr
    linked = disk.with_name("other-name")
    linked.hardlink_to(disk)
    assert run.fail("--block", f"storage={linked}", f"{GUESTS}/disk.spt", "read").returncode == 125, "by any name"
    ok("kill", "-KILL", str(inspect(first)["pid"]))
    ok("solo5ctl", "wait", first)
    done = run.fail("--rm", "--block", f"storage={disk}", f"{GUESTS}/disk.spt", "read")
    assert done.returncode == 0, f"free as soon as its tender is dead: {done.stderr}"


def test_a_task_that_is_started_without_its_locks_does_not_run(run: Runner, disk: Path) -> None:
    """Started by hand, by another unit, or by `Restart=`."""
    first = run("disk.spt", "write=first", "stay", options=("--block", f"storage={disk}"))
    unit = f"solo5-task-{first}.service"
    ok("solo5ctl", "stop", first)
    for request in (("start", unit), ("restart", unit)):
        assert sh("systemctl", *request).returncode == 1
        assert unit_property(unit, "ExecMainStatus") == "208"
    assert "its disk locks were released when its first run ended" in inspect(first)["outcome"]["sentence"]
    needs = (f"--property=Requires={unit}", f"--property=After={unit}")
    assert "dependency" in sh("systemd-run", *needs, "true").stderr
    second = run("disk.spt", "write=second", "read", "stay", options=("--block", f"storage={disk}"))
    says(second, "sector 0: 'second'")
    assert sh("systemctl", "start", unit).returncode == 1
    assert disk.read_bytes().startswith(b"second\0")


@pytest.mark.parametrize("way", ["systemctl restart", "Restart="])
def test_a_task_that_is_restarted_has_its_locks_as_before(run: Runner, place: Files, tmp_path: Path, way: str) -> None:
    disk = given(tmp_path / "disk.img")
    name = run("disk.spt", "read", "stay", options=("--block", f"storage={disk}"))
    unit = f"solo5-task-{name}.service"
    before = unit_property(unit, "MainPID")
    if way == "Restart=":
        place(f"/run/systemd/system/{unit}.d/restart.conf", "[Service]\nRestart=always\n")
        ok("systemctl", "daemon-reload")
        ok("kill", "-KILL", before)
    else:
        ok("systemctl", "daemon-reload")
        ok("systemctl", "restart", unit)
    if way == "Restart=" and RELEASES_STDIN:
        eventually(lambda: unit_property(unit, "ExecMainStatus") == "208", "it is not started without its locks")
    else:
        eventually(lambda: unit_property(unit, "MainPID") not in ("0", before), "it is restarted")
        _has_its_locks(run, name, disk)


def _has_its_locks(run: Runner, name: str, disk: Path) -> None:
    """Check that no other task gets the disk before this one is stopped."""
    says(name, "sector 0")
    refused = run.fail("--block", f"storage={disk}", f"{GUESTS}/disk.spt", "read")
    assert "is in use by another task" in refused.stderr
    ok("systemctl", "stop", f"solo5-task-{name}.service")
    done = run.fail("--rm", "--block", f"storage={disk}", f"{GUESTS}/disk.spt", "read")
    assert done.returncode == 0, f"free when it is stopped: {done.stderr}"


def test_loop_device_as_a_disk(run: Runner, disk: Path) -> None:
    with attached(disk) as device:
        name = run("disk.hvt", "write=looped", options=("--block", f"storage={device}"))
        ok("solo5ctl", "wait", name)
        ok("blockdev", "--flushbufs", device)
        assert disk.read_bytes().startswith(b"looped\0")
        of_device, of_file = json.loads(ok("solo5ctl", "disk", "inspect", "--json", device, str(disk)))
        assert of_device == {
            "path": device, "backing": "block device", "size": 64 << 10, "sector_size": 512, "in_use": False,
        }  # fmt: skip
        assert of_file["use"] == f"attached to {Path(device).name}"


def test_loop_device_of_a_declared_task(declare: Declarations, disk: Path, tmp_path: Path) -> None:
    link, *refused = links = Path("/dev/solo5_test"), Path("/dev/solo5 test"), tmp_path / "device"
    words = "Argument=sector=2 write=looped read stay"
    with attached(disk) as device:
        try:
            for path in links:
                path.symlink_to(device)
            unit = declare("web", f"Block=storage={link}\n{words}", image="disk.spt")
            ok("systemctl", "start", unit)
            says("web", "sector 2: 'looped'")
            ok("systemctl", "stop", unit)
            ok("blockdev", "--flushbufs", device)
            assert disk.read_bytes()[2 * 512 :].startswith(b"looped\0")
            for path in refused:
                declare("web", f"Block=storage={path}\n{words}", image="disk.spt")
                assert sh("systemctl", "start", unit).returncode == 1
                assert f"is a block device at '{path}': expected a path below /dev/ without blanks" in status(unit)
        finally:
            for path in links:
                path.unlink()


@pytest.mark.vm  # partitions of a loop device have nodes
@pytest.mark.long
def test_what_shares_its_data_with_a_disk_in_use_is_in_use(run: Runner, disk: Path) -> None:
    """A loop device and what it is attached to, a partition and its disk; and what the kernel itself uses.

    Each of two, whichever comes first.
    """

    def owned(where: str) -> None:
        ok("udevadm", "settle")  # which sets the owner of a node anew
        ok("chown", "solo5:", where)

    def refused(where: str, sentence: str) -> None:
        owned(where)
        assert sentence in run.fail("--block", f"storage={where}", f"{GUESTS}/disk.hvt", "read").stderr

    def taken(where: str, *others: str, sentence: str = "is in use by another task") -> None:
        owned(where)
        name = run("disk.hvt", "read", "stay", options=("--block", f"storage={where}"))
        says(name, "sector 0")
        for other in others:
            refused(other, sentence)
        ok("solo5ctl", "rm", "--force", name)

    with disk.open("r+b") as file:  # a partition table of DOS: sectors 8 to 15
        file.seek(446)
        file.write(struct.pack("<B3xB3xII", 0, 0x83, 8, 8) + bytes(48) + b"\x55\xaa")
    name = run("disk.hvt", "read", "stay", options=("--block", f"storage={disk}"))
    device = ok("losetup", "--find", "--show", "--partscan", str(disk)).strip()
    try:
        part = f"{device}p1"
        eventually(Path(part).exists, "the partition has a node")
        refused(part, "is in use by another task")
        ok("solo5ctl", "rm", "--force", name)
        refused(str(disk), f"is attached to {Path(device).name}: expected a disk that nothing else uses")
        taken(device, part)
        taken(part, device)
        stacked = ok("losetup", "--find", "--show", part).strip()  # a loop device of a block device
        try:
            for other in (part, device):
                refused(other, f"is attached to {Path(stacked).name}: expected a disk that nothing else uses")
        finally:
            sh("losetup", "--detach", stacked)
        owned(device)
        name = run("disk.hvt", "read", "stay", options=("--block", f"storage={device}"))
        stacked = ok("losetup", "--find", "--show", part).strip()
        try:
            refused(stacked, "is in use by another task")
        finally:
            sh("losetup", "--detach", stacked)
        ok("solo5ctl", "rm", "--force", name)
        ok("mkswap", device)
        ok("swapon", device)
        try:
            refused(device, "is mounted, or a part of another device")
        finally:
            ok("swapoff", device)
    finally:
        sh("losetup", "--detach", device)
    taken(str(disk))


def test_a_named_disk_of_a_loop_device_is_not_read(run: Runner, tmp_path: Path) -> None:
    """A task may have the loop device and write to it, so that a copy would be of several instants."""
    ok("solo5ctl", "disk", "create", "looped", "64K")
    with attached(Path("/var/lib/solo5/disks/looped")) as device:
        name = run("disk.hvt", "read", "stay", options=("--block", f"storage={device}"))
        assert f"Task: {name}\n" in ok("solo5ctl", "disk", "inspect", device)
        for verb in (
            ("disk", "export", "looped", str(tmp_path / "copy")),
            ("disk", "snapshot", "--copy", "looped"),
            ("disk", "rm", "looped"),
            ("run", "--block", "storage=disk:looped,ro", f"{GUESTS}/disk.hvt", "read"),
        ):
            done = sh("solo5ctl", *verb)
            assert done.returncode, verb
            assert f"is attached to {Path(device).name}: expected" in done.stderr
        ok("solo5ctl", "rm", "--force", name)
    ok("solo5ctl", "disk", "export", "looped", str(tmp_path / "copy"))
    ok("solo5ctl", "disk", "rm", "looped")


def test_no_disk_is_created_while_its_file_system_is_not_mounted(run: Runner, tmp_path: Path) -> None:
    place, block = Path("/var/lib/solo5/disks"), ("--block", "storage=disk:kept,size=64K")
    place.mkdir(mode=0o700, exist_ok=True)
    try:
        ok("mount", "--bind", str(tmp_path), str(place))
        name = run("disk.spt", "write=kept", options=block)
        ok("solo5ctl", "wait", name)
        ok("solo5ctl", "rm", name)
        ok("umount", str(place))
        refused = run.fail(*block, f"{GUESTS}/disk.spt", "read").stderr
        assert f"nothing is mounted at '{place}': expected the file system that was mounted there" in refused
        assert not (place / "kept").exists()
        ok("mount", "--bind", str(tmp_path), str(place))
        name = run("disk.spt", "read", options=block)
        says(name, "'kept'")
        ok("solo5ctl", "wait", name)
        ok("solo5ctl", "rm", name)
    finally:
        ok("umount", str(place))
    ok("sh", "-c", refused.rpartition("to create disks without it: ")[2])
    name = run("disk.spt", "read", options=block)
    ok("solo5ctl", "wait", name)
    ok("solo5ctl", "rm", name)
    ok("solo5ctl", "disk", "rm", "kept")


def test_a_start_that_comes_second_leaves_the_first_its_network_and_its_disk(run: Runner, disk: Path) -> None:
    """The second start reaches the allocation of its user after the first one's start: its disk is in use then."""
    name = "raced"
    run.names.append(name)
    image, option = str(GUESTS / "netdisk.spt"), f"storage={disk}"
    words = ("--ipv4={net.service.ipv4_cidr}", "--ipv4-gateway={net.service.gateway4}")

    async def story() -> None:
        async with host_backends(files.read_settings) as machine:

            async def acquire(task: TaskName) -> Any:
                ok("solo5ctl", "run", "--detach", "--name", name, "--block", option, image, *words)
                return await machine.users.acquire(task)

            slow = Instead(machine, users=Instead(machine.users, acquire=acquire))
            workload = Workload(name=TaskName(name), image=image, disks=(by_path(disk),))
            await Runtime(cast(Backends, slow)).start(workload)

    with pytest.raises(TakenError, match="task name 'raced' has just been taken"):
        asyncio.run(story())
    [nic] = inspect(name)["nics"]
    assert Path("/sys/class/net", nic["tap"]).exists()
    address = nic["ipv4"].partition("/")[0]
    eventually(lambda: sh("ping", "-c", "1", "-W", "5", address).returncode == 0, "the first one answers")
    assert "is in use by another task" in run.fail("--block", option, str(GUESTS / "disk.spt"), "read").stderr


@pytest.fixture
def task_directory(tmp_path: Path) -> Iterator[Path]:
    """A directory of another user's, with the disk in a subdirectory."""
    directory = tmp_path / "task"
    (directory / "local").mkdir(parents=True)
    for each in (directory, directory / "local"):
        os.chown(each, 65534, 65534)
    above = (tmp_path, *tmp_path.parents[:2])
    for each in above:
        each.chmod(0o755)
    yield directory
    for each in above:
        each.chmod(0o700)


def filled(path: Path, text: str) -> Path:
    """Make a disk of that user's."""
    path.write_bytes(text.encode().ljust(512, b"\0"))
    os.chown(path, 65534, 65534)
    return path


ATTACK = """
cd {directory} || exit 4
ls -A {bound} 2>/dev/null && exit 3
for entry in .[!.]* *; do
  test ! -e "$entry" || mv "$entry" "gone-$entry"
done
ln -s {victim} local
"""


def test_a_user_who_may_change_the_disks_directory_gets_no_other_disk_into_the_task(
    machine: Machine, task_directory: Path, tmp_path: Path
) -> None:
    """The attack runs after all checks, just before PID 1 binds the path, and renames every file that it can.

    Meanwhile another start finds the disk taken, and no second name at it.
    """
    (tmp_path / "victim").mkdir()
    filled(tmp_path / "victim" / "disk.img", "secret")
    disk = filled(task_directory / "local" / "disk.img", "own")
    refusals: list[str] = []

    def attack() -> None:
        again = sh("solo5ctl", "run", "--block", f"storage={disk}", str(GUESTS / "disk.spt"), "read")
        refusals.append(again.stderr)
        script = ATTACK.format(directory=task_directory, bound=BOUND, victim=tmp_path / "victim")
        ok(*NOBODY, "sh", "-c", script)
        assert (task_directory / "local/disk.img").read_bytes().startswith(b"secret")

    try:
        start("attacked", by_path(disk), attack)
        says("attacked", "sector 0")
        assert "sector 0: 'own'" in console("attacked")
        assert "is in use by another task" in refusals[0]
        assert not list(BOUND.iterdir())
    finally:
        sh("solo5ctl", "rm", "--force", "attacked")


def test_a_task_that_has_another_disk_than_the_one_that_was_checked_is_not_started(
    machine: Machine, task_directory: Path
) -> None:
    """Here root binds another file."""
    other = filled(task_directory / "local" / "other.img", "other")
    other.chmod(0o666)

    def replace() -> None:
        [path] = BOUND.glob("*/*")
        ok("umount", str(path))
        ok("mount", "--bind", str(other), str(path))

    try:
        with pytest.raises(StartError, match="has another file than .*local/disk.img', which was checked"):
            start("other", by_path(filled(task_directory / "local" / "disk.img", "own")), replace)
        assert sh("solo5ctl", "inspect", "other").returncode != 0
        assert not list(BOUND.iterdir())
    finally:
        sh("solo5ctl", "rm", "--force", "other")


KILLED = """
import sys
from tests.machine.acting import by_path, die, start
start("killed", by_path(sys.argv[1]), die)
"""


def test_what_a_start_that_was_killed_has_bound_is_removed_by_gc(machine: Machine, task_directory: Path) -> None:
    disk = filled(task_directory / "local" / "disk.img", "own")
    killed(KILLED, str(disk))
    [left] = BOUND.glob("*/*")
    assert os.path.samefile(left, disk)  # noqa: PTH121 - of two paths
    line = f"bind mounts of disks {left.parent}: left by a start that was killed"
    assert line in ok("solo5ctl", "gc", "--dry-run")
    assert line in ok("solo5ctl", "gc")
    assert not list(BOUND.iterdir())


@pytest.fixture
def released(place: Files, tmp_path: Path) -> Iterator[Path]:
    """The file that PID 1 waits for before it starts task `killed`, which it has loaded."""
    path = tmp_path / "released"
    needs = "[Unit]\nRequires=holding.service\nAfter=holding.service\n"
    place("/run/systemd/system/solo5-task-killed.service.d/held.conf", needs)
    waits = f"sh -c 'until test -e {path}; do sleep 0.05; done'"
    place("/run/systemd/system/holding.service", f"[Service]\nType=oneshot\nExecStart={waits}\n")
    ok("systemctl", "daemon-reload")
    yield path
    path.touch()
    ok("systemctl", "stop", "holding.service")


@pytest.mark.parametrize("how", ["", ",ephemeral"])
def test_a_start_that_is_killed_once_pid_1_has_its_unit_keeps_what_pid_1_is_to_mount(
    run: Runner, task_directory: Path, released: Path, how: str
) -> None:
    disk = filled(task_directory / "local" / "disk.img", "own")
    run.names.append("killed")
    words = ["solo5ctl", "run", "--detach", "--name=killed", f"--block=storage={disk}{how}"]
    caller = subprocess.Popen([*words, str(GUESTS / "disk.spt"), "read", "stay"], stderr=subprocess.DEVNULL)
    eventually(lambda: unit_property("solo5-task-killed.service", "Job") != "", "PID 1 has the unit")
    caller.kill()
    caller.wait()
    other = filled(task_directory / "local" / "other.img", "other")
    ok("solo5ctl", "run", "--rm", f"--block=storage={other}{how}", str(GUESTS / "disk.spt"), "read")
    assert "killed" not in ok("solo5ctl", "gc")
    released.touch()
    says("killed", "sector 0: 'own'")
    ok("solo5ctl", "rm", "--force", "killed")
    assert "left by a start that was killed" in ok("solo5ctl", "gc")
    assert not [*BOUND.iterdir(), *Path("/var/lib/solo5/copies").iterdir()]
