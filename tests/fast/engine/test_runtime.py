"""The engine on in-memory backends."""

from collections.abc import Callable, Coroutine
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.fakes.backends import Machine, console_line
from tests.support.fakes.background import Background, yields
from tests.support.fakes.clock import passed, taken
from tests.support.fakes.images import SHA256
from tests.support.fakes.tasks import outcome_of

from solo5_systemd.base.errors import HostError, NoSuchTaskError
from solo5_systemd.base.names import DeviceName, TaskName
from solo5_systemd.cgroup.usage import Usage
from solo5_systemd.engine import stop
from solo5_systemd.engine.runtime import Runtime
from solo5_systemd.engine.task import Phase, Sample, Task
from solo5_systemd.network.tap_counters import Counters, Traffic
from solo5_systemd.task.workload import Workload
from solo5_systemd.unit.state import MainCode

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


@pytest.mark.parametrize(
    "call",
    [
        lambda runtime: runtime.task(WEB),
        lambda runtime: runtime.stop(WEB),
        lambda runtime: runtime.kill(WEB, 15),
        lambda runtime: runtime.wait(WEB),
        lambda runtime: runtime.remove(WEB),
        lambda runtime: runtime.restart(WEB),
        lambda runtime: runtime.freeze(WEB),
        lambda runtime: runtime.thaw(WEB),
        lambda runtime: runtime.sleep(WEB),
        lambda runtime: runtime.wake(WEB),
    ],
)
async def test_a_name_that_no_task_has_is_an_error_of_its_own(
    runtime: Runtime, call: Callable[[Runtime], Coroutine[object, object, object]]
) -> None:
    with pytest.raises(NoSuchTaskError, match="no task is named 'web'"):
        await call(runtime)


async def test_a_hung_tender_is_seen(machine: Machine, runtime: Runtime, web: Task) -> None:
    machine.usages.zombies = {web.state.main_pid}
    assert (await runtime.task(WEB)).phase is Phase.HUNG


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
        machine.units.put(replace(web.state, frozen=True))
        await yields()
        assert not waiting.done()
        machine.units.end(UNIT, MainCode.EXITED, 7)
        task = await waiting
    assert (task.phase, outcome_of(task).exit_code) == (Phase.ENDED, 7)


async def test_waiting_for_an_ended_task_does_not_wait(machine: Machine, runtime: Runtime, web: Task) -> None:
    machine.units.end(UNIT, MainCode.EXITED, 0)
    assert (await runtime.wait(WEB)).phase is Phase.ENDED


async def test_waiting_for_a_task_that_is_removed_meanwhile_says_so(
    machine: Machine, runtime: Runtime, web: Task
) -> None:
    async with Background(runtime.wait(WEB)) as waiting:
        machine.units.vanish(UNIT)
        with pytest.raises(NoSuchTaskError, match="removed before its outcome could be read"):
            await waiting
    machine.units.put(web.state)
    async with Background(runtime.wait(WEB)) as waiting:
        machine.units.put(replace(web.state, invocation="f" * 32))
        with pytest.raises(NoSuchTaskError):  # another task of the same name
            await waiting


@pytest.mark.leaps
async def test_a_tender_that_hangs_during_the_wait_is_killed(machine: Machine, runtime: Runtime, web: Task) -> None:
    """PID 1 sends no signal for it: the wait checks every few seconds."""
    async with Background(runtime.wait(WEB)) as waiting:
        await passed(stop.HUNG_CHECK_INTERVAL_S / 2)
        machine.usages.zombies = {web.state.main_pid}
        assert machine.units.sent == []
        assert await taken(waiting) <= stop.HUNG_CHECK_INTERVAL_S + stop.HUNG_LOOK_INTERVAL_S
    assert machine.units.sent == [(UNIT, 9, True)]


@pytest.mark.leaps
async def test_a_main_thread_that_ends_a_moment_before_the_others_is_no_hung_tender(
    machine: Machine, runtime: Runtime, web: Task
) -> None:
    machine.usages.zombies = {web.state.main_pid}
    async with Background(runtime.wait(WEB)):
        await passed(stop.HUNG_LOOK_INTERVAL_S / 2)
        machine.usages.zombies = set()
        await passed(3 * stop.HUNG_CHECK_INTERVAL_S)
        assert machine.units.sent == []


# --- console -------------------------------------------------------------------------------------------------


async def read(runtime: Runtime, task: Task, *, follow: bool = False, last: int | None = None) -> list[str]:
    async with aclosing(runtime.console(task, follow=follow, last=last)) as entries:
        return [each.position.cursor async for each in entries]


@pytest.mark.parametrize("last, lines", [(None, "abc"), (2, "bc"), (0, ""), (9, "abc")])
async def test_a_console_is_read_from_its_beginning_or_its_last_lines(
    machine: Machine, runtime: Runtime, web: Task, last: int | None, lines: str
) -> None:
    machine.console.say(*map(console_line, "abc"))
    assert await read(runtime, web, last=last) == list(lines)


@pytest.mark.parametrize("last, first", [(None, "ab"), (1, "b")])
async def test_following_gives_every_line_once_to_the_last_and_ends_with_the_task(
    machine: Machine, runtime: Runtime, web: Task, last: int | None, first: str
) -> None:
    machine.console.say(*map(console_line, "ab"))
    async with Background(read(runtime, web, follow=True, last=last)) as reading:
        for line in "cd":
            machine.console.say(console_line(line))
            await yields()
        assert not reading.done()
        machine.console.pending = [*map(console_line, "ef")]  # written, and not yet in the journal, when it ends
        machine.units.end(UNIT, MainCode.EXITED, 0)
        assert await reading == list(first + "cdef")


async def test_following_ends_where_the_task_is_removed(machine: Machine, runtime: Runtime, web: Task) -> None:
    async with Background(read(runtime, web, follow=True)) as reading:
        machine.console.say(console_line("a"))
        await yields()
        machine.units.vanish(UNIT)
        assert await reading == ["a"]


async def test_a_broken_bus_is_no_end_of_the_task(machine: Machine, runtime: Runtime, web: Task) -> None:
    machine.steps.errors["watch"] = HostError("the bus broke.")
    with pytest.raises(HostError, match="the bus broke"):
        await read(runtime, web, follow=True)


async def test_a_follower_may_leave_at_any_line(machine: Machine, runtime: Runtime, web: Task) -> None:
    machine.console.say(*map(console_line, "abc"))
    async with aclosing(runtime.console(web, follow=True)) as entries:
        assert (await anext(entries)).position.cursor == "a"


async def test_console_of_which_one_stream_fails_leaves_no_descriptor(machine: Machine, runtime: Runtime) -> None:
    machine.steps.errors["open stderr"] = HostError("journald does not answer.")
    before = len([*Path("/proc/self/fd").iterdir()])
    with pytest.raises(HostError, match="journald"):
        await runtime.open_console("solo5-task-web.scope", "")
    assert len([*Path("/proc/self/fd").iterdir()]) == before
