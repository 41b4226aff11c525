"""Signals, freezing, and the events of both."""

import pytest
from tests.fast.nomad.agent import Agent, agent_of_a_task
from tests.fast.nomad.values import UNIT, task_config
from tests.support.fakes.backends import Machine

from solo5_systemd.base.errors import InvalidRequestError, NoSuchTaskError
from solo5_systemd.unit.state import MainCode


@pytest.mark.parametrize(
    "signal, sent",
    [
        ("SIGINT", (UNIT, 2, False)),
        ("term", (UNIT, 15, False)),
        ("15", (UNIT, 15, False)),
        ("9", (UNIT, 9, True)),
        (" SIGKILL ", (UNIT, 9, True)),
    ],
)
async def test_a_signal_that_a_tender_knows_is_sent(machine: Machine, signal: str, sent: tuple[str, int, bool]) -> None:
    machine.units.heeds = ()
    async with agent_of_a_task() as nomad:
        await nomad.signal(signal)
    assert machine.units.sent == [sent]


async def test_what_has_ended_takes_no_signal(machine: Machine, nomad: Agent) -> None:
    with pytest.raises(NoSuchTaskError):
        await nomad.signal("SIGTERM")
    await nomad.start(task_config())
    machine.units.end(UNIT, MainCode.EXITED, 0)
    with pytest.raises(InvalidRequestError, match="has ended"):
        await nomad.signal("SIGTERM")
