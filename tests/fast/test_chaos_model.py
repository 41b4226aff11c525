"""What the chaos of the machine tests is made of: a seed is a history, and every history is a possible one."""

from dataclasses import replace
from itertools import islice

import pytest
from tests.machine.chaos.history import SHORT, history
from tests.machine.chaos.model import (
    ALONE,
    KILLABLE,
    OF_SLEEP,
    UPDATES,
    Act,
    Disturbance,
    Door,
    Guest,
    Operation,
    State,
    Task,
    World,
    after,
)

LONG = 500


def test_a_seed_is_one_history_and_another_seed_another() -> None:
    assert list(islice(history(0), LONG)) == list(islice(history(0), LONG))
    assert list(islice(history(0), LONG)) != list(islice(history(6), LONG))


def test_the_short_history_has_everything_in_it() -> None:
    seed, count = SHORT
    kinds = [operation.kinds for operation, _ in islice(history(seed, varied=True), count)]
    assert frozenset().union(*kinds) == {*Act, *Disturbance, *Guest, *Door, *State}
    assert any({Act.SNAPSHOT, State.ASLEEP} <= each for each in kinds), "a snapshot of one that sleeps"


def test_a_long_history_has_everything_in_it() -> None:
    operations = [operation for operation, _ in islice(history(0), LONG)]
    assert {operation.act for operation in operations if operation.act} == set(Act)
    assert {operation.disturbance for operation in operations if not operation.act} == set(ALONE)
    assert any(operation.act and operation.disturbance for operation in operations)
    killed = {operation.act for operation in operations if operation.disturbance is Disturbance.CLIENT}
    assert killed == set(KILLABLE), "what is done again by solo5ctl, and by Nomad is not"


def _world_after(*operations: Operation) -> World:
    world: World = {}
    for operation in operations:
        world = after(operation, world)
    return world


KILL_OF_THE_AGENT = Operation(disturbance=Disturbance.AGENT_KILLED, settles=False)


@pytest.mark.parametrize(
    "between, repeats",
    [
        ((), 0),
        ((KILL_OF_THE_AGENT,), 1),
        ((KILL_OF_THE_AGENT, KILL_OF_THE_AGENT), 2),
        ((Operation(disturbance=Disturbance.GC), KILL_OF_THE_AGENT), 0),
        ((Operation(disturbance=Disturbance.AGENT, settles=False),), 0),
    ],
)
def test_an_end_may_be_repeated_by_a_kill_of_the_agent_before_it_has_settled(
    between: tuple[Operation, ...], repeats: int
) -> None:
    task = Task(number=0, door=Door.NOMAD, guest=Guest.COUNTS, tender="hvt")
    stop = Operation(act=Act.STOP, task=task, settles=False)
    end = _world_after(Operation(act=Act.START, task=task), stop, *between)[task.name].end
    assert end is not None
    assert end.repeats == repeats


NEEDS_PROCESS = {Act.SLEEP, Act.TERMINATE, Act.KILL, Act.SLAY, Act.FREEZE, Act.THAW, *UPDATES, Act.REFUSED}
OF_FILES = (Act.AGAIN, Act.RESTART, Act.EDIT, Act.WITHDRAW, *UPDATES, Act.REFUSED, Act.STOPPED)
DECLARED = Task(number=0, door=Door.FILE, guest=Guest.COUNTS, tender="hvt")
RELOAD = Operation(disturbance=Disturbance.RELOAD)


@pytest.mark.parametrize(
    "acts, edition",
    [
        ((Act.RESTART,), 0),
        ((RELOAD,), 0),
        ((RELOAD, Act.RESTART), 1),
        ((RELOAD, Act.STOP, Act.AGAIN), 1),
        ((Operation(disturbance=Disturbance.REEXEC), Act.RESTART), 1),
    ],
)
def test_an_edition_runs_when_it_was_read_and_started(acts: tuple[Act | Operation, ...], edition: int) -> None:
    world = _world_after(Operation(act=Act.START, task=DECLARED), Operation(act=Act.EDIT, task=DECLARED))
    for act in acts:
        operation = act if isinstance(act, Operation) else Operation(act=act, task=world[DECLARED.name])
        world = after(operation, world)
    assert world[DECLARED.name].running == edition
    assert world[DECLARED.name].port == DECLARED.port_of(edition)


