"""Environment and arguments of a task may hold secrets: the driver never logs or stores them."""

import logging

import pytest
from tests.fast.nomad.agent import Agent
from tests.fast.nomad.values import Fifos, port, task_config
from tests.support.fakes.backends import Machine

from solo5_systemd.base.errors import HostError
from solo5_systemd.nomad.proto import driver_pb2 as wire

SECRET = "hunter2"
TOKEN = f"{SECRET}-token"


def secretive(fifos: Fifos) -> wire.TaskConfig:
    task = fifos.of(task_config(port("http", 25001, 80), args=[f"--password={SECRET}"]))
    task.env["NOMAD_TOKEN"] = TOKEN
    return task


async def test_neither_log_nor_events_nor_stored_state_repeat_what_a_job_passes(
    machine: Machine, nomad: Agent, fifos: Fifos, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    answer = await nomad.start(secretive(fifos))
    await nomad.recover(answer.handle)
    await nomad.stop(signal="SIGUSR1")
    await nomad.wait()
    events = await nomad.messages()
    await nomad.destroy()
    assert len(events) > 1
    assert SECRET not in caplog.text + "".join(events)
    assert SECRET.encode() not in answer.handle.driver_state
    assert TOKEN not in repr(machine.units.started), "the unit has nothing of the environment"


@pytest.mark.parametrize("error", [HostError("away."), RuntimeError("unforeseen")])
async def test_a_start_that_fails_does_not_repeat_it_either(
    machine: Machine, nomad: Agent, fifos: Fifos, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    caplog.set_level(logging.DEBUG)
    machine.steps.errors["start unit"] = error
    with pytest.raises(type(error)) as caught:
        await nomad.start(secretive(fifos))
    assert SECRET not in caplog.text + str(caught.value)
