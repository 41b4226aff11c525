"""Tasks are stopped, killed and removed."""

from collections.abc import Callable, Coroutine
from dataclasses import replace

import pytest
from tests.support.fakes.backends import Machine, Spawn
from tests.support.fakes.background import Background
from tests.support.fakes.tasks import outcome_of

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import TaskName, UnitKind, outcome_target
from solo5_systemd.engine import stop
from solo5_systemd.engine.runtime import Runtime
from solo5_systemd.engine.task import Phase, Task
from solo5_systemd.task.properties import Property
from solo5_systemd.task.workload import StopSignal, Workload
from solo5_systemd.unit.outcome import Ending
from solo5_systemd.unit.state import ActiveState, MainCode

WEB = TaskName("web")
UNIT = "solo5-task-web.service"
SCOPE = "solo5-task-web.scope"
WORKLOAD = Workload(name=WEB, image="/srv/app")


@pytest.fixture
async def web(runtime: Runtime) -> Task:
    await runtime.start(WORKLOAD)
    return await runtime.task(WEB)


# --- stop ----------------------------------------------------------------------------------------------------


async def test_a_stop_is_systemds_own(machine: Machine, runtime: Runtime, web: Task) -> None:
    task = await runtime.stop(WEB)
    assert (task.phase, outcome_of(task).ending, machine.units.sent) == (Phase.ENDED, Ending.STOPPED, [])


@pytest.mark.parametrize(
    "signal, timeout_s, number", [(StopSignal.INT, 10.0, 2), (StopSignal.TERM, 10.1, 15), (StopSignal.INT, 60.0, 2)]
)
async def test_another_signal_or_a_longer_patience_than_the_units_is_ours_to_keep(
    machine: Machine, runtime: Runtime, web: Task, signal: StopSignal, timeout_s: float, number: int
) -> None:
    task = await runtime.stop(WEB, signal=signal, timeout_s=timeout_s)
    assert machine.units.sent == [(UNIT, number, False)]
    assert f"stop {UNIT}" not in machine.steps.taken
    assert outcome_of(task).ending is Ending.STOPPED


@pytest.mark.parametrize("signal", StopSignal)
@pytest.mark.parametrize("timeout_s", [0, 0.01])
async def test_a_tender_that_ignores_the_signal_is_killed_as_requested(
    machine: Machine, runtime: Runtime, web: Task, signal: StopSignal, timeout_s: float
) -> None:
    machine.units.heeds = ()
    task = await runtime.stop(WEB, signal=signal, timeout_s=timeout_s)
    assert machine.units.sent[-1] == (UNIT, 9, True)
    assert task.state.stop_requested
    assert (outcome_of(task).ending, outcome_of(task).signal) == (Ending.STOPPED, 9)
    assert machine.units.loaded[UNIT].active is ActiveState.INACTIVE, "no failed unit"


async def test_a_hung_tender_is_killed_at_once(machine: Machine, runtime: Runtime, web: Task) -> None:
    machine.usages.zombies = {web.state.main_pid}
    machine.units.heeds = ()
    task = await runtime.stop(WEB, timeout_s=1000)
    assert machine.units.sent == [(UNIT, 9, True)]
    assert outcome_of(task).ending is Ending.STOPPED


async def test_a_frozen_task_is_thawed_to_hear_it(machine: Machine, runtime: Runtime, web: Task) -> None:
    await runtime.freeze(WEB)
    assert (await runtime.task(WEB)).phase is Phase.FROZEN
    await runtime.stop(WEB)
    assert machine.steps.taken.index("thaw") < machine.steps.taken.index(f"stop {UNIT}")


async def test_stopping_an_ended_task_tells_how_it_ended(machine: Machine, runtime: Runtime, web: Task) -> None:
    machine.units.end(UNIT, MainCode.EXITED, 3)
    task = await runtime.stop(WEB)
    assert (outcome_of(task).exit_code, machine.units.sent) == (3, [])
    assert f"stop {UNIT}" not in machine.steps.taken


async def test_an_end_of_its_own_during_a_stop_stays_a_failure(machine: Machine, runtime: Runtime, web: Task) -> None:
    machine.units.heeds = ()
    async with Background(runtime.stop(WEB)) as stopping:
        machine.units.end(UNIT, MainCode.KILLED, 11)
        task = await stopping
    assert outcome_of(task).ending is Ending.TENDER_FAILED
    assert machine.units.loaded[UNIT].active is ActiveState.FAILED


async def test_a_stop_that_is_cancelled_leaves_the_rest_to_systemd(
    machine: Machine, runtime: Runtime, web: Task
) -> None:
    machine.units.heeds = ()
    async with Background(runtime.stop(WEB)):
        pass
    assert machine.units.loaded[UNIT].active is ActiveState.DEACTIVATING
    assert machine.units.sent == []


@pytest.mark.parametrize("another", [False, True], ids=["removed", "another of its name"])
async def test_a_task_that_is_removed_while_it_is_stopped_has_ended_unknown_how(
    machine: Machine, runtime: Runtime, web: Task, *, another: bool
) -> None:
    machine.units.heeds = ()
    async with Background(runtime.stop(WEB)) as stopping:
        machine.units.vanish(UNIT)
        if another:
            machine.units.put(replace(web.state, invocation="f" * 32))
            machine.units.end(UNIT, MainCode.EXITED, 7)
        task = await stopping
    assert (task.phase, outcome_of(task).ending) == (Phase.ENDED, Ending.UNKNOWN)
    assert task.state.invocation == web.state.invocation


