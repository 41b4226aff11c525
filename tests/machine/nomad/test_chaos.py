"""Random operations on tasks of both front doors, and on all that serves them; see tests/machine/chaos."""

from random import SystemRandom

import pytest
from tests.machine.chaos.run import run
from tests.machine.conftest import Machine
from tests.machine.nomad.agent import Agent

OPERATIONS = 20
"""Of one seed; `make chaos` has a thousand."""


@pytest.mark.parametrize("seed", [1, "fresh"])
def test_the_machine_is_what_the_model_says_after_every_operation(
    agent: Agent, machine: Machine, seed: int | str
) -> None:
    machine.expect(".")  # whatever is said of being killed
    run(SystemRandom().randrange(1 << 32) if seed == "fresh" else int(seed), OPERATIONS, agent, say=print)