def test_a_declared_task_that_fails_comes_back_where_its_file_has_it_so_and_is_there() -> None:
    for task in (DECLARED, replace(DECLARED, restarts=True)):
        started = _world_after(Operation(act=Act.START, task=task))
        slain = after(Operation(act=Act.SLAY, task=task), started)[task.name]
        assert (slain.end is None, slain.runs) == (task.restarts, 1 + task.restarts)
        withdrawn = after(Operation(act=Act.WITHDRAW, task=task), started)
        assert after(Operation(act=Act.SLAY, task=withdrawn[task.name]), withdrawn) == {}


@pytest.mark.parametrize(
    "acts, image, previous",
    [
        ((Act.UPDATE,), 1, True),
        ((Act.UPDATE, Act.ROLLBACK), 0, True),
        ((Act.UPDATE, Act.UPDATE), 0, True),
        ((Act.UPDATE, Act.UNREADY, Act.REFUSED, Act.RENEW, Act.RESTART), 1, True),
        ((Act.UNREADY,), 0, False),
        ((Act.STOPPED, Act.AGAIN), None, False),
        ((Act.STOPPED, Act.AGAIN, Act.UPDATE), 1, False),
    ],
)
def test_a_task_runs_the_image_of_its_last_update(acts: tuple[Act, ...], image: int | None, previous: bool) -> None:
    for first in (DECLARED, replace(DECLARED, instance=True)):
        world = _world_after(Operation(act=Act.START, task=first))
        for act in acts:
            world = after(Operation(act=act, task=world[first.name]), world)
        task = world[first.name]
        assert (task.image, task.previous, task.state, task.end) == (image, previous, State.RUNNING, None)


def states(task: Task, *acts: Act) -> list[tuple[State, int]]:
    """The state and the runs of a task after each of some acts."""
    world = _world_after(Operation(act=Act.START, task=task))
    found: list[tuple[State, int]] = []
    for act in acts:
        world = after(Operation(act=act, task=world[task.name]), world)
        found.append((world[task.name].state, world[task.name].runs) if task.name in world else (State.ENDED, 0))
    return found


@pytest.mark.parametrize("door", list(Door))
@pytest.mark.parametrize("wakes", [Act.WAKE, Act.REQUEST])
def test_a_task_of_each_door_sleeps_and_wakes_in_one_run(door: Door, wakes: Act) -> None:
    task = replace(DECLARED, door=door)
    assert states(task, Act.SLEEP, wakes) == [(State.ASLEEP, 1), (State.RUNNING, 1)]
    assert states(task, Act.SLEEP, Act.FREEZE, Act.THAW)[1:] == [(State.FROZEN, 1), (State.ASLEEP, 1)]
    assert states(task, Act.FREEZE, Act.SLEEP, wakes, Act.THAW)[2:] == [(State.FROZEN, 1), (State.RUNNING, 1)]
    for end in (Act.STOP, Act.TERMINATE, Act.KILL, Act.SLAY):
        assert states(task, Act.SLEEP, end) == [(State.ASLEEP, 1), (State.ENDED, 1)]


def test_a_sleeper_that_systemd_starts_again_or_that_is_updated_is_awake() -> None:
    again = replace(DECLARED, restarts=True)
    assert states(again, Act.SLEEP, Act.SLAY) == [(State.ASLEEP, 1), (State.RUNNING, 2)]
    for act in (Act.RESTART, Act.UPDATE, Act.RENEW, Act.UNREADY):
        assert states(DECLARED, Act.SLEEP, act) == [(State.ASLEEP, 1), (State.RUNNING, 2)]
    assert states(DECLARED, Act.SLEEP, Act.REFUSED) == [(State.ASLEEP, 1)] * 2


WAITS = replace(DECLARED, waits=True)


@pytest.mark.parametrize("starts", [Act.REQUEST, Act.WAKE, Act.AGAIN, Act.RESTART])
@pytest.mark.parametrize("ends", [Act.SLEEP, Act.TERMINATE, Act.KILL, Act.SLAY])
def test_a_task_that_waits_is_dormant_after_each_end_without_a_job(ends: Act, starts: Act) -> None:
    assert states(WAITS, ends, starts) == [(State.DORMANT, 1), (State.RUNNING, 2)]
    assert states(WAITS, ends, Act.STOP, Act.AGAIN)[1:] == [(State.ENDED, 1), (State.RUNNING, 2)]
    assert states(WAITS, ends, Act.WITHDRAW)[1:] == [(State.ENDED, 0)], "nothing would start it"
    failures = {Act.TERMINATE, Act.KILL, Act.SLAY}
    expected = (State.RUNNING, 2) if ends in failures else (State.DORMANT, 1)
    assert states(replace(WAITS, restarts=True), ends) == [expected]


