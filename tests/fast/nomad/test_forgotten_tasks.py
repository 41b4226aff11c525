"""Which units are forgotten tasks of this agent; they are stopped with a proof, or after their grace period."""

import logging

import pytest
from tests.fast.nomad.agent import Agent, agent, agent_of_a_task
from tests.fast.nomad.values import task_config
from tests.support.fakes.backends import Machine
from tests.support.fakes.tasks import running

from solo5_systemd.base.errors import HostError, TakenError
from solo5_systemd.base.names import TaskName, UnitKind, task_service
from solo5_systemd.network.model import Request, Reservation
from solo5_systemd.nomad.forgotten_tasks import ForgottenTasks, forgotten_tasks
from solo5_systemd.nomad.plugin_config import ForgottenTasksConfig, GcConfig, PluginConfig
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.workload import name_of
from solo5_systemd.unit.state import ActiveState, UnitState

LOST = TaskName("lost")
AGAIN = task_config()
AGAIN.id += "0"


def stranger(task: str = "another", alloc: str = "another", kind: UnitKind = UnitKind.SERVICE) -> UnitState:
    """Of the same agent, which keeps its allocations in /."""
    fields = {"NOMAD_ALLOC_ID": alloc, "NOMAD_TASK_NAME": task, "NOMAD_ALLOC_DIR": "/lost/alloc"}
    return running(LOST, kind=kind).state._replace(log_fields=fields)


class Sweeper:
    """Sweeps that follow each other, each with a configuration of its own."""

    def __init__(self, nomad: Agent) -> None:
        self.base = nomad.base
        self.forgotten = ForgottenTasks(nomad.driver.session, nomad.driver.tasks)

    async def sweep(self, grace_s: float = 0.0, *, tasks: bool = True, dry_run: bool = False) -> None:
        config = ForgottenTasksConfig(creation_grace=grace_s, dry_run=dry_run)
        self.base.config = PluginConfig(gc=GcConfig(tasks=tasks, dangling_tasks=config))
        await self.forgotten.sweep()


def lives(machine: Machine) -> bool:
    return any(state.task == LOST and not state.over for state in machine.units.loaded.values())


@pytest.mark.parametrize("kind", UnitKind)
async def test_one_that_stays_unknown_for_the_grace_period_is_ended_and_logged(
    machine: Machine, caplog: pytest.LogCaptureFixture, kind: UnitKind
) -> None:
    async with agent_of_a_task() as nomad:
        hung = stranger()._replace(task=TaskName("hung"), unit="solo5-task-hung.service", invocation="f")
        machine.steps.errors[f"stop {hung.unit}"] = HostError("systemd did not finish StopUnit within 60 seconds.")
        machine.units.put(hung)
        machine.units.put(stranger(kind=kind))
        sweep = Sweeper(nomad)
        await sweep.sweep(0.02)
        assert lives(machine), "it was seen for the first time"
        await sweep.sweep(3600)
        assert lives(machine)
        await sweep.sweep()
        assert not lives(machine)
        assert len(machine.units.loaded) == 2, "the agent's own runs on, and what could not be stopped"
    [record] = [r for r in caplog.records if "lost" in r.getMessage()]
    assert record.getMessage() == "forgotten task lost stopped: Nomad's agent has no such task"
    assert record.levelno == logging.WARNING
    assert machine.relay.drained == [LOST]


async def test_one_that_has_ended_is_left_alone_where_outcomes_are_kept(machine: Machine) -> None:
    async with agent_of_a_task() as nomad:
        machine.units.put(stranger()._replace(active=ActiveState.FAILED))
        sweep = Sweeper(nomad)
        await sweep.sweep(tasks=False)
        assert len(machine.units.loaded) == 2
        machine.units.put(stranger())
        await sweep.sweep(tasks=False)
        assert not lives(machine), "one that runs is ended all the same"


async def test_one_that_is_claimed_again_or_while_no_agent_listens_begins_anew(machine: Machine) -> None:
    async with agent_of_a_task() as nomad:
        sweep = Sweeper(nomad)
        machine.units.put(stranger())
        await sweep.sweep(3600)
        machine.units.vanish(stranger().unit)
        await sweep.sweep(3600)
        machine.units.put(stranger())
        await sweep.sweep(1e-9)
        assert lives(machine)
        sweep.forgotten.begin_again()
        await sweep.sweep(1e-9)
    assert lives(machine)


