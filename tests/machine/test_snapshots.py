"""Snapshots of named disks: on this kernel, with this systemd; on XFS, while the guest writes."""

import asyncio
import hashlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.machine import records
from tests.machine.acting import killed
from tests.machine.conftest import (
    DISKS,
    GUESTS,
    NOBODY,
    Machine,
    Runner,
    eventually,
    inspect,
    ok,
    over,
    says,
    sh,
    unit_property,
)
from tests.machine.records import newest
from tests.machine.test_storage import disk, refused

from solo5_systemd.base.names import SnapshotName, TaskName
from solo5_systemd.engine.runtime import Runtime, connect
from solo5_systemd.settings import files
from solo5_systemd.storage.named_disks import NamedDisks
from solo5_systemd.storage.snapshots import Snapshot, Snapshots

PAUSES = Path("/run/solo5/pauses")
SNAPSHOTS = int(os.environ.get("SNAPSHOTS", "5"))
"""`make snapshots` takes 1000."""

DISK = 1 << 20


@pytest.fixture(autouse=True)
def nothing_left(machine: Machine) -> Iterator[None]:
    """The test removes its disks and their snapshots, and no task is left locked."""
    assert not list(DISKS.iterdir())
    yield
    for name in disk("ls", "-q").split():
        disk("rm", "--snapshots", name)
    assert not list(DISKS.iterdir())
    assert not PAUSES.exists() or not list(PAUSES.iterdir())


def filled(text: str) -> None:
    with (DISKS / "data").open("r+b") as file:
        file.write(text.encode())


def test_a_snapshot_of_a_free_disk_is_exported_and_restored(run: Runner, tmp_path: Path) -> None:
    disk("create", "data", "1M")
    filled("first")
    assert disk("snapshot", "data", "--as=one", "--copy") == "data@one\n"
    filled("later")
    file = DISKS / ".snapshots/data/one"
    modes = [path.stat().st_mode & 0o777 for path in (file, file.parent, file.parent.parent)]
    assert (modes, file.stat().st_uid) == ([0o600, 0o700, 0o700], 0)
    [listed] = json.loads(disk("ls", "--snapshots", "--json"))
    assert (listed["disk"], listed["name"], listed["size"], listed["path"]) == ("data", "one", DISK, str(file))
    assert disk("ls", "-q") == "data\n", "a snapshot is no disk"
    assert "Snapshot: one, 1M, 20" in disk("inspect", "data")
    name = run("disk.spt", "read", "stay", options=("--block", "storage=disk:data"))
    says(name, "sector 0: 'later'")
    assert f"is in use by task {name}" in refused("restore", "data", "one")
    assert f"is in use by task {name}" in refused("rm", "--snapshots", "data")
    assert f"is in use by task {name}" in refused("export", "data", str(tmp_path / "disk"))
    sha256, exported = disk("export", "data@one", str(tmp_path / "snapshot")).split()
    content = (tmp_path / "snapshot").read_bytes()
    assert (exported, content[:5], sha256) == ("data@one", b"first", hashlib.sha256(content).hexdigest())
    assert (tmp_path / "snapshot").stat().st_blocks * 512 < DISK, "its holes are kept"
    assert disk("import", "copy", str(tmp_path / "snapshot")) == f"{sha256}  copy\n"
    disk("rm", "copy")
    assert file.exists(), "a disk in use keeps its snapshots"
    ok("solo5ctl", "stop", name)  # its user owns the disk until it is removed
    assert disk("restore", "data", "one") == "data\n"
    ok("solo5ctl", "rm", name)
    assert not list(Path("/var/lib/solo5/users").iterdir())
    assert (DISKS / "data").stat().st_uid == 0
    again = run("disk.spt", "read", options=("--block", "storage=disk:data"))
    assert "sector 0: 'first'" in over(again)
    ok("solo5ctl", "rm", again)
    assert "disk 'data' has snapshots (1)." in refused("rm", "data")
    assert disk("rm", "data@one") == "data@one\n"
    assert disk("rm", "data") == "data\n"


def test_no_task_has_a_snapshot_as_its_disk_and_bad_input_is_one_sentence(run: Runner) -> None:
    disk("create", "data", "1M")
    disk("snapshot", "data", "--as=one", "--copy")
    for word in ("data@one", ".snapshots", "../disks/.snapshots/data/one"):
        failed = run.fail("--rm", "--block", f"storage=disk:{word}", f"{GUESTS}/disk.spt", "read")
        assert (failed.returncode, "is not usable" in failed.stderr) == (125, True)
    for words, error in (
        (("snapshot", "none"), "no disk is named 'none'"),
        (("snapshot", "data", "--as=../x"), "snapshot name '../x' is not usable"),
        (("snapshot", "data", "--as=one", "--copy"), "disk 'data' has a snapshot 'one' already"),
        (("restore", "data", "two"), "disk 'data' has no snapshot 'two'"),
        (("rm", "data@two"), "disk 'data' has no snapshot 'two'"),
        (("rm", "data@one@one"), "snapshot name 'one@one' is not usable"),
    ):
        assert error in refused(*words, status=127 if re.search("no (disk|snapshot)", error) else 125)
    assert disk("ls", "--snapshots", "-q") == "data@one\n"


