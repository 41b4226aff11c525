"""A console's two FIFOs: handed to the relay, or opened and closed for the reader's sake."""

import os
import select
from typing import Any

import pytest
from tests.fast.nomad.agent import agent
from tests.fast.nomad.conftest import Becomes
from tests.fast.nomad.values import SCOPES, TASK_ID, Fifos, task_config
from tests.support.fakes.backends import Machine

from solo5_systemd.base.names import task_scope, task_service
from solo5_systemd.nomad.workload import name_of

NAME = name_of(TASK_ID)


async def test_the_relay_knows_the_unit_before_it_starts(machine: Machine, fifos: Fifos) -> None:
    async with agent() as nomad:
        await nomad.start(fifos.of(task_config()))
    unit, since = machine.relay.held[NAME]
    assert (unit, since > 1_700_000_000_000_000) == (task_service(NAME), True)
    assert machine.steps.taken.index("forward") < machine.steps.taken.index("start unit")


async def test_a_scopes_console_is_forwarded_by_the_scopes_name(machine: Machine, fifos: Fifos, child: Becomes) -> None:
    child("")
    async with agent(allowed_units=SCOPES) as nomad:
        config = fifos.of(task_config(unit="scope"))
        await nomad.start(config)
        units = list(machine.relay.units)
        await nomad.wait(config.id)  # the child is reaped
    assert units == [task_scope(NAME)]


@pytest.mark.parametrize("config, plugin", [({"logging": "journald"}, {}), ({}, {"defaults": {"logging": "journald"}})])
async def test_a_console_that_stays_in_the_journal_ends_for_its_reader_at_once(
    machine: Machine, fifos: Fifos, config: dict[str, Any], plugin: dict[str, object]
) -> None:
    readers = [os.open(path, os.O_RDONLY | os.O_NONBLOCK) for path in fifos]
    async with agent() as nomad:
        await nomad.configure(**plugin)
        await nomad.start(fifos.of(task_config(**config)))
    assert [_over(reader) for reader in readers] == [True, True]
    assert machine.relay.units == []
    for reader in readers:
        os.close(reader)


def _over(reader: int) -> bool:
    """A writer came, and went."""
    seen = select.poll()
    seen.register(reader, select.POLLIN)
    return seen.poll(0) == [(reader, select.POLLHUP)]