async def test_one_whose_start_was_not_answered_to_a_killed_agent_goes_when_the_next_starts_the_task_anew(
    machine: Machine,
) -> None:
    """The plugin survives the agent, and has both."""
    async with agent_of_a_task() as nomad:
        await nomad.start(AGAIN)
        assert [*machine.units.loaded] == [task_service(name_of(AGAIN.id))]


async def test_one_that_keeps_another_start_of_its_task_from_its_port_goes_at_once(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agent and plugin were killed during its start: no sweep would know it for the agent's own without other tasks."""
    reserve = machine.networks.reserve

    async def reserved(task: TaskName, request: Request) -> Reservation:
        if machine.networks.held.keys() - {task}:
            raise TakenError("port 8080 is in use.")
        return await reserve(task, request)

    async with agent_of_a_task():
        monkeypatch.setattr(machine.networks, "reserve", reserved)
    async with agent() as nomad:
        stranded = stranger()._replace(unit="solo5-task-of-another.service")
        machine.units.put(stranded)
        await nomad.start(AGAIN)
        assert {*machine.units.loaded} == {task_service(name_of(AGAIN.id)), stranded.unit}


async def test_a_dry_run_tells_once_and_ends_nothing(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    async with agent_of_a_task() as nomad:
        machine.units.put(stranger())
        sweep = Sweeper(nomad)
        for _ in range(3):
            await sweep.sweep(dry_run=True)
            sweep.forgotten.begin_again()
    assert lives(machine)
    assert [r.getMessage() for r in caplog.records if "lost" in r.getMessage()] == [
        "forgotten task lost would be stopped: Nomad's agent has no such task"
    ]


async def test_without_other_tasks_no_unit_is_read(machine: Machine) -> None:
    async with agent_of_a_task() as nomad:
        machine.steps.taken.clear()
        await Sweeper(nomad).sweep()
        assert not {"states", "state"} & set(machine.steps.taken)


async def test_what_is_being_recovered_or_destroyed_is_claimed(nomad: Agent) -> None:
    async with nomad.driver.tasks._locks[task_config().id]:
        assert len(nomad.driver.tasks.claimed()) == 1
    assert not nomad.driver.tasks.claimed()


HOME = "/var/lib/nomad/alloc"


def unit(directory: str = f"{HOME}/3fa85f64/alloc", **fields: str) -> UnitState:
    own = {"NOMAD_ALLOC_ID": "3fa85f64", "NOMAD_TASK_NAME": "web", "NOMAD_ALLOC_DIR": directory}
    return running().state._replace(log_fields=own | fields)


def config(alloc: str, task: str) -> wire.TaskConfig:
    """That of a task of this agent."""
    return wire.TaskConfig(id=f"{alloc}/{task}/1", name=task, alloc_id=alloc, alloc_dir=f"{HOME}/{alloc}")


OWN = config("another", "db")


def test_one_that_the_same_agents_process_started_is_its_own_though_it_has_no_other_task() -> None:
    ours, others, unmarked = unit(SOLO5_AGENT="42.1000"), unit(SOLO5_AGENT="42.1001"), unit(SOLO5_AGENT="")
    assert list(forgotten_tasks([ours, others], (), (), "42.1000")) == [(ours, None)]
    assert not list(forgotten_tasks([unmarked], (), (), ""))


def test_one_in_whose_place_another_runs_is_forgotten_for_certain() -> None:
    following = config("3fa85f64", "web")
    for configs, successor in (([following], name_of(following.id)), ([config("3fa85f64", "db"), OWN], None)):
        assert list(forgotten_tasks([unit()], (), configs, "")) == [(unit(), successor)]


@pytest.mark.parametrize(
    "other, claimed, configs",
    [
        (unit(), (TaskName("web"),), [OWN]),
        (unit("/opt/other/alloc/3fa85f64/alloc"), (), [OWN]),
        (unit(f"{HOME}/nested/3fa85f64/alloc"), (), [OWN]),
        (running().state, (), [OWN]),
        (unit(""), (), [OWN]),
        (unit(), (), []),
    ],
    ids=["its own", "another agent's", "an agent's below", "solo5ctl's", "without a place", "before any task"],
)
def test_what_may_belong_to_a_task_is_not_judged(
    other: UnitState, claimed: tuple[TaskName, ...], configs: list[wire.TaskConfig]
) -> None:
    assert not list(forgotten_tasks([other], claimed, configs, ""))
