"""Drop-ins for all services of the host: PID 1 merges them into the units of tasks, too."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.machine.conftest import GUESTS, Runner, eventually, inspect, ok, sh, unit_property
from tests.machine.declared import Declarations

ALL, HIDDEN = Path("/etc/systemd/system/service.d/all.conf"), Path("/etc/systemd/system")


@pytest.fixture
def all_services() -> Iterator[None]:
    """Every service of the machine has a drop-in."""
    ALL.parent.mkdir()
    ALL.write_text("[Service]\nMemoryHigh=1G\nUser=root\nRestart=on-failure\n")
    ok("systemctl", "daemon-reload")
    yield
    for path in HIDDEN.glob("*.d/all.conf"):
        path.unlink()
        path.parent.rmdir()
    ok("systemctl", "daemon-reload")


def hide(text: str) -> None:
    """Type what is said."""
    [command] = re.findall(r"Hide it: (mkdir -p \S+ && ln -s /dev/null \S+)", " ".join(text.split()))
    ok("sh", "-c", command)
    ok("systemctl", "daemon-reload")


def test_one_that_changes_the_sandbox_refuses_starts_until_it_is_hidden(all_services: None, run: Runner) -> None:
    refused = run.fail("--detach", f"{GUESTS}/sleeper.spt")
    assert refused.returncode == 125
    assert f"drop-in {ALL} sets User= of solo5-task-" in refused.stderr
    doctor = sh("solo5ctl", "doctor")
    assert doctor.returncode == 1
    assert f"drop-in {ALL} sets User= of solo5-task-*.service" in " ".join(doctor.stdout.split())
    hide(refused.stderr)
    assert sh("solo5ctl", "doctor").returncode == 0
    unit = inspect(run("sleeper.spt"))["unit"]
    assert unit_property(unit, "User") != "root"
    assert unit_property(unit, "Restart") == "no"


def test_one_that_changes_the_sandbox_of_a_declared_task_refuses_its_start_until_it_is_hidden(
    all_services: None, declare: Declarations
) -> None:
    unit = declare("web", "", image="sleeper.spt")
    assert sh("systemctl", "start", unit).returncode == 1
    doctor = " ".join(sh("solo5ctl", "doctor").stdout.split())
    [said] = re.findall(rf"drop-in {ALL} sets User= of {unit}.*?/all.conf(?= |$)", doctor)
    ok("journalctl", "--sync")
    assert "sets User=" in ok("journalctl", "-b", "-u", "solo5-prepare@web")
    hide(said)

    def starts() -> bool:
        # By Restart= of the drop-in the preparation is repeated, too: one from before may still be refused.
        sh("systemctl", "reset-failed", unit, "solo5-prepare@web")
        return sh("systemctl", "start", unit).returncode == 0

    eventually(starts, "it starts once the drop-in is hidden")
    assert unit_property(unit, "User") != "root"
