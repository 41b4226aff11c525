"""The story of a task, told by the engine on a machine in memory."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from dataclasses import replace

import pytest
from tests.fakes.backends import Machine, entry
from tests.fakes.images import SHA256

from solo5_systemd.errors import HostError, InvalidRequestError, NoSuchTaskError, TakenError
from solo5_systemd.journal.export import Entry, Stream
from solo5_systemd.names import TaskName
from solo5_systemd.runtime import Runtime
from solo5_systemd.task import Phase, Task
from solo5_systemd.unit.outcome import Ending
from solo5_systemd.unit.state import ActiveState, MainCode
from solo5_systemd.workload import StopSignal, UnitKind, Workload

WEB = TaskName("web")
UNIT = "solo5-task-web.service"
SCOPE = "solo5-task-web.scope"
WORKLOAD = Workload(name=WEB, image="/srv/app")


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def runtime(machine: Machine) -> Runtime:
    return Runtime(machine.backends)


@pytest.fixture
async def web(runtime: Runtime) -> Task:
    return await runtime.start(WORKLOAD)


async def yields(times: int = 50) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


class Background:
    """Work that goes on while the test goes on."""

    def __init__(self, work: Coroutine[object, object, object]) -> None:
        self.task = asyncio.ensure_future(work)

    async def __aenter__(self) -> "asyncio.Future[object]":
        await yields()
        return self.task

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


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


@pytest.mark.parametrize(
    "call",
    [
        lambda runtime: runtime.task(WEB),
        lambda runtime: runtime.stop(WEB),
        lambda runtime: runtime.kill(WEB, 15),
        lambda runtime: runtime.wait(WEB),
        lambda runtime: runtime.remove(WEB),
        lambda runtime: runtime.freeze(WEB),
        lambda runtime: runtime.thaw(WEB),
        lambda runtime: runtime.usage(WEB),
    ],
)
async def test_a_name_that_no_task_has_is_an_error_of_its_own(
    runtime: Runtime, call: Callable[[Runtime], Coroutine[object, object, object]]
) -> None:
    with pytest.raises(NoSuchTaskError, match="no task is named 'web'"):
        await call(runtime)


async def test_a_hung_tender_is_seen(machine: Machine, runtime: Runtime, web: Task) -> None:
    machine.usages.zombies = {web.pid}
    assert (await runtime.task(WEB)).phase is Phase.HUNG


async def test_usage_is_that_of_the_tasks_cgroup(machine: Machine, runtime: Runtime, web: Task) -> None:
    assert await runtime.usage(WEB) is not None
    assert machine.steps.taken[-1] == f"usage {web.control_group}"
    machine.units.put(replace(web.state, control_group=""))
    assert await runtime.usage(WEB) is None


@pytest.mark.parametrize(
    "lines, ending",
    [
        ([entry("Hello"), entry("solo5-hvt: Exiting on signal 15", Stream.STDERR)], Ending.STOPPED),
        ([entry("solo5-hvt: Exiting on signal 15")], Ending.EXITED),
        ([], Ending.EXITED),
    ],
)
async def test_an_ambiguous_end_is_told_by_the_consoles_last_words(
    machine: Machine, runtime: Runtime, web: Task, lines: list[Entry], ending: Ending
) -> None:
    machine.console.on_the_way = lines
    machine.units.end(UNIT, MainCode.EXITED, 1)
    task = await runtime.task(WEB)
    assert task.outcome is not None
    assert task.outcome.ending is ending


async def test_a_plain_end_is_told_without_reading_the_console(machine: Machine, runtime: Runtime, web: Task) -> None:
    machine.units.end(UNIT, MainCode.EXITED, 3)
    assert (await runtime.task(WEB)).outcome is not None
    assert not {"sync", "read console"} & set(machine.steps.taken)


# --- wait ----------------------------------------------------------------------------------------------------


async def test_waiting_ends_with_the_task(machine: Machine, runtime: Runtime, web: Task) -> None:
    async with Background(runtime.wait(WEB)) as waiting:
        assert not waiting.done()
        machine.units.put(replace(web.state, frozen=True))
        await yields()
        assert not waiting.done()
        machine.units.end(UNIT, MainCode.EXITED, 7)
        task = await waiting
    assert isinstance(task, Task)
    assert task.outcome is not None
    assert (task.phase, task.outcome.exit_code) == (Phase.ENDED, 7)


async def test_waiting_for_an_ended_task_does_not_wait(machine: Machine, runtime: Runtime, web: Task) -> None:
    machine.units.end(UNIT, MainCode.EXITED, 0)
    assert (await runtime.wait(WEB)).phase is Phase.ENDED


async def test_waiting_for_a_task_that_is_removed_meanwhile_says_so(
    machine: Machine, runtime: Runtime, web: Task
) -> None:
    async with Background(runtime.wait(WEB)) as waiting:
        machine.units.vanish(UNIT)
        with pytest.raises(NoSuchTaskError, match="removed before its end could be read"):
            await waiting


async def test_another_task_of_the_same_name_is_not_the_one_that_was_waited_for(
    machine: Machine, runtime: Runtime, web: Task
) -> None:
    async with Background(runtime.wait(WEB)) as waiting:
        machine.units.put(replace(web.state, invocation="f" * 32))
        with pytest.raises(NoSuchTaskError):
            await waiting


async def test_who_waits_for_a_hung_tender_ends_it(machine: Machine, runtime: Runtime, web: Task) -> None:
    machine.usages.zombies = {web.pid}
    task = await runtime.wait(WEB)
    assert machine.units.sent == [(UNIT, 9, True)]
    assert task.outcome is not None
    assert task.outcome.ending is Ending.KILLED


# --- stop ----------------------------------------------------------------------------------------------------


async def test_a_stop_is_systemds_own(machine: Machine, runtime: Runtime, web: Task) -> None:
    task = await runtime.stop(WEB)
    assert task.outcome is not None
    assert (task.phase, task.outcome.ending, machine.units.sent) == (Phase.ENDED, Ending.STOPPED, [])


@pytest.mark.parametrize(
    "signal, patience, number",
    [(StopSignal.INT, 10.0, 2), (StopSignal.TERM, 10.1, 15), (StopSignal.INT, 60.0, 2)],
)
async def test_another_signal_or_a_longer_patience_than_the_units_is_ours_to_keep(
    machine: Machine, runtime: Runtime, web: Task, signal: StopSignal, patience: float, number: int
) -> None:
    task = await runtime.stop(WEB, signal=signal, patience=patience)
    assert machine.units.sent == [(UNIT, number, False)]
    assert f"stop {UNIT}" not in machine.steps.taken
    assert task.outcome is not None
    assert task.outcome.ending is Ending.STOPPED


@pytest.mark.parametrize("signal", StopSignal)
@pytest.mark.parametrize("patience", [0, 0.01])
async def test_who_does_not_listen_is_killed_and_that_was_asked_for(
    machine: Machine, runtime: Runtime, web: Task, signal: StopSignal, patience: float
) -> None:
    machine.units.heeds = ()
    task = await runtime.stop(WEB, signal=signal, patience=patience)
    assert machine.units.sent[-1] == (UNIT, 9, True)
    assert task.state.asked_to_stop
    assert task.outcome is not None
    assert (task.outcome.ending, task.outcome.signal) == (Ending.STOPPED, 9)


async def test_a_hung_tender_is_killed_at_once(machine: Machine, runtime: Runtime, web: Task) -> None:
    machine.usages.zombies = {web.pid}
    machine.units.heeds = ()
    task = await runtime.stop(WEB, patience=1000)
    assert machine.units.sent == [(UNIT, 9, True)]
    assert task.outcome is not None
    assert task.outcome.ending is Ending.STOPPED


async def test_a_frozen_task_is_thawed_to_hear_it(machine: Machine, runtime: Runtime, web: Task) -> None:
    await runtime.freeze(WEB)
    assert (await runtime.task(WEB)).phase is Phase.FROZEN
    await runtime.stop(WEB)
    assert machine.steps.taken.index("thaw") < machine.steps.taken.index(f"stop {UNIT}")


async def test_stopping_an_ended_task_tells_how_it_ended(machine: Machine, runtime: Runtime, web: Task) -> None:
    machine.units.end(UNIT, MainCode.EXITED, 3)
    task = await runtime.stop(WEB)
    assert task.outcome is not None
    assert (task.outcome.exit_code, machine.units.sent) == (3, [])
    assert f"stop {UNIT}" not in machine.steps.taken


async def test_a_stop_that_was_asked_for_is_no_failed_unit(machine: Machine, runtime: Runtime, web: Task) -> None:
    machine.units.heeds = ()
    await runtime.stop(WEB, patience=0)
    assert machine.units.loaded[UNIT].active is ActiveState.INACTIVE


async def test_an_end_of_its_own_during_a_stop_stays_a_failure(machine: Machine, runtime: Runtime, web: Task) -> None:
    machine.units.heeds = ()
    async with Background(runtime.stop(WEB)) as stopping:
        machine.units.end(UNIT, MainCode.KILLED, 11)
        task = await stopping
    assert isinstance(task, Task)
    assert task.outcome is not None
    assert task.outcome.ending is Ending.TRAPPED
    assert machine.units.loaded[UNIT].active is ActiveState.FAILED


async def test_a_stop_that_is_cancelled_leaves_the_rest_to_systemd(
    machine: Machine, runtime: Runtime, web: Task
) -> None:
    machine.units.heeds = ()
    async with Background(runtime.stop(WEB)):
        pass
    assert machine.units.loaded[UNIT].active is ActiveState.DEACTIVATING
    assert machine.units.sent == []


async def test_a_task_that_is_removed_while_it_is_stopped_has_ended_unknown_how(
    machine: Machine, runtime: Runtime, web: Task
) -> None:
    machine.units.heeds = ()
    async with Background(runtime.stop(WEB)) as stopping:
        machine.units.vanish(UNIT)
        task = await stopping
    assert isinstance(task, Task)
    assert task.outcome is not None
    assert (task.phase, task.outcome.ending) == (Phase.ENDED, Ending.UNKNOWN)


@pytest.fixture
async def scope(machine: Machine, runtime: Runtime) -> str:
    await runtime.start_scope(replace(WORKLOAD, kind=UnitKind.SCOPE), 4711)
    return SCOPE


@pytest.mark.parametrize("signal", StopSignal)
async def test_a_scope_that_is_stopped_is_gone_and_how_it_ended_is_not_invented(
    machine: Machine, runtime: Runtime, scope: str, signal: StopSignal
) -> None:
    task = await runtime.stop(WEB, signal=signal)
    assert task.outcome is not None
    assert (task.phase, task.outcome.ending) == (Phase.ENDED, Ending.UNKNOWN)
    assert machine.units.loaded == {}


@pytest.mark.parametrize("number", [2, 15, 9])
async def test_a_scope_has_no_main_process_and_its_signals_go_to_all(
    machine: Machine, runtime: Runtime, scope: str, number: int
) -> None:
    await runtime.kill(WEB, number)
    assert machine.units.sent == [(SCOPE, number, True)]


# --- kill, freeze, remove, collect ---------------------------------------------------------------------------


@pytest.mark.parametrize("number, everyone", [(2, False), (15, False), (9, True)])
async def test_a_signal_goes_to_the_tender_and_the_last_one_to_all(
    machine: Machine, runtime: Runtime, web: Task, number: int, everyone: bool
) -> None:
    await runtime.kill(WEB, number)
    assert machine.units.sent == [(UNIT, number, everyone)]


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
    ],
)
async def test_an_ended_task_can_be_neither_signalled_nor_frozen(
    machine: Machine, runtime: Runtime, web: Task, call: Callable[[Runtime], Coroutine[object, object, object]]
) -> None:
    machine.units.end(UNIT, MainCode.EXITED, 0)
    with pytest.raises(InvalidRequestError, match="task web has ended"):
        await call(runtime)


async def test_a_task_is_frozen_and_thawed(machine: Machine, runtime: Runtime, web: Task) -> None:
    await runtime.freeze(WEB)
    assert machine.units.loaded[UNIT].frozen
    await runtime.thaw(WEB)
    assert not machine.units.loaded[UNIT].frozen


@pytest.mark.parametrize("status", [0, 1], ids=["well", "badly"])
async def test_an_ended_task_is_removed_with_all_that_it_held(
    machine: Machine, runtime: Runtime, web: Task, status: int
) -> None:
    machine.units.end(UNIT, MainCode.EXITED, status)
    await runtime.remove(WEB)
    assert machine.holds == (set(), set())


async def test_a_running_task_is_removed_only_by_force(machine: Machine, runtime: Runtime, web: Task) -> None:
    with pytest.raises(TakenError, match="task web is running.*solo5ctl rm --force web"):
        await runtime.remove(WEB)
    assert machine.holds == ({UNIT}, {WEB})
    await runtime.remove(WEB, force=True)
    assert machine.holds == (set(), set())


async def test_a_scope_is_removed_by_force(machine: Machine, runtime: Runtime, scope: str) -> None:
    await runtime.remove(WEB, force=True)
    assert machine.holds == (set(), set())


async def test_a_collection_keeps_what_any_task_refers_to(machine: Machine, runtime: Runtime, web: Task) -> None:
    machine.units.end(UNIT, MainCode.EXITED, 0)
    assert await runtime.collect(dry_run=True) == ("link s5-dead", f"image {'ab' * 32}")
    assert machine.images.collected == frozenset({SHA256})


async def test_networks_are_those_of_the_network_service(machine: Machine, runtime: Runtime) -> None:
    assert await runtime.networks() == ()
    assert machine.steps.taken == ["networks"]


# --- console -------------------------------------------------------------------------------------------------


async def read(runtime: Runtime, task: Task, *, follow: bool = False, last: int | None = None) -> list[str]:
    async with aclosing(runtime.console(task, follow=follow, last=last)) as entries:
        return [each.cursor async for each in entries]


@pytest.mark.parametrize("last, lines", [(None, "abc"), (2, "bc"), (0, ""), (9, "abc")])
async def test_a_console_is_read_from_its_beginning_or_its_last_lines(
    machine: Machine, runtime: Runtime, web: Task, last: int | None, lines: str
) -> None:
    machine.console.say(*map(entry, "abc"))
    assert await read(runtime, web, last=last) == list(lines)


@pytest.mark.parametrize("last, first", [(None, "ab"), (1, "b")])
async def test_following_gives_every_line_once_to_the_last_and_ends_with_the_task(
    machine: Machine, runtime: Runtime, web: Task, last: int | None, first: str
) -> None:
    machine.console.say(*map(entry, "ab"))
    async with Background(read(runtime, web, follow=True, last=last)) as reading:
        for line in "cd":
            machine.console.say(entry(line))
            await yields()
        assert not reading.done()
        machine.console.on_the_way = [entry("e"), entry("f")]  # written, and not yet in the journal, when it ends
        machine.units.end(UNIT, MainCode.EXITED, 0)
        assert await reading == list(first + "cdef")


async def test_lines_and_end_at_the_same_moment_are_in_order_and_complete(
    machine: Machine, runtime: Runtime, web: Task
) -> None:
    async with Background(read(runtime, web, follow=True)) as reading:
        machine.console.say(*map(entry, "abc"))
        machine.console.on_the_way = [entry("d")]
        machine.units.end(UNIT, MainCode.EXITED, 0)
        assert await reading == list("abcd")


async def test_following_an_ended_task_reads_it_and_ends(machine: Machine, runtime: Runtime, web: Task) -> None:
    machine.console.say(*map(entry, "abc"))
    machine.units.end(UNIT, MainCode.EXITED, 0)
    assert await read(runtime, web, follow=True) == list("abc")


async def test_following_ends_where_the_task_is_removed(machine: Machine, runtime: Runtime, web: Task) -> None:
    async with Background(read(runtime, web, follow=True)) as reading:
        machine.console.say(entry("a"))
        await yields()
        machine.units.vanish(UNIT)
        assert await reading == ["a"]


async def test_a_reader_that_dies_is_no_end_of_the_task(machine: Machine, runtime: Runtime, web: Task) -> None:
    machine.console.reader_dies = True
    with pytest.raises(HostError, match="the journal's reader ended before task web did"):
        await read(runtime, web, follow=True)


async def test_a_reader_that_dies_with_the_task_is_no_error(machine: Machine, runtime: Runtime, web: Task) -> None:
    machine.console.reader_dies = True
    machine.console.say(*map(entry, "abc"))
    machine.units.end(UNIT, MainCode.EXITED, 0)
    assert await read(runtime, web, follow=True) == list("abc")


async def test_a_broken_bus_is_no_end_of_the_task(machine: Machine, runtime: Runtime, web: Task) -> None:
    machine.steps.errors["changes"] = HostError("the bus broke.")
    with pytest.raises(HostError, match="the bus broke"):
        await read(runtime, web, follow=True)


async def test_a_follower_may_leave_at_any_line(machine: Machine, runtime: Runtime, web: Task) -> None:
    machine.console.say(*map(entry, "abc"))
    async with aclosing(runtime.console(web, follow=True)) as entries:
        assert (await anext(entries)).cursor == "a"


async def test_a_follower_may_be_cancelled_while_it_waits(machine: Machine, runtime: Runtime, web: Task) -> None:
    machine.console.say(entry("a"))
    async with Background(read(runtime, web, follow=True)) as reading:
        assert not reading.done()
    assert reading.cancelled()
