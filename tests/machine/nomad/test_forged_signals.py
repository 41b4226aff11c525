"""A local user sends forged signals of PID 1 to the driver and to solo5ctl: they have no effect."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.machine.conftest import GUESTS, PATIENCE, eventually, ok, systemctl, unit_property
from tests.machine.nomad.agent import Agent
from tests.machine.nomad.jobs import SLEEPER, Jobs, allocations, hcl, running, says, task, unit

SCRIPT = str(Path(__file__).parents[1] / "forge.py")
DROP_IN = Path("/run/systemd/system/solo5-task-.service.d/gate.conf")
BY_HAND = "solo5-task-byhand.service"


@contextmanager
def gate(opened: Path) -> Iterator[None]:
    """Block the jobs of tasks' units in PID 1's queue, behind the job of another unit, until a file exists."""
    DROP_IN.parent.mkdir()
    DROP_IN.write_text("[Unit]\nAfter=gate.service\n")
    systemctl("daemon-reload")
    waits = f"until test -e {opened}; do sleep 0.05; done"
    ok("systemd-run", "--quiet", "--no-block", "--unit=gate", "--service-type=oneshot", "sh", "-c", waits)
    try:
        yield
    finally:
        opened.touch()
        DROP_IN.unlink()
        DROP_IN.parent.rmdir()
        systemctl("daemon-reload")


def forge(name: str, *pids: int) -> tuple[int, int]:
    """Send forged signals of a unit, and return the number of connections and of signals."""
    as_nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    connections, signals = ok(*as_nobody, "python3", "-I", SCRIPT, name, *map(str, pids)).split()
    return int(connections), int(signals)


def waiting() -> list[str]:
    """Return the units of tasks with a waiting job."""
    lines = systemctl("list-jobs", "--no-legend", "--plain").splitlines()
    return [word for line in lines for word in line.split() if word.startswith("solo5-task-")]


@pytest.fixture
def by_hand(tmp_path: Path) -> Iterator[tuple["subprocess.Popen[bytes]", Path]]:
    """Yield a `solo5ctl run` in the foreground, and the file of its stdout."""
    written = tmp_path / "stdout"
    argv = ["solo5ctl", "run", "--name", "byhand", "--rm", f"{GUESTS}/sleeper.spt"]
    with gate(tmp_path / "open"), written.open("wb") as stdout, subprocess.Popen(argv, stdout=stdout) as process:
        yield process, written
        tmp_path.joinpath("open").touch()
        process.terminate()


def test_a_local_users_signals_in_the_name_of_pid_1_end_no_start_and_no_task(
    jobs: Jobs, agent: Agent, by_hand: tuple["subprocess.Popen[bytes]", Path], tmp_path: Path
) -> None:
    process, written = by_hand
    pids = (agent.plugin(), process.pid)
    job = jobs.submit(hcl("forged", SLEEPER))
    eventually(lambda: len(waiting()) == 2, "both starts wait for their jobs")
    for name in waiting():
        connections, signals = forge(name, *pids)
        assert connections >= len(pids)
        assert signals == 3, "a job's end, and a unit's two"
    assert len(waiting()) == 2
    tmp_path.joinpath("open").touch()
    running(job)
    eventually(lambda: b"sleeping" in written.read_bytes(), "the task runs")
    alloc = str(allocations(job)[0]["ID"])
    says(alloc, "sleeping")
    for name in (unit(alloc), BY_HAND):
        forge(name, *pids)
    systemctl("stop", BY_HAND)
    assert process.wait(PATIENCE) == 143, "the end that it had: stopped, by SIGTERM"
    assert unit_property(unit(alloc), "ActiveState") == "active"
    assert [event["Type"] for event in task(alloc)["Events"] if event["Type"] in ("Driver Failure", "Terminated")] == []
