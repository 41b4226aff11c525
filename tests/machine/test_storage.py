"""Named disks and private copies: on this kernel, with this systemd."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.machine import records
from tests.machine.acting import killed
from tests.machine.conftest import (
    DISKS,
    GUESTS,
    Files,
    Machine,
    Runner,
    console,
    eventually,
    inspect,
    ok,
    over,
    says,
    sh,
)
from tests.machine.records import COPIES

from solo5_systemd.task.workload import MIB
from solo5_systemd.unit.tender import PRIVATE


@pytest.fixture(autouse=True)
def disks(machine: Machine) -> Iterator[None]:
    """Named disks of a test are removed, and nothing else is left."""
    assert not list(DISKS.iterdir())
    yield
    for path in DISKS.iterdir():
        path.unlink()
    assert not list(COPIES.iterdir())


def disk(*words: str) -> str:
    return ok("solo5ctl", "disk", *words)


def refused(*words: str, status: int = 125) -> str:
    done = sh("solo5ctl", "disk", *words)
    assert (done.returncode, "Traceback" in done.stderr) == (status, False), done.stderr
    return done.stderr


def listed(name: str) -> dict[str, object]:
    [found] = [each for each in json.loads(disk("ls", "--json")) if each["name"] == name]
    return dict(found)


def test_a_named_disk_is_the_tasks_while_it_runs_and_roots_afterwards(run: Runner, tmp_path: Path) -> None:
    assert disk("create", "data", "64M") == "data\n"
    path = DISKS / "data"
    assert (DISKS.stat().st_mode & 0o777, path.stat().st_mode & 0o777, path.stat().st_uid) == (0o700, 0o600, 0)
    assert (path.stat().st_size, listed("data")["allocated"]) == (64 << 20, 0)
    name = run("disk.spt", "sector=3", "write=kept", "read", "stay", options=("--block", "storage=disk:data"))
    says(name, "sector 3: 'kept'")
    assert path.owner().startswith("solo5-")
    assert (listed("data")["task"], listed("data")["in_use"]) == (name, True)
    assert name in disk("ls")
    [shown] = inspect(name)["disks"]
    assert {"disk": "storage", "backing": "named disk", "path": str(path)}.items() <= shown.items()
    in_use = f"solo5ctl: disk 'data' is in use by task {name}.\n"
    for words in (("rm", "data"), ("resize", "data", "128M"), ("export", "data", str(tmp_path / "exported"))):
        assert refused(*words) == f"{in_use}Stop it first: solo5ctl stop {name}\n"
    for how in ("", ",ephemeral"):
        failed = run.fail("--block", f"storage=disk:data{how}", f"{GUESTS}/disk.spt", "read")
        assert "is in use by another task" in failed.stderr, how
    assert not list(COPIES.iterdir())
    ok("solo5ctl", "rm", "--force", name)
    assert (path.stat().st_uid, "task" in listed("data")) == (0, False)
    again = run("disk.spt", "sector=3", "read", options=("--block", "storage=disk:data"))
    assert "sector 3: 'kept'" in over(again)
    ok("solo5ctl", "rm", again)
    assert disk("rm", "data") == "data\n"


def test_a_disk_is_created_by_the_first_start_of_a_task(run: Runner) -> None:
    option = ("--block", "storage=disk:fresh,size=1M,create")
    plan = ok("solo5ctl", "run", "--dry-run", *option, f"{GUESTS}/disk.spt")
    assert str(DISKS / "fresh") in plan
    assert not list(DISKS.iterdir()), "a preview creates nothing"
    first = run("disk.spt", "write=first", options=option)
    ok("solo5ctl", "wait", first)
    ok("solo5ctl", "rm", first)
    assert (DISKS / "fresh").read_bytes()[:5] == b"first"
    second = run("disk.spt", "read", options=("--block", "storage=disk:fresh,size=2M,create"))
    assert "sector 0: 'first'" in over(second), "an existing disk is used as it is"
    assert (DISKS / "fresh").stat().st_size == 1 << 20


KILLED = """
import sys
from tests.machine.acting import die, start
from solo5_systemd.base.names import DeviceName, DiskName
from solo5_systemd.storage.model import named_disk
create = 1 << 20 if sys.argv[2] == "create" else None
request = named_disk(DeviceName("storage"), DiskName("data"), create=create, private=create is None)
if sys.argv[1] == "before":
    start("killed", request, die)
