"""The engine on in-memory backends: tasks are looked at, waited for, stopped, killed and removed."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.support.fakes.backends import Machine, Spawn, line
from tests.support.fakes.background import Background, yields
from tests.support.fakes.clock import passed, taken
from tests.support.fakes.images import SHA256
from tests.support.fakes.tasks import outcome_of

from solo5_systemd.base.errors import HostError, InvalidRequestError, NoSuchTaskError, TakenError
from solo5_systemd.base.names import DeviceName, TaskName, UnitKind, outcome_target
from solo5_systemd.cgroup.usage import Usage
from solo5_systemd.engine import hung_tenders, stop
from solo5_systemd.engine.runtime import Runtime
from solo5_systemd.engine.task import Phase, Sample, Task
from solo5_systemd.journal.lines import Line
from solo5_systemd.network.tap_counters import Counters, Traffic
from solo5_systemd.task.workload import Workload
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


# --- look ----------------------------------------------------------------------------------------------------


async def test_tasks_are_listed_by_name_with_what_they_hold(machine: Machine, runtime: Runtime) -> None:
    assert await runtime.tasks() == ()
    assert "reservations" not in machine.steps.taken
    await runtime.start(WORKLOAD)
    await runtime.start(replace(WORKLOAD, name=TaskName("abc")))
    tasks = await runtime.tasks()
    assert [task.name for task in tasks] == ["abc", "web"]
    assert [task.reservation for task in tasks] == [machine.networks.held[task.name] for task in tasks]
    assert [task.sha256 for task in tasks] == [SHA256] * 2


async def test_those_that_live_are_listed_without_those_that_ended(
    machine: Machine, runtime: Runtime, web: Task
) -> None:
    await runtime.start(replace(WORKLOAD, name=TaskName("abc")))
    machine.units.end(UNIT, MainCode.EXITED, 1)
    assert [task.name for task in await runtime.tasks(ended=False)] == ["abc"]
    assert (await runtime.names(), await runtime.names(ended=False)) == (("abc", "web"), ("abc",))
    assert "read console" not in machine.steps.taken


OF_RUNNING_TASKS = ("freeze", "thaw", "sleep", "wake")


@pytest.mark.parametrize("call", ["task", "stop", "wait", "remove", "restart", *OF_RUNNING_TASKS])
async def test_a_name_that_no_task_has_is_an_error_of_its_own(runtime: Runtime, call: str) -> None:
    for act in (partial(getattr(runtime, call), WEB), partial(runtime.kill, WEB, 15)):
        with pytest.raises(NoSuchTaskError, match="no task is named 'web'"):
            await act()


async def test_a_plain_end_is_reported_without_reading_the_journal(
    machine: Machine, runtime: Runtime, web: Task
) -> None:
    machine.units.end(UNIT, MainCode.EXITED, 0)
    assert (await runtime.task(WEB)).outcome is not None
    assert not {"sync", "exit_messages", "look for failed disks"} & set(machine.steps.taken)


# --- usage ---------------------------------------------------------------------------------------------------

NOTHING = Counters(bytes=0, packets=0, errors=0, drops=0)
NICS = {DeviceName("service"): Traffic(received=NOTHING, sent=NOTHING)}


async def test_what_runs_is_sampled_in_the_order_of_names_without_a_call_of_pid_1(
    machine: Machine, runtime: Runtime
) -> None:
    abc = TaskName("abc")
    busy, idle = Usage(time=1.0, processes=2), Usage(time=1.0)
    machine.usages.running = {WEB: busy, abc: idle}
    machine.networks.counted = {WEB: NICS, TaskName("ended"): NICS}
    found = await runtime.samples()
    assert list(found.items()) == [(abc, Sample(usage=idle, nics={})), (WEB, Sample(usage=busy, nics=NICS))]
    assert set(machine.steps.taken) == {"usages", "traffic"}


# --- wait ----------------------------------------------------------------------------------------------------


async def test_waiting_ends_with_the_task(machine: Machine, runtime: Runtime, web: Task) -> None:
    async with Background(runtime.wait(WEB)) as waiting:
        assert not waiting.done()
        machine.units.put(web.state._replace(frozen=True))
        await yields()
        assert not waiting.done()
        machine.units.end(UNIT, MainCode.EXITED, 7)
        task = await waiting
    assert (task.phase, outcome_of(task).exit_code) == (Phase.ENDED, 7)


async def test_waiting_for_a_task_that_is_removed_meanwhile_is_an_error(
    machine: Machine, runtime: Runtime, web: Task
) -> None:
    async with Background(runtime.wait(WEB)) as waiting:
        machine.units.vanish(UNIT)
        with pytest.raises(NoSuchTaskError, match="removed or started again before its outcome"):
            await waiting
    machine.units.put(web.state)
    async with Background(runtime.wait(WEB)) as waiting:
        machine.units.put(web.state._replace(invocation="f" * 32))
        with pytest.raises(NoSuchTaskError):  # another task of the same name
            await waiting


@pytest.mark.leaps
async def test_a_tender_that_hangs_during_the_wait_is_killed(machine: Machine, runtime: Runtime, web: Task) -> None:
    """PID 1 sends no signal for it: the wait checks every few seconds."""
    async with Background(runtime.wait(WEB)) as waiting:
        await passed(hung_tenders.HUNG_CHECK_INTERVAL_S / 2)
        machine.usages.zombies = {web.state.main_pid}
        assert machine.units.sent == []
        assert await taken(waiting) <= hung_tenders.HUNG_CHECK_INTERVAL_S + hung_tenders.HUNG_LOOK_INTERVAL_S
    assert machine.units.sent == [(UNIT, 9, True)]


@pytest.mark.leaps
async def test_a_main_thread_that_ends_a_moment_before_the_others_is_no_hung_tender(
    machine: Machine, runtime: Runtime, web: Task
) -> None:
    machine.usages.zombies = {web.state.main_pid}
    async with Background(runtime.wait(WEB)):
        await passed(hung_tenders.HUNG_LOOK_INTERVAL_S / 2)
        machine.usages.zombies = set()
        await passed(3 * hung_tenders.HUNG_CHECK_INTERVAL_S)
        assert machine.units.sent == []


# --- console -------------------------------------------------------------------------------------------------


async def read(lines: AsyncGenerator[Line, None]) -> list[str]:
    async with aclosing(lines) as entries:
        return [each.position.cursor async for each in entries]


@pytest.mark.parametrize("last, first", [(None, "ab"), (1, "b")])
async def test_following_gives_every_line_once_to_the_last_and_ends_with_the_task(
    machine: Machine, runtime: Runtime, web: Task, last: int | None, first: str
) -> None:
    machine.console.say(*map(line, "ab"))
    async with Background(read(runtime.follow(web, last=last))) as reading:
        for text in "cd":
            machine.console.say(line(text))
            await yields()
        assert not reading.done()
        machine.console.pending = [*map(line, "ef")]  # written, and not yet in the journal, when it ends
        machine.units.end(UNIT, MainCode.EXITED, 0)
        assert await reading == list(first + "cdef")


async def test_following_ends_where_the_task_is_removed(machine: Machine, runtime: Runtime, web: Task) -> None:
    async with Background(read(runtime.follow(web))) as reading:
        machine.console.say(line("a"))
        await yields()
        machine.units.vanish(UNIT)
        assert await reading == ["a"]


async def test_a_broken_bus_is_no_end_of_the_task(machine: Machine, runtime: Runtime, web: Task) -> None:
    machine.steps.errors["watch"] = HostError("the bus broke.")
    with pytest.raises(HostError, match="the bus broke"):
        await read(runtime.follow(web))


async def test_console_of_which_one_stream_fails_leaves_no_descriptor(machine: Machine, runtime: Runtime) -> None:
    machine.steps.errors["open stderr"] = HostError("journald does not answer.")
    before = len([*Path("/proc/self/fd").iterdir()])
    with pytest.raises(HostError, match="journald"):
        await runtime.open_console("solo5-task-web.scope", "")
    assert len([*Path("/proc/self/fd").iterdir()]) == before


# -- tasks are stopped, killed and removed ---------------------------------------------------------------------------


# --- stop ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("signal, timeout_s", [(2, 10.0), (15, 10.1), (2, 60.0)])
async def test_another_signal_or_a_longer_patience_than_the_units_is_ours_to_keep(
    machine: Machine, runtime: Runtime, web: Task, signal: int, timeout_s: float
) -> None:
    task = await runtime.stop(WEB, signal=signal, timeout_s=timeout_s)
    assert machine.units.sent == [(UNIT, signal, False)]
    assert f"stop {UNIT}" not in machine.steps.taken
    assert outcome_of(task).ending is Ending.STOPPED


@pytest.mark.parametrize("signal", [2, 15])
@pytest.mark.parametrize("timeout_s", [0, 0.01])
async def test_a_tender_that_ignores_the_signal_is_killed_as_requested(
    machine: Machine, runtime: Runtime, web: Task, signal: int, timeout_s: float
) -> None:
    machine.units.heeds = ()
    task = await runtime.stop(WEB, signal=signal, timeout_s=timeout_s)
    assert machine.units.sent[-1] == (UNIT, 9, True)
    assert task.state.stop_requested
    assert (outcome_of(task).ending, outcome_of(task).signal) == (Ending.STOPPED, 9)
    assert machine.units.loaded[UNIT].active is ActiveState.INACTIVE, "no failed unit"


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
            machine.units.put(web.state._replace(invocation="f" * 32))
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


@pytest.mark.parametrize("signal", [2, 15])
async def test_a_scope_that_is_stopped_is_gone_and_how_it_ended_is_not_invented(
    machine: Machine, runtime: Runtime, scope: str, signal: int
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


@pytest.mark.parametrize("call", OF_RUNNING_TASKS)
async def test_an_ended_task_can_be_neither_signalled_nor_frozen_nor_sleep(
    machine: Machine, runtime: Runtime, web: Task, call: str
) -> None:
    machine.units.end(UNIT, MainCode.EXITED, 0)
    for act in (partial(getattr(runtime, call), WEB), partial(runtime.kill, WEB, 15)):
        with pytest.raises(InvalidRequestError, match="task web has ended"):
            await act()


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


@pytest.mark.parametrize("how", ["runs", "ended", "has no unit"])
async def test_a_task_is_discarded_running_or_not_and_twice(
    machine: Machine, runtime: Runtime, web: Task, how: str
) -> None:
    if how == "ended":
        machine.units.end(UNIT, MainCode.EXITED, 1)
    elif how == "has no unit":
        machine.units.vanish(UNIT)
    await runtime.discard(WEB)
    assert f"stop {outcome_target(WEB)}" in machine.steps.taken
    assert machine.holds == (set(), set())
    assert machine.networks.released == [WEB]
    assert machine.steps.taken.index("release") < machine.steps.taken.index("free user")
    await runtime.discard(WEB)


async def test_a_declared_task_that_was_started_since_its_state_was_read_keeps_what_it_has(
    machine: Machine, runtime: Runtime, web: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop, "is_declared", lambda _: True)
    with pytest.raises(TakenError, match="task 'web' was started meanwhile"):
        await runtime.discard(WEB, over=True)
    assert WEB in machine.networks.held


async def test_outcome_of_a_task_may_be_kept_while_its_network_is_given_back(
    machine: Machine, runtime: Runtime, web: Task
) -> None:
    machine.units.end(UNIT, MainCode.EXITED, 1)
    await runtime.discard(WEB, over=True, keep=True)
    assert WEB not in machine.networks.held
    assert outcome_of(await runtime.task(WEB)).exit_code == 1
    await runtime.remove(WEB)
    assert machine.holds == (set(), set())


async def test_a_removal_that_was_interrupted_after_the_unit_can_be_repeated(
    machine: Machine, runtime: Runtime
) -> None:
    await runtime.start(WORKLOAD)
    machine.units.vanish(UNIT)
    assert machine.users.held
    await runtime.remove(WEB, force=True)
    assert not machine.users.held
    with pytest.raises(NoSuchTaskError, match="no task is named 'web'"):
        await runtime.remove(WEB, force=True)
