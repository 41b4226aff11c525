"""Random operations on tasks of Nomad and of solo5ctl, and on all services; see tests/machine/chaos."""

from pathlib import Path

import pytest
from tests.machine.chaos.history import SHORT
from tests.machine.chaos.invariants import Truth
from tests.machine.chaos.run import ChaosError, run
from tests.machine.conftest import Machine, ok
from tests.machine.nomad.agent import WATCHFUL, Agent

# A plugin that is killed between a task's end and DestroyTask gets no second call, so that its unit is forgotten.
pytestmark = pytest.mark.configured(WATCHFUL)


def test_the_machine_is_what_the_model_says_after_every_operation(agent: Agent, machine: Machine) -> None:
    machine.expect(".")  # any line of a killed process
    seed, count = SHORT
    done: list[str] = []
    run(seed, count, agent, say=done.append, varied=True)
    assert len(done) == count
    assert Truth().complaints({}) == []


def test_a_history_that_goes_wrong_says_how_and_leaves_nothing(
    agent: Agent, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.expect(".")
    monkeypatch.setattr("tests.machine.chaos.run.SETTLING", 0)
    monkeypatch.setattr(Truth, "complaints", lambda _, world: ["two is too many"] if len(world) > 1 else [])
    with pytest.raises(ChaosError, match=r"(?s)seed 1:\n.*start chaos-0.*and then:\ntwo is too many"):
        run(1, 20, agent, say=print)


def test_what_nobody_owns_is_complained_of(agent: Agent) -> None:
    assert Truth().complaints({}) == []
    with Path("/run/solo5/network/tasks/nobody.json").open("x") as lease:
        assert Truth().complaints({}) == ["leases: {'nobody'}, expected set()"]
    Path(lease.name).unlink()
    ok("ip", "tuntap", "add", "nobody", "mode", "tap")
    assert Truth().complaints({}) == ["taps: 1, expected 0"]
    ok("ip", "link", "delete", "nobody")