@pytest.fixture
def no_reflinks() -> Iterator[None]:
    with records.no_reflinks(DISKS):
        yield


def test_without_reflinks_nothing_is_frozen_or_copied_unasked(no_reflinks: None, run: Runner) -> None:
    disk("create", "data", "1M")
    reason = (
        "the file system of /var/lib/solo5/disks shares no blocks: expected one with reflinks, such as XFS or Btrfs"
    )
    assert reason in refused("snapshot", "data")
    name = run("disk.spt", "read", "stay", options=("--block", "storage=disk:data"))
    says(name, "sector 0")
    assert reason in refused("snapshot", "data")
    assert f"--copy: task {name} has disk 'data'" in refused("snapshot", "data", "--copy")
    assert "Thaws" not in ok("journalctl", "--boot", f"--unit=solo5-thaw@solo5-task-{name}.service.service"), (
        "nothing was frozen"
    )
    ok("solo5ctl", "rm", "--force", name)
    assert disk("ls", "--snapshots", "-q") == ""
    disk("rm", "data")


# --- the guest runs again, whatever happens -----------------------------------------------------------------------


class Dying:
    """PID 1's client, of a process that is killed before or after one call."""

    def __init__(self, units: Any, when: str) -> None:
        self._units = units
        self._when = when

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._units, name)

        async def call(*arguments: Any) -> Any:
            die_if(self._when == f"before {name}")
            result = await found(*arguments)
            die_if(self._when == f"after {name}")
            return result

        return call if name in ("ensure_started", "freeze", "current", "thaw", "stop") else found


def die_if(now: bool) -> None:
    if now:
        os.kill(os.getpid(), signal.SIGKILL)


def freeze_and_die(task: str, when: str) -> None:
    async def story() -> None:
        async with connect(files.read_settings) as engine:
            runtime: Any = engine
            runtime._units = Dying(runtime._units, when)
            await Runtime.while_frozen(runtime, TaskName(task), lambda: die_if(when == "in act"))

    asyncio.run(story())


STEPS = ("before freeze", "after freeze", "in act", "after current", "after thaw", "before stop")
SCRIPT = "import sys; from tests.machine.test_snapshots import freeze_and_die; freeze_and_die(*sys.argv[1:])"


def guard_of(name: str) -> str:
    return f"solo5-thaw@{inspect(name)['unit']}.service"


def thawed(name: str) -> Callable[[], bool]:
    """The task runs, and nothing is left that could freeze or thaw it."""
    guard = guard_of(name)
    return lambda: (
        unit_property(str(inspect(name)["unit"]), "FreezerState") == "running"
        and unit_property(guard, "ActiveState") == "inactive"
    )


@pytest.fixture
def spinning(run: Runner) -> str:
    name = run("sleeper.spt")
    says(name, "sleeping")
    return name


def test_a_task_is_thawed_when_the_process_that_froze_it_is_killed(spinning: str) -> None:
    for when in STEPS:
        killed(SCRIPT, spinning, when)
        eventually(thawed(spinning), f"killed {when}: the task runs again")
        # The first call of `current` is before PID 1 has started what removes the file; then the next pause does.
        assert (when == "after current") == bool(list(PAUSES.iterdir()))
    again = subprocess.run([sys.executable, "-c", SCRIPT, spinning, "never"], cwd="/srv", check=False)
    assert again.returncode == 0, "a killed process is in no one's way"
    assert thawed(spinning)()
    assert not list(PAUSES.iterdir())


def void(_: object) -> None:
    """Return None."""


def frozen_while(task: str, act: Callable[[], object]) -> None:
    async def story() -> None:
        async with connect(files.read_settings) as engine:
            await engine.while_frozen(TaskName(task), lambda: void(act()))

    asyncio.run(story())


@pytest.mark.everywhere
def test_a_task_is_thawed_although_both_the_process_and_all_of_that_unit_were_killed(spinning: str) -> None:
    """SIGKILL ends what thaws it, too: PID 1 starts the unit again."""
    guard = guard_of(spinning)
    script = "import sys; from tests.machine.test_snapshots import freeze_and_kill; freeze_and_kill(*sys.argv[1:])"
    killed(script, spinning, guard)
    eventually(thawed(spinning), "the task runs again")


