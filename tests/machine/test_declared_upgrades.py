"""The package is installed again, or PID 1 executes itself anew, at any step of a start, an update and a rollback."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest
from tests.machine.conftest import Machine, eventually, ok, sh, systemctl, unit_property
from tests.machine.declared import DIRECTORY
from tests.machine.test_package import deb
from tests.machine.test_updates import answers, declare, drained, image_of, images, newer, update, web, whole

__all__ = ["declare", "images", "newer", "web"]

UPDATE = "solo5-update@web.service"
PHASE = DIRECTORY / "web/update.phase"
PHASES = ("beside", "switching", "draining", "pausing")


@contextmanager
def reinstallation() -> Iterator[subprocess.Popen[str]]:
    """The package is unpacked and configured again, with the restart of its services, beside what is done here."""
    words = ["dpkg", "--install", deb()]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as upgrade:
        yield upgrade
        output, _ = upgrade.communicate(timeout=300)
        assert upgrade.returncode == 0, output


def test_a_start_at_any_moment_of_an_upgrade_is_whole_or_nothing(web: str, machine: Machine) -> None:
    """A start lasts a fraction of an upgrade: there is one after the other as long as that goes on."""
    machine.expect(".")  # a program of which half is there fails in any way
    outcomes: list[int] = []
    with reinstallation() as upgrade:
        while upgrade.poll() is None:
            ok("systemctl", "stop", web)
            outcomes.append(sh("systemctl", "start", web).returncode)
            assert unit_property(web, "ActiveState") == ("active" if outcomes[-1] == 0 else "inactive")
    print("exit statuses of the starts during an upgrade:", outcomes)
    assert outcomes
    ok("systemctl", "restart", web)
    eventually(answers, "it answers")
    whole(web)


@pytest.mark.parametrize(
    ("unit", "states"),
    [
        ("web", ("inactive", "activating", "active")),
        ("solo5-prepare@web", ("activating", "active")),
        ("web", ("active",)),
    ],
    ids=["enqueued", "in preparation", "executed"],
)
def test_a_daemon_reexec_during_a_start_ends_in_a_task_that_runs(web: str, unit: str, states: tuple[str, ...]) -> None:
    ok("systemctl", "stop", web)
    ok("systemctl", "start", "--no-block", web)
    eventually(lambda: unit_property(f"{unit}.service", "ActiveState") in states, "the start is so far")
    systemctl("daemon-reexec")
    eventually(answers, "it answers")
    whole(web)


@pytest.mark.parametrize("by", ["upgrade", "daemon-reexec"])
@pytest.mark.parametrize("phase", PHASES)
def test_an_update_and_a_rollback_go_on_or_are_undone(
    web: str, newer: str, machine: Machine, phase: str, by: str
) -> None:
    machine.expect(".")
    old = image_of("web")
    for words in (("update", "web", newer), ("rollback", "web")):
        before = image_of("web")
        pause = ["--pause"] if phase == "pausing" else []
        ok("solo5ctl", *words, "--no-block", "--watch", "3s" if phase == "draining" else "0", *pause)
        with drained() if phase == "draining" else nullcontext():
            eventually(lambda: PHASE.exists() and PHASE.read_text() == phase, f"it is {phase}")
            if by == "upgrade":
                with reinstallation():
                    pass
            else:
                systemctl("daemon-reexec")
        eventually(lambda: unit_property(UPDATE, "ActiveState") in ("inactive", "failed"), "it is over", 120)
        sh("systemctl", "reset-failed", UPDATE)
        whole(web)
        print(words[0], phase, by, "is done" if image_of("web") != before else "is undone")
        assert image_of("web") in (old, newer)
        if image_of("web") == old:  # for the rollback
            done = update(newer, "--watch", "0")
            assert done.returncode == 0, done.stderr
    whole(web)
