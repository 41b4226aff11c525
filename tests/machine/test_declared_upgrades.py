"""The package is installed again, or PID 1 executes itself anew, at any step of a start, an update and a rollback."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest
from tests.machine.conftest import Machine, eventually, ok, sh, systemctl, unit_property
from tests.machine.declared import DIRECTORY
from tests.machine.test_killed_updates import to_the_other_image
from tests.machine.test_package import deb
from tests.machine.test_updates import drained, image_of, is_up, web, whole

__all__ = ["web"]

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
    eventually(is_up, "it answers")
    whole(web)


def test_a_daemon_reexec_during_a_start_ends_in_a_task_that_runs(web: str) -> None:
    for unit, states in (  # it is enqueued, in preparation, executed
        ("web", ("inactive", "activating", "active")),
        ("solo5-prepare@web", ("activating", "active")),
        ("web", ("active",)),
    ):
        ok("systemctl", "stop", web)
        ok("systemctl", "start", "--no-block", web)
        eventually(lambda u=unit, s=states: unit_property(f"{u}.service", "ActiveState") in s, "it is so far")  # type: ignore[misc]
        systemctl("daemon-reexec")
        eventually(is_up, "it answers")
        whole(web)


@pytest.mark.parametrize("by", ["upgrade", "daemon-reexec"])
def test_an_update_and_a_rollback_go_on_or_are_undone(web: str, newer: str, machine: Machine, by: str) -> None:
    machine.expect(".")
    for phase, (words, old, new) in zip(PHASES, to_the_other_image(web, newer), strict=False):
        pause = ["--pause"] if phase == "pausing" else []
        ok(*words, "--no-block", "--watch", "3s" if phase == "draining" else "0", *pause)
        with drained() if phase == "draining" else nullcontext():
            eventually(lambda phase=phase: PHASE.exists() and PHASE.read_text() == phase, phase)  # type: ignore[misc]
            if by == "upgrade":
                with reinstallation():
                    pass
            else:
                systemctl("daemon-reexec")
        eventually(lambda: unit_property(UPDATE, "ActiveState") in ("inactive", "failed"), "it is over", 120)
        sh("systemctl", "reset-failed", UPDATE)
        whole(web)
        print(words[1], phase, by, "is done" if image_of("web") == new else "is undone")
        assert image_of("web") in (old, new)
