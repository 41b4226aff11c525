"""Updates and rollbacks of declared tasks of which a program is killed at any step: one whole task remains."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import pytest
from tests.machine.conftest import Machine, eventually, ok, sh, systemctl, unit_property
from tests.machine.declared import DIRECTORY
from tests.machine.test_package import deb
from tests.machine.test_updates import UPDATE, drained, image_of, is_moved, is_up, update, web, whole

__all__ = ["web"]

PHASE = DIRECTORY / "web/update.phase"

PHASES = {
    "kill": ("beside", "turned", "switching", "draining", "pausing"),
    "stop": ("turned", "switching", "pausing"),
}
"""How far an update is that is ended; `turned`: the new guest has the ports; `pausing`: it is one with a pause."""
RECORDED = {"turned": "beside", "pausing": "switching"}
"""What its file has then, where that is another word."""


def to_the_other_image(web: str, newer: str) -> Iterator[tuple[list[str], str, str]]:
    """Yield the words of an update and of a rollback in turn, the image that runs, and the one that they lead to."""
    both = {image_of("web"), newer}
    assert update(newer, "--watch", "0", "--pause").returncode == 0
    while True:
        for how in ("update", "rollback"):
            whole(web)
            old = image_of("web")
            [new] = both - {old}
            yield ["solo5ctl", how, "web", *([new] if how == "update" else [])], old, new


@contextmanager
def at(phase: str, words: Sequence[str]) -> Iterator[None]:
    """Begin an update or a rollback, and go on with it once it is so far."""
    slow = phase in ("turned", "draining")
    pause = ["--pause"] if phase == "pausing" else []
    ok(*words, *pause, "--no-block", "--watch", "3s" if slow else "0")
    seen = RECORDED.get(phase, phase)
    with drained() if slow else nullcontext():
        eventually(lambda: PHASE.exists() and PHASE.read_text() == seen, f"it is {phase}")
        yield


@pytest.mark.parametrize("by", PHASES)
def test_an_update_that_is_killed_leaves_one_complete_task(web: str, newer: str, by: str) -> None:
    """`stop` is what an operator does; `kill -9` of the program may happen at any moment."""
    for phase, (words, old, new) in zip(PHASES[by], to_the_other_image(web, newer), strict=False):
        with at(phase, words):
            ok("systemctl", *(("kill", "--signal=KILL", "--kill-whom=main") if by == "kill" else ("stop",)), UPDATE)
        whole(web)
        either = {old, new}  # which of the two depends on the moment
        expected = {"draining": {new}, "switching": either, "pausing": either}
        assert image_of("web") in expected.get(phase, {old}), (phase, words)


def test_what_ends_a_killed_update_may_be_killed_itself(web: str, newer: str) -> None:
    """Otherwise the guest beside the task would run on, with its ports."""
    ok("solo5ctl", "update", "web", newer, "--no-block", "--watch", "1min")
    is_moved()
    ok("systemctl", "kill", "--signal=KILL", "--kill-whom=main", UPDATE)
    eventually(lambda: unit_property(UPDATE, "ControlPID") != "0", "what ends it runs")
    ok("systemctl", "kill", "--signal=KILL", "--kill-whom=control", UPDATE)
    whole(web)


STEPS = ("beside", "switching", "draining", "pausing")


@contextmanager
def reinstallation() -> Iterator[subprocess.Popen[str]]:
    """The package is unpacked and configured again, with the restart of its services, beside what is done here."""
    words = ["dpkg", "--install", deb()]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as upgrade:
        yield upgrade
        output, _ = upgrade.communicate(timeout=300)
        assert upgrade.returncode == 0, output


def test_a_start_at_any_moment_of_an_upgrade_succeeds_or_leaves_nothing(web: str, machine: Machine) -> None:
    """A start lasts a fraction of an upgrade: there is one after the other as long as that goes on."""
    # PID 1 of a program of which half is there; solo5-networkd, which is restarted in the middle of an attachment.
    machine.expect(r"solo5-\S+\.service|network repaired: tap")
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


@pytest.mark.parametrize("by", ["upgrade", "daemon-reexec", "kill"])
def test_an_update_and_a_rollback_go_on_or_are_undone(web: str, newer: str, machine: Machine, by: str) -> None:
    if by != "daemon-reexec":
        machine.expect(r"solo5-networkd\.service: (Main process exited|Failed with result)|network repaired: tap")
    for phase, (words, old, new) in zip(STEPS, to_the_other_image(web, newer), strict=False):
        with at(phase, words):
            if by == "upgrade":
                with reinstallation():
                    pass
            elif by == "kill":
                ok("systemctl", "kill", "--signal=KILL", "--kill-whom=main", "solo5-networkd.service")
            else:
                systemctl("daemon-reexec")
        eventually(lambda: unit_property(UPDATE, "ActiveState") in ("inactive", "failed"), "it is over", 120)
        sh("systemctl", "reset-failed", UPDATE)
        whole(web)
        print(words[1], phase, by, "is done" if image_of("web") == new else "is undone")
        assert image_of("web") in (old, new)