def test_an_end_has_the_outcome_of_the_last_run_of_a_dormant_task() -> None:
    for act, endings in ((Act.SLAY, {"killed"}), (Act.SLEEP, {"stopped"})):
        world = _world_after(Operation(act=Act.START, task=WAITS), Operation(act=act, task=WAITS))
        end = after(Operation(act=Act.STOP, task=world[WAITS.name]), world)[WAITS.name].end
        assert end is not None
        assert end.endings == endings


def test_a_packet_starts_the_edition_that_was_read() -> None:
    world = _world_after(Operation(act=Act.START, task=WAITS), Operation(act=Act.SLEEP, task=WAITS))
    for operation in (Operation(act=Act.EDIT, task=world[WAITS.name]), RELOAD):
        world = after(operation, world)
    dormant = world[WAITS.name]
    assert dormant.port == WAITS.port_of(0), "packets for the port of its last run start it"
    started = after(Operation(act=Act.REQUEST, task=dormant), world)[WAITS.name]
    assert (started.running, started.port) == (1, WAITS.port_of(1))


def test_a_task_whose_file_is_gone_ends_and_is_not_dormant() -> None:
    withdrawn = _world_after(Operation(act=Act.START, task=WAITS), Operation(act=Act.WITHDRAW, task=WAITS))
    assert after(Operation(act=Act.SLAY, task=withdrawn[WAITS.name]), withdrawn) == {}


def test_instances_have_names_and_templates_of_their_own() -> None:
    one, other = (replace(DECLARED, number=number, instance=True) for number in (7, 8))
    assert (one.name, one.template, one.port) == ("chaos-hvt-once-0@007", "chaos-hvt-once-0@", 21007)
    assert (other.template, replace(one, restarts=True).template) == (one.template, "chaos-hvt-again-0@")
    assert replace(one, number=1007).name != one.name


@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_done_to_a_task_that_it_cannot_be_done_to(seed: int) -> None:
    world: World = {}
    for operation, next_world in islice(history(seed), LONG):
        if operation.act and operation.task:
            assert (operation.task.name in world) == (operation.act is not Act.START)
            assert operation.task.state is not State.ENDED or operation.act in (Act.REMOVE, Act.AGAIN, Act.EDIT)
            assert operation.task.has_nic or operation.act not in OF_SLEEP
            assert operation.task.state in (State.ASLEEP, State.DORMANT) or operation.act is not Act.REQUEST
            assert operation.task.state is not State.DORMANT or operation.act not in NEEDS_PROCESS
            assert not operation.task.waits or operation.act is not Act.SLEEP or not operation.task.removed
            if (
                next_world.get(operation.task.name, operation.task).state is State.DORMANT
                and operation.task.has_process
            ):
                assert operation.settles, "it runs on for a moment"
            assert operation.task.door is Door.FILE or operation.act not in OF_FILES
            assert not operation.task.instance or operation.act not in (Act.EDIT, Act.WITHDRAW)
            assert operation.act is not Act.ROLLBACK or operation.task.previous
            if operation.act in (*UPDATES, Act.STOPPED):  # which have PID 1 read all files
                assert all(task.written == task.read for task in world.values() if not task.removed)
        assert next_world == after(operation, world)
        world = next_world
        declared = [task for task in world.values() if task.door is Door.FILE]
        writers = [task.disk for task in world.values() if task.disk is not None and task.end is None]
        writers += [task.disk for task in declared if task.disk is not None and task.end is not None]
        assert all(task.written >= task.read >= task.running for task in declared)
        assert len(writers) == len(set(writers)), "one at a time has a disk"
        assert all((task.disk is not None) == (task.locks > 0) for task in world.values())
        assert not any(task.guest is Guest.SERVES for task in declared), "updates of it would have to pause"
        for task in world.values():
            assert (task.end is not None) == (task.state is State.ENDED)
            assert (task.last is not None) == (task.state is State.DORMANT)
            assert not task.waits or (task.door is Door.FILE and task.state is not State.ASLEEP)
            assert not task.sleeps or task.state is State.FROZEN
