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


@pytest.mark.parametrize(
    "signal, known_as",
    [("SIGHUP", "SIGHUP"), ("usr1", "SIGUSR1"), ("3", "SIGQUIT"), ("SIGRTMIN", "SIGRTMIN"), ("40", "signal 40")],
)
async def test_a_signal_that_would_kill_the_tender_is_an_event_and_not_sent(
    machine: Machine, signal: str, known_as: str
) -> None:
    """On an error Nomad would fail a task whose template has this `change_signal`."""
    async with agent_of_a_task() as nomad:
        await nomad.signal(signal)
        events = await nomad.messages()
    assert events[-1].startswith(f"{known_as} was not sent: a unikernel has no signal handlers")
    assert machine.units.sent == []


async def test_what_has_ended_takes_no_signal(machine: Machine, nomad: Agent) -> None:
    with pytest.raises(NoSuchTaskError):
        await nomad.signal("SIGTERM")
    await nomad.start(task_config())
    machine.units.end(UNIT, MainCode.EXITED, 0)
    with pytest.raises(InvalidRequestError, match="has ended"):
        await nomad.signal("SIGTERM")