else:
    start("killed", request, lambda: None, die)
"""


def golden(text: str = "golden", size: int = 1 << 20) -> Path:
    path = DISKS / "data"
    disk("create", "data", str(size))
    with path.open("r+b") as file:
        file.write(text.encode())
    return path


def test_each_task_has_its_own_copy_and_writes_of_it_vanish(run: Runner) -> None:
    path = golden()
    names = [
        run("disk.spt", "read", f"write=mine{i}", "read", "stay", options=("--block", f"storage=disk:data,{how}"))
        for i, how in enumerate(("ephemeral", "ro", "ephemeral"))
    ]
    for i, name in enumerate(names):
        says(name, f"sector 0: 'mine{i}'")
        assert "sector 0: 'golden'" in console(name)
        [shown] = inspect(name)["disks"]
        assert {"disk": "storage", "backing": "private copy", "path": str(path)}.items() <= shown.items()
    assert path.read_bytes()[:6] == b"golden"
    assert not list(COPIES.iterdir()), "a copy has no name while its task runs"
    assert listed("data")["in_use"] is False
    assert "disk" not in ok("solo5ctl", "gc"), "nothing is taken from a task that runs"
    assert run.fail("--rm", "--block", "storage=disk:data", f"{GUESTS}/disk.spt", "read").returncode == 0, (
        "free for a writer"
    )


def test_the_space_of_a_copy_is_free_when_its_task_is_killed(run: Runner) -> None:
    golden()
    name = run("disk.spt", "read", "stay", options=("--block", "storage=disk:data,ephemeral"))
    says(name, "sector 0: 'golden'")
    pid = int(str(inspect(name)["pid"]))
    copy = Path(f"/proc/{pid}/root/run/solo5-disks/{PRIVATE}/storage")
    assert copy.stat().st_nlink == 0
    ok("kill", "-KILL", str(pid))
    ok("solo5ctl", "wait", name)
    eventually(lambda: not copy.exists(), "its mount namespace is gone")
    ok("solo5ctl", "rm", name)
    assert not list(Path("/var/lib/solo5/users").iterdir())


def test_a_restart_by_systemd_finds_no_copy(run: Runner, machine: Machine) -> None:
    golden()
    name = run("disk.spt", "read", "stay", options=("--block", "storage=disk:data,ephemeral"))
    says(name, "sector 0: 'golden'")
    unit = f"solo5-task-{name}.service"
    assert sh("systemctl", "restart", unit).returncode == 1
    status = sh("systemctl", "status", "--lines=100", "--full", "--no-pager", unit).stdout
    told, error = (status.find(text) for text in (PRIVATE, "Failed at step NAMESPACE"))
    assert 0 < told < error
    outcome = inspect(name)["outcome"]["sentence"]
    assert outcome == "not started again: its image or a disk is gone; a private disk ends with its first run"
    assert "data" in disk("ls", "-q")


@pytest.mark.parametrize("how", ["copy", "create"])
def test_a_starter_that_is_killed_before_the_unit_leaves_nothing_that_gc_misses(machine: Machine, how: str) -> None:
    if how == "copy":
        golden()
    killed(KILLED, "before", how)
    try:
        if how == "copy":
            [left] = COPIES.iterdir()
            line = f"private disk {left}: left by a start that was killed"
            assert line in ok("solo5ctl", "gc", "--dry-run")
            assert left.exists()
            assert line in ok("solo5ctl", "gc")
        else:
            ok("solo5ctl", "gc")
            assert (DISKS / "data").stat().st_size == 1 << 20, "complete, and kept"
        assert listed("data")["in_use"] is False
        assert (DISKS / "data").stat().st_uid == 0
    finally:
        sh("solo5ctl", "rm", "--force", "killed")
        ok("solo5ctl", "gc")


def test_a_starter_that_is_killed_after_the_start_leaves_the_task_its_copy(machine: Machine) -> None:
    golden()
    killed(KILLED, "after", "copy")
    try:
        says("killed", "sector 0: 'golden'")
        assert "private disk" not in ok("solo5ctl", "gc"), "PID 1 might have yet to mount it"
        assert inspect("killed")["phase"] == "running"
    finally:
        ok("solo5ctl", "rm", "--force", "killed")
    assert "private disk" in ok("solo5ctl", "gc")
    assert not list(COPIES.iterdir())


@pytest.mark.parametrize("full", [True, False], ids=["full", "read-only"])
def test_a_file_system_without_room_or_permission_is_one_sentence(run: Runner, full: bool) -> None:
    ok("mount", "-t", "tmpfs", "-o", "size=1M,mode=0700", "tmpfs", str(DISKS))
    try:
        disk("create", "small", "64K")
        if not full:
            ok("mount", "-o", "remount,ro", str(DISKS))
        reason = f"can take {8 * MIB} bytes of the file system of {DISKS}" if full else "Read-only file system"
        assert reason in refused("create", "large", "8M" if full else "64K", "--preallocate")
        image = f"{GUESTS}/disk.spt"
        failed = run.fail("--rm", "--block", "storage=disk:small", image, "read")
        assert (failed.returncode == 0) is full
        assert "Traceback" not in failed.stderr
        assert [path.name for path in DISKS.iterdir()] == ["small"]
    finally:
        ok("umount", str(DISKS))


@pytest.fixture(params=["reflinks", "no reflinks"])
def shares_blocks(machine: Machine, request: pytest.FixtureRequest) -> Iterator[bool]:
    """Named disks share blocks with their copies, or are on another file system."""
    shares = request.param == "reflinks"
    with records.reflinks_of_copies() if shares else records.no_reflinks(DISKS):
        yield shares


def test_too_much_data_to_copy_is_refused(shares_blocks: bool, run: Runner, place: Files) -> None:
    golden(size=8 << 20)
    with (DISKS / "data").open("r+b") as file:
        file.write(os.urandom(8 << 20))
    place("/etc/solo5/copies.toml", "disk_copy_mb = 4\n")
    failed = run.fail("--rm", "--block", "storage=disk:data,ephemeral", f"{GUESTS}/disk.spt", "read")
    words = "bytes that are copied for each run: expected at most 4194304, since the limit of a task is 4194304"
    assert (failed.returncode, words in failed.stderr) == ((0, False) if shares_blocks else (125, True))
    assert not list(COPIES.iterdir())


def test_disks_beyond_the_quota_of_their_directory_are_refused(run: Runner, place: Files) -> None:
    settings = place("/etc/solo5/quota.toml", f'disk_quota_mb = {{ "{DISKS}" = 8 }}\n')
    disk("create", "data", "6M")
    words = f"the quota of {DISKS} is {8 * MIB} bytes and the files in it have {6 * MIB}"
    assert words in refused("create", "other", "3M")
    assert words in refused("resize", "data", "9M")
    for dry in ((), ("--dry-run",)):
        option = ("--rm", *dry, "--block", "storage=disk:other,create,size=3M")
        failed = run.fail(*option, f"{GUESTS}/disk.spt", "read")
        assert (failed.returncode, words in failed.stderr) == (125, True), failed.stderr
    assert [path.name for path in DISKS.iterdir()] == ["data"]
    assert disk("create", "other", "2M") == "other\n"
    settings.write_text("disk_quota_mb = 8\n")
    assert disk("ls", "-q") == "data\nother\n", "settings are read where a disk is made"
    assert "disk_quota_mb is 8: expected a table" in refused("create", "third", "1M")


def test_the_directory_of_all_disks_may_be_a_link_to_a_larger_disk(run: Runner, tmp_path: Path) -> None:
    larger = Path("/srv/larger")
    (tmp_path / "page").write_text("kept")
    ok("mv", str(DISKS.parent), str(larger))
    DISKS.parent.symlink_to(larger)
    try:
        disk("create", "data", "64M")
        for source in ("disk:data", "disk:data,ephemeral", f"files:{tmp_path}"):
            name = run("disk.spt", "read", "stay", options=("--block", f"storage={source}"))
            says(name, "sector 0: ")
            ok("solo5ctl", "rm", "--force", name)
        disk("rm", "data")
        assert not list((larger / COPIES.name).iterdir())
    finally:
        DISKS.parent.unlink()
        ok("mv", str(larger), str(DISKS.parent))
