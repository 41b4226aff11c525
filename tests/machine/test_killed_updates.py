"""Updates and rollbacks of declared tasks of which a program is killed at any step: one whole task remains."""

import subprocess
from collections.abc import Iterator
from contextlib import nullcontext

import pytest
from tests.machine.conftest import Machine, eventually, ok, unit_property
from tests.machine.declared import DIRECTORY
from tests.machine.test_updates import drained, image_of, update, web, whole

__all__ = ["web"]

PHASES = {
    "kill": ("beside", "turned", "switching", "draining", "pausing"),
    "stop": ("turned", "switching", "pausing"),
}
"""How far an update is that is ended; `turned`: the new guest has the ports, and is watched."""


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


@pytest.mark.parametrize("by", PHASES)
def test_an_update_that_is_killed_leaves_one_whole_task(web: str, newer: str, by: str) -> None:
    """`stop` is what an operator does; `kill -9` of the program may happen at any moment."""
    unit = "solo5-update@web.service"
    own = DIRECTORY / "web/update.phase"
    for phase, (words, old, new) in zip(PHASES[by], to_the_other_image(web, newer), strict=False):
        seen = {"turned": "beside"}.get(phase, phase)
        slow = phase in ("turned", "draining")
        pause = ["--pause"] if phase == "pausing" else []
        ok(*words, *pause, "--no-block", "--watch", "3s" if slow else "0")
        with drained() if slow else nullcontext():
            eventually(lambda seen=seen: own.exists() and own.read_text() == seen, f"it is {phase}")  # type: ignore[misc]
            ok("systemctl", *(("kill", "--signal=KILL", "--kill-whom=main") if by == "kill" else ("stop",)), unit)
        whole(web)
        either = {old, new}  # which of the two depends on the moment
        expected = {"draining": {new}, "switching": either, "pausing": either}
        assert image_of("web") in expected.get(phase, {old}), (phase, words)


def test_an_update_goes_on_or_is_undone_when_the_network_service_is_killed(
    web: str, newer: str, machine: Machine
) -> None:
    machine.expect(".")
    own = DIRECTORY / "web/update.phase"
    phases = ("beside", "switching", "draining")
    for phase, (words, old, new) in zip(phases, to_the_other_image(web, newer), strict=False):
        words += ["--watch", "3s" if phase == "draining" else "0"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as done:
            with drained() if phase == "draining" else nullcontext():
                eventually(lambda phase=phase: own.exists() and own.read_text() == phase, phase)  # type: ignore[misc]
                ok("systemctl", "kill", "--signal=KILL", "--kill-whom=main", "solo5-networkd.service")
            _, error = done.communicate(timeout=120)
        print(words, phase, done.returncode, error)
        whole(web)
        assert image_of("web") == (old if done.returncode else new)


def test_what_ends_a_killed_update_may_be_killed_itself(web: str, newer: str) -> None:
    """Otherwise the guest beside the task would run on, with its ports."""
    unit = "solo5-update@web.service"
    ok("solo5ctl", "update", "web", newer, "--no-block", "--watch", "1min")
    eventually(lambda: unit_property(unit, "ActiveState") == "active", "it has the ports")
    ok("systemctl", "kill", "--signal=KILL", "--kill-whom=main", unit)
    eventually(lambda: unit_property(unit, "ControlPID") != "0", "what ends it runs")
    ok("systemctl", "kill", "--signal=KILL", "--kill-whom=control", unit)
    whole(web)
