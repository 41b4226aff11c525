"""What the chaos of the machine tests is made of: a seed is a history, and every history is a possible one."""

from itertools import islice

import pytest
from tests.machine.chaos.model import Act, Disturbance, State, World, after, history

LONG = 1000


def test_a_seed_is_one_history_and_another_seed_another() -> None:
    assert list(islice(history(5), LONG)) == list(islice(history(5), LONG))
    assert list(islice(history(5), LONG)) != list(islice(history(6), LONG))


def test_a_long_history_has_everything_in_it() -> None:
    operations = [operation for operation, _ in islice(history(5), LONG)]
    assert {operation.act for operation in operations if operation.act} == set(Act)
    assert {operation.disturbance for operation in operations if not operation.act} == set(Disturbance)
    assert any(operation.act and operation.disturbance for operation in operations)


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_done_to_a_task_that_it_cannot_be_done_to(seed: int) -> None:
    world: World = {}
    for operation, next_world in islice(history(seed), LONG):
        if operation.act and operation.task:
            assert (operation.task.name in world) == (operation.act is not Act.START)
            assert operation.task.state is not State.ENDED or operation.act is Act.REMOVE
        assert next_world == after(operation, world)
        world = next_world
    for task in world.values():
        assert (task.end is not None) == (task.state is State.ENDED)
