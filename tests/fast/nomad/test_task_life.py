"""The life of a task as Nomad sees it: start, wait, stop, destroy."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from itertools import count

import pytest
from tests.fast.nomad.agent import Agent, agent, agent_of_a_task
from tests.fast.nomad.values import NAME, NOTHING, TASK_ID, UNIT, Fifos, task_config
from tests.support.fakes.backends import Machine
from tests.support.fakes.background import Background, yields
from tests.support.fakes.clock import passed

from solo5_systemd.base.errors import HostError, TakenError
from solo5_systemd.base.names import TaskName
from solo5_systemd.nomad import logs
from solo5_systemd.nomad import wait as wait_module
from solo5_systemd.nomad.logs import DRAIN_TIMEOUT_S
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.unit.state import MainCode

OTHER = f"{TASK_ID}2"


def another(task_id: str = OTHER) -> wire.TaskConfig:
    task = task_config()
    task.id = task_id
    return task


async def test_one_id_started_twice_at_once_is_one_task(machine: Machine, nomad: Agent) -> None:
    first, second = await asyncio.gather(nomad.start(task_config()), nomad.start(task_config()))
    assert first == second == await nomad.start(task_config())
    assert len(machine.units.started) == 1


async def test_a_start_whose_answer_was_lost_is_answered_by_the_next_driver(machine: Machine, fifos: Fifos) -> None:
    async with agent() as nomad:
        first = await nomad.start(fifos.of(task_config()))
    async with agent() as nomad:
        assert await nomad.start(fifos.of(task_config())) == first
        assert set(machine.relay.held) == {NAME}
    assert len(machine.units.started) == 1


# --- wait ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "trouble, reason",
    [
        (lambda machine: setattr(machine.steps, "hang_on", "drain"), "journald or solo5-relay does not answer"),
        (lambda machine: machine.steps.errors.update(drain=HostError("the relay is away.")), "the relay is away"),
        (lambda machine: machine.steps.errors.update(drain=RuntimeError("no new thread")), "no new thread"),
        (lambda machine: setattr(machine.relay, "unread", count(1, 0)), "its log FIFO is full and not read"),
    ],
    ids=["hang", "error", "a fault of ours", "full"],
)
@pytest.mark.leaps
async def test_an_end_is_reported_though_the_last_lines_are_not_delivered(
    machine: Machine, nomad: Agent, fifos: Fifos, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    trouble: Callable[[Machine], None], reason: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(logs, "DRAIN_TIMEOUT_S", 0.01)
    monkeypatch.setattr(logs, "RELAY_TIMEOUT_S", 0.01)
    await nomad.start(fifos.of(task_config()))
    async with Background(nomad.wait()) as waiting:
        trouble(machine)
        machine.units.end(UNIT, MainCode.EXITED, 4)
        ended = await waiting
    assert ended.result.exit_code == 4
    assert machine.steps.taken[-1] == "drain"
    [warning] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith(f"last lines of task {NAME} not delivered to Nomad for")
    assert reason in warning


@pytest.mark.leaps
async def test_an_end_waits_for_last_lines_that_make_progress(machine: Machine, nomad: Agent, fifos: Fifos) -> None:
    await nomad.start(fifos.of(task_config()))
    machine.relay.unread = count(1)
    async with Background(nomad.wait()) as waiting:
        machine.units.end(UNIT, MainCode.EXITED, 0)
        await passed(10 * DRAIN_TIMEOUT_S)
        assert not waiting.done()
        machine.relay.unread = None
        await waiting
    assert machine.relay.drained == [NAME]


# --- stop and destroy ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "signal, sent",
    [("SIGINT", [(UNIT, 2, False)]), ("", []), ("SIGTERM", []), ("SIGUSR1", []), ("SIGKILL", [(UNIT, 9, True)])],
)
async def test_a_task_is_stopped_by_the_signal_that_its_job_names(
    machine: Machine, signal: str, sent: list[tuple[str, int, bool]]
) -> None:
    machine.units.heeds = (2,) if signal in ("SIGINT", "SIGKILL") else (15,)
    async with agent_of_a_task() as nomad:
        await nomad.stop(signal=signal)
        await nomad.wait()
    assert machine.units.sent == sent


async def test_a_running_task_is_destroyed_only_by_force(machine: Machine) -> None:
    async with agent_of_a_task() as nomad:
        with pytest.raises(TakenError, match="is running. Stop it first."):
            await nomad.destroy(force=False)
        async with Background(nomad.wait()) as waiting:
            await nomad.destroy()
            assert isinstance(await waiting, wire.WaitTaskResponse)
    assert machine.holds == NOTHING


async def test_a_driver_that_knows_nothing_stops_and_destroys_by_the_id_alone(machine: Machine, fifos: Fifos) -> None:
    async with agent() as nomad:
        await nomad.start(fifos.of(task_config()))
    async with agent() as nomad:
        await nomad.stop()
        assert machine.units.loaded[UNIT].over
        await nomad.destroy()
    assert (machine.holds, machine.relay.held) == (NOTHING, {})


async def test_a_task_whose_user_another_process_holds_for_a_moment_is_destroyed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nomad calls DestroyTask once."""
    refusals = 0
    removal = machine.users.removal

    def held_first(task: TaskName) -> AbstractAsyncContextManager[None]:
        nonlocal refusals
        refusals += 1
        if refusals == 1:
            raise TakenError("another start of it is in progress.")
        return removal(task)

    async with agent_of_a_task() as nomad:
        monkeypatch.setattr(machine.users, "removal", held_first)
        await nomad.destroy()
    assert (refusals, machine.holds) == (2, NOTHING)


# --- isolation -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["take image", "reserve", "start unit", "forward"])
async def test_a_start_that_hangs_delays_no_other_task(machine: Machine, nomad: Agent, fifos: Fifos, step: str) -> None:
    machine.steps.hang_on = step
    async with Background(nomad.start(fifos.of(task_config()))) as hanging:
        await machine.steps.hanging.wait()
        await nomad.start(fifos.of(another()))
        await nomad.stop(OTHER)
        assert (await nomad.wait(OTHER)).result.signal == 15
        await nomad.destroy(OTHER)
        assert not hanging.done()
        machine.steps.go_on.set()
        await hanging


async def test_an_outage_is_in_the_log(
    machine: Machine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait_module, "WATCH_INTERVAL_S", 60)
    machine.steps.errors["watch"] = HostError("the connection to the system bus broke.")
    async with agent_of_a_task():
        await yields()
    words = f"wait for task {NAME} failed, retrying in 60 s: the connection to the system bus broke."
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [words]