def freeze_and_kill(task: str, guard: str) -> None:
    def act() -> None:
        ok("systemctl", "kill", "--signal=KILL", guard)
        die_if(True)

    frozen_while(task, act)


def test_a_task_that_ends_meanwhile_has_no_snapshot(spinning: str) -> None:
    unit = str(inspect(spinning)["unit"])

    def kill() -> None:
        ok("solo5ctl", "kill", "--signal=KILL", spinning)
        eventually(lambda: unit_property(unit, "ActiveState") in ("failed", "inactive"), "PID 1 has seen its end")

    with pytest.raises(Exception, match=f"task {spinning} has ended meanwhile"):
        frozen_while(spinning, kill)
    eventually(lambda: inspect(spinning)["phase"] != "running", "it was killed")


def test_only_root_thaws_and_locks(spinning: str) -> None:
    frozen_while(spinning, lambda: None)
    assert PAUSES.stat().st_mode & 0o777 == 0o700
    assert sh(*NOBODY, "systemctl", "start", guard_of(spinning)).returncode != 0
    assert "this verb requires root" in sh(*NOBODY, "solo5ctl", "disk", "snapshot", "data").stderr


# --- while the guest writes ---------------------------------------------------------------------------------------


@pytest.fixture
def reflinks(machine: Machine) -> Iterator[None]:
    """Named disks are on XFS; boot the machine with `--packages xfsprogs`, as `make vm` does."""
    with records.reflinks(DISKS):
        yield


def snapshots_while_it_runs(task: str) -> tuple[list[tuple[float, tuple[Snapshot, ...]]], list[float]]:
    """Take snapshots as the verb does, in one process: an emulated machine takes seconds to start Python.

    Returns:
        The milliseconds of each pause, with what it made; those of as many pauses in which nothing is done.
    """
    taken: list[tuple[float, tuple[Snapshot, ...]]] = []
    idle: list[float] = []

    async def story() -> None:
        snapshots = Snapshots(NamedDisks())
        async with connect(files.read_settings) as engine:
            for i in range(SNAPSHOTS):
                with snapshots.of_task(task, SnapshotName(f"s{i}")) as instant:
                    pause = await engine.while_frozen(TaskName(task), instant.take, instant.prepare)
                    taken.append((pause * 1000, instant.keep()))
                idle.append(await engine.while_frozen(TaskName(task), lambda: None) * 1000)

    asyncio.run(story())
    return taken, idle


def quantiles(pauses: Sequence[float]) -> str:
    p95 = statistics.quantiles(pauses, n=20)[-1]
    return f"median {statistics.median(pauses):.1f} ms, p95 {p95:.1f} ms, maximum {max(pauses):.1f} ms"


@pytest.mark.vm
@pytest.mark.long
def test_each_snapshot_has_what_was_written_up_to_one_instant(
    reflinks: None, run: Runner, record_property: Callable[[str, object], None]
) -> None:
    disk("create", "one", "64K")
    disk("create", "two", "128K")
    name = run("sequence.spt", options=("--block", "first=disk:one", "--block", "second=disk:two"))
    says(name, "writing")
    taken, idle = snapshots_while_it_runs(name)
    seen = []
    for _, made in taken:
        assert [each.disk for each in made] == ["one", "two"]
        first, second = (newest(Path(each.path)) for each in made)
        assert first - second in (0, 1), "both disks are of one instant"
        seen.append(first)
    assert seen == sorted(set(seen)), "the guest went on between any two"
    pauses = [pause for pause, _ in taken]
    record_property("pauses", quantiles(pauses))
    print(f"pauses of {SNAPSHOTS} snapshots: {quantiles(pauses)}; in which nothing is done: {quantiles(idle)}")
    assert min(*pauses, *idle) > 0, "the task was frozen for each, and PID 1 thawed it at the end of none"
    done = sh("solo5ctl", "disk", "snapshot", "two", "--as=last")
    assert (done.stdout, f"task {name} was frozen for " in done.stderr) == ("one@last\ntwo@last\n", True)
    print(done.stderr)
    assert "has a snapshot 's1' already" in refused("snapshot", "one", "--as=s1")
    assert inspect(name)["phase"] == "running"
    ok("solo5ctl", "rm", "--force", name)
    middle = SNAPSHOTS // 2
    disk("restore", "one", taken[middle][1][0].name)
    assert newest(DISKS / "one") == seen[middle]
    assert len(disk("ls", "--snapshots", "-q").split()) == 2 * (SNAPSHOTS + 1)
    disk("rm", "--snapshots", "one", "two")
