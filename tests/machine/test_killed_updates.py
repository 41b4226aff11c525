"""Updates and rollbacks of declared tasks of which a program is killed at any step: one whole task remains."""

import subprocess
from contextlib import ExitStack, nullcontext

import pytest
from tests.machine.conftest import Machine, eventually, ok, unit_property
from tests.machine.declared import DIRECTORY
from tests.machine.test_updates import declare, drained, image_of, images, newer, update, web, whole

__all__ = ["declare", "images", "newer", "web"]

BESIDE = ("beside", "turned", "switching", "draining")
KILLED = (
    *(("update", phase, by) for phase in BESIDE for by in ("kill", "stop")),
    *(("rollback", phase, "kill") for phase in BESIDE),
    *((how, "pausing", by) for how in ("update", "rollback") for by in ("kill", "stop")),
)


@pytest.mark.parametrize(("how", "phase", "by"), KILLED)
def test_an_update_that_is_killed_leaves_one_whole_task(web: str, newer: str, how: str, phase: str, by: str) -> None:
    """`stop` is what an operator does; `kill -9` of the program may happen at any moment."""
    unit = "solo5-update@web.service"
    own = DIRECTORY / "web/update.phase"
    seen = {"turned": "beside"}.get(phase, phase)
    slow = phase in ("turned", "draining")
    old, new = image_of("web"), newer
    if how == "rollback":
        old, new = new, old
        assert update(old, "--watch", "0", "--pause").returncode == 0
    words = (how, "web", *([new] if how == "update" else []), *(["--pause"] if phase == "pausing" else []))
    ok("solo5ctl", *words, "--no-block", "--watch", "3s" if slow else "0")
    with ExitStack() as stack:
        if slow:
            stack.enter_context(drained())
        eventually(lambda: own.exists() and own.read_text() == seen, f"the update is {phase}")
        ok("systemctl", *(("kill", "--signal=KILL", "--kill-whom=main") if by == "kill" else ("stop",)), unit)
    whole(web)
    either = {old, new}  # which of the two depends on the moment
    expected = {"draining": {new}, "switching": either, "pausing": either}
    assert image_of("web") in expected.get(phase, {old})


@pytest.mark.parametrize("how", ["update", "rollback"])
@pytest.mark.parametrize("phase", ["beside", "switching", "draining"])
def test_an_update_goes_on_or_is_undone_when_the_network_service_is_killed(
    web: str, newer: str, machine: Machine, how: str, phase: str
) -> None:
    machine.expect(".")
    old, new = image_of("web"), newer
    if how == "rollback":
        old, new = new, old
        assert update(old, "--watch", "0", "--pause").returncode == 0
    own = DIRECTORY / "web/update.phase"
    watch = "3s" if phase == "draining" else "0"
    words = ["solo5ctl", how, "web", *([new] if how == "update" else []), "--watch", watch]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as done:
        with drained() if phase == "draining" else nullcontext():
            eventually(lambda: own.exists() and own.read_text() == phase, f"the update is {phase}")
            ok("systemctl", "kill", "--signal=KILL", "--kill-whom=main", "solo5-networkd.service")
        _, error = done.communicate(timeout=120)
    print(how, phase, done.returncode, error)
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