async def test_a_task_is_killed_even_where_systemd_does_not_get_to_its_job(
    machine: Machine, runtime: Runtime, web: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop, "STOP_JOB_TIMEOUT_S", 0.05)
    machine.units.heeds, machine.units.busy = (), True
    assert (await runtime.stop(WEB, timeout_s=0.01)).phase is Phase.ENDED


@pytest.fixture
async def scope(machine: Machine, runtime: Runtime) -> str:
    async with runtime.start_scope(replace(WORKLOAD, kind=UnitKind.SCOPE), Spawn()):
        return SCOPE


@pytest.mark.parametrize("signal", StopSignal)
async def test_a_scope_that_is_stopped_is_gone_and_how_it_ended_is_not_invented(
    machine: Machine, runtime: Runtime, scope: str, signal: StopSignal
) -> None:
    task = await runtime.stop(WEB, signal=signal)
    assert (task.phase, outcome_of(task).ending) == (Phase.ENDED, Ending.UNKNOWN)
    assert machine.units.loaded == {}


@pytest.mark.parametrize("number", [2, 15, 9])
async def test_a_scope_has_no_main_process_and_its_signals_go_to_all(
    machine: Machine, runtime: Runtime, scope: str, number: int
) -> None:
    await runtime.kill(WEB, number)
    assert machine.units.sent == [(SCOPE, number, True)]


# --- kill, freeze, remove, collect ---------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 1, 10, 18, 19])
async def test_a_signal_that_a_tender_does_not_know_is_refused(
    machine: Machine, runtime: Runtime, web: Task, number: int
) -> None:
    with pytest.raises(InvalidRequestError, match=f"signal {number} cannot be sent.*solo5ctl freeze"):
        await runtime.kill(WEB, number)
    assert machine.units.sent == []


@pytest.mark.parametrize(
    "call",
    [
        lambda runtime: runtime.kill(WEB, 15),
        lambda runtime: runtime.freeze(WEB),
        lambda runtime: runtime.thaw(WEB),
        lambda runtime: runtime.sleep(WEB),
        lambda runtime: runtime.wake(WEB),
    ],
)
async def test_an_ended_task_can_be_neither_signalled_nor_frozen_nor_sleep(
    machine: Machine, runtime: Runtime, web: Task, call: Callable[[Runtime], Coroutine[object, object, object]]
) -> None:
    machine.units.end(UNIT, MainCode.EXITED, 0)
    with pytest.raises(InvalidRequestError, match="task web has ended"):
        await call(runtime)


async def test_a_scope_cannot_sleep(machine: Machine, runtime: Runtime) -> None:
    await runtime.start(replace(WORKLOAD, kind=UnitKind.SCOPE))
    with pytest.raises(InvalidRequestError, match="task web is a scope: expected a service.*solo5ctl freeze web"):
        await runtime.sleep(WEB)
    assert machine.networks.asleep == {}


@pytest.mark.parametrize("sleeps", [False, True])
@pytest.mark.parametrize(("number", "awake"), [(2, True), (15, True), (9, False)])
async def test_a_signal_goes_to_the_tender_which_is_woken_for_it_and_the_last_one_to_all(
    machine: Machine, runtime: Runtime, web: Task, number: int, awake: bool, sleeps: bool
) -> None:
    """A stopped process handles none but SIGKILL."""
    if sleeps:
        await runtime.sleep(WEB)
    await runtime.kill(WEB, number)
    assert machine.units.sent == [(UNIT, number, number == 9)]
    assert (WEB not in machine.networks.asleep) is (awake or not sleeps)


@pytest.mark.parametrize("ended", [False, True])
async def test_a_task_is_discarded_running_or_not_and_twice(
    machine: Machine, runtime: Runtime, web: Task, ended: bool
) -> None:
    if ended:
        machine.units.end(UNIT, MainCode.EXITED, 1)
    await runtime.discard(WEB)
    assert machine.holds == (set(), set())
    assert machine.networks.released == [WEB]
    assert machine.steps.taken.index("release") < machine.steps.taken.index("free user")
    await runtime.discard(WEB)


async def test_outcome_of_a_task_may_be_kept_while_its_network_is_given_back(
    machine: Machine, runtime: Runtime, web: Task
) -> None:
    machine.units.end(UNIT, MainCode.EXITED, 1)
    await runtime.discard(WEB, over=True, keep=True)
    assert WEB not in machine.networks.held
    assert outcome_of(await runtime.task(WEB)).exit_code == 1
    await runtime.remove(WEB)
    assert machine.holds == (set(), set())


async def test_what_is_left_of_a_task_without_a_unit_is_discarded(
    machine: Machine, runtime: Runtime, web: Task
) -> None:
    machine.units.vanish(UNIT)
    await runtime.discard(WEB)
    assert machine.holds == (set(), set())
    assert f"stop {outcome_target(WEB)}" in machine.steps.taken


async def test_a_slice_keeps_to_its_processors(machine: Machine, runtime: Runtime) -> None:
    await runtime.confine_slice("solo5-shared.slice", "0-1,9")
    assert machine.units.confined == {"solo5-shared.slice": [Property("AllowedCPUs", "ay", b"\x03\x02")]}
    await runtime.confine_slice("solo5-shared.slice", "")
    assert machine.units.confined == {"solo5-shared.slice": [Property("AllowedCPUs", "ay", b"")]}
