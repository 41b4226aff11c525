"""Retained tasks: the last run of each task, until its allocation is removed."""

import pytest
from tests.fast.nomad.agent import Agent
from tests.fast.nomad.values import ALLOCATION, task_config
from tests.support.fakes.backends import Machine

from solo5_systemd.base.errors import HostError
from solo5_systemd.base.names import outcome_target, task_service
from solo5_systemd.engine import gc
from solo5_systemd.nomad import tasks
from solo5_systemd.nomad.housekeeping import remove_orphaned
from solo5_systemd.nomad.plugin_config import GcConfig, PluginConfig
from solo5_systemd.nomad.workload import name_of
from solo5_systemd.unit.state import MainCode

KEEPING = PluginConfig(gc=GcConfig(tasks=False))


async def run(nomad: Agent, machine: Machine, number: int, task: str = "web") -> str:
    """Start a task of the allocation, see it end, and destroy it; the unit's name."""
    task_id = f"{ALLOCATION}/{task}/{number:08x}"
    config = task_config()
    config.id, config.name = task_id, task
    await nomad.start(config)
    unit = task_service(name_of(task_id))
    machine.units.end(unit, MainCode.EXITED, number)
    await nomad.wait(task_id)
    await nomad.destroy(task_id)
    return unit


async def test_only_the_last_run_of_each_task_is_kept(machine: Machine, nomad: Agent) -> None:
    """A job that restarts without end leaves one unit."""
    nomad.base.config = KEEPING
    other = await run(nomad, machine, 1, "other")
    runs = [await run(nomad, machine, number) for number in range(1, 5)]
    assert machine.units.loaded.keys() == {other, runs[-1]}
    assert machine.networks.held == {}
    assert "states" not in machine.steps.taken, "no unit is read but those of the task's other runs"


async def test_task_is_destroyed_though_its_earlier_runs_cannot_be_listed(
    machine: Machine, nomad: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: object) -> None:
        raise HostError("the bus does not answer.")

    nomad.base.config = KEEPING
    monkeypatch.setattr(tasks, "_remove_earlier", refused)
    unit = await run(nomad, machine, 1)
    assert machine.units.loaded.keys() == {unit}
    assert nomad.driver.tasks.claimed() == frozenset()


@pytest.mark.parametrize("gone", [False, True])
async def test_kept_task_goes_with_its_allocation(
    machine: Machine, nomad: Agent, gone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    nomad.base.config = KEEPING
    refused, unit = [await run(nomad, machine, 1, task) for task in ("db", "web")]
    machine.steps.errors[f"stop {outcome_target(name_of(f'{ALLOCATION}/db/00000001'))}"] = HostError("it hangs.")
    running = task_config()
    running.id = f"{ALLOCATION}/web/ffffffff"
    await nomad.start(running)
    monkeypatch.setattr(gc, "is_removed", lambda _: gone)
    await remove_orphaned(nomad.driver.session)
    left = {task_service(name_of(running.id)), refused} | (set() if gone else {unit})
    assert machine.units.loaded.keys() == left, "one that runs is not judged here"
