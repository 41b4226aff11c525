"""The stream of a task's statistics: it ends with the task, and respects `stats_interval`; the ticks of all streams."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial

import pytest
from google.protobuf.duration_pb2 import Duration
from tests.fast.nomad.agent import Agent, agent, agent_of_a_task
from tests.fast.nomad.values import TASK_ID, task_config
from tests.support.fakes.backends import Machine
from tests.support.fakes.background import Background
from tests.support.fakes.clock import passed

from solo5_systemd.base.names import task_service
from solo5_systemd.nomad import stats_messages
from solo5_systemd.nomad.plugin_config import PluginConfig
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.proto.base_pb2 import (
    ClientTopology,
    ClientTopologyCore,
    NomadConfig,
    NomadDriverConfig,
    SetConfigRequest,
)
from solo5_systemd.nomad.stats import Ticker
from solo5_systemd.nomad.workload import name_of
from solo5_systemd.unit.state import MainCode

pytestmark = pytest.mark.leaps

UNIT = task_service(name_of(TASK_ID))
QUICK = PluginConfig(stats_interval=0.001)
REQUEST = wire.TaskStatsRequest(task_id=TASK_ID, collection_interval=Duration(nanos=1_000_000))


async def collected(nomad: Agent) -> list[wire.TaskStatsResponse]:
    return [wire.TaskStatsResponse.FromString(sample) async for sample in nomad.driver.task_stats(REQUEST)]


async def test_samples_come_at_once_and_end_with_the_task(machine: Machine) -> None:
    async with agent() as nomad:
        nomad.driver.session.config = QUICK
        await nomad.start(task_config())
        async with Background(collected(nomad)) as collecting:
            await passed(0.05)
            assert not collecting.done()
            machine.units.end(UNIT, MainCode.EXITED, 0)
            samples = await collecting
    assert 48 <= len(samples) <= 52, "one for each millisecond"
    assert {sample.stats.id for sample in samples} == {TASK_ID}
    assert all(sample.stats.HasField("agg_resource_usage") for sample in samples)
    assert all(sample.stats.timestamp.seconds for sample in samples)
    assert machine.steps.taken.count(f"metered /solo5.slice/{UNIT}") == 1


async def test_an_idle_guest_costs_no_message(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[str]()

    def counted(part: str, *_: object) -> bytes:
        made.append(part)
        return b""

    for part in ("memory_part", "cpu_part"):
        monkeypatch.setattr(stats_messages, part, partial(counted, part))
    async with agent() as nomad:
        nomad.driver.session.config = QUICK
        await nomad.start(task_config())
        async with Background(collected(nomad)):
            await passed(0.05)
    assert made == ["memory_part", "cpu_part", "cpu_part"], "no share, and then a share of 0"


async def test_a_cgroup_that_is_gone_has_no_sample(machine: Machine) -> None:
    machine.usages.removed.add(f"/solo5.slice/{UNIT}")
    async with agent() as nomad:
        nomad.driver.session.config = QUICK
        await nomad.start(task_config())
        async with Background(collected(nomad)) as collecting:
            await passed(0.05)
            machine.units.end(UNIT, MainCode.EXITED, 0)
            assert await collecting == []
    assert machine.steps.taken.count(f"usage /solo5.slice/{UNIT}") >= 48


async def test_samples_are_no_closer_than_the_operator_wants(machine: Machine) -> None:
    async with agent() as nomad:
        await nomad.configure(stats_interval="1h")
        await nomad.start(task_config())
        async with Background(collected(nomad)):
            await passed(1799)
            assert machine.steps.taken.count(f"usage /solo5.slice/{UNIT}") == 1
            await passed(4 * 3600)
    assert machine.steps.taken.count(f"usage /solo5.slice/{UNIT}") == 5


async def test_statistics_need_no_call_of_pid_1(machine: Machine) -> None:
    async with agent_of_a_task() as nomad:
        before = len(machine.steps.taken)
        await anext(nomad.driver.task_stats(REQUEST))
        assert set(machine.steps.taken[before:]) <= {f"usage /solo5.slice/{UNIT}", "watch", "stalled", "state"}


async def test_nomads_topology_gives_the_speed_of_a_core(machine: Machine) -> None:
    async with agent() as nomad:
        topology = ClientTopology(cores=[ClientTopologyCore(base_speed=2000)] * 4)
        config = NomadConfig(driver=NomadDriverConfig(Topology=topology))
        await nomad.driver.set_config(SetConfigRequest(nomad_config=config))
        await nomad.configure()
        assert nomad.driver._mhz_per_core == 2000


class Clock(asyncio.SelectorEventLoop):
    """An event loop whose clock is set by the test."""

    now = 100.0

    def time(self) -> float:
        return self.now


def on_clock(story: Callable[[Clock], Coroutine[None, None, None]]) -> Callable[[], None]:
    def test() -> None:
        loop = Clock()
        try:
            loop.run_until_complete(story(loop))
        finally:
            loop.close()

    return test


async def waiting(
    beats: Ticker, loop: Clock, *comings: float, interval: float = 1.0
) -> dict[float, asyncio.Task[None]]:
    tasks = {}
    for loop.now in comings:
        tasks[loop.now] = loop.create_task(beats.next(interval, lambda: None))
        await asyncio.sleep(0)
    return tasks


async def woken(loop: Clock, tasks: dict[float, asyncio.Task[None]], now: float) -> set[float]:
    loop.now = now
    for _ in range(4):
        await asyncio.sleep(0)
    return {coming for coming, task in tasks.items() if task.done()}


@on_clock
async def test_all_who_wait_are_woken_on_the_same_beat_unless_it_is_very_near(loop: Clock) -> None:
    beats = Ticker()
    tasks = await waiting(beats, loop, 100.0, 100.1, 100.4, 100.6)
    assert await woken(loop, tasks, 100.9) == set()
    assert await woken(loop, tasks, 101.0) == {100.0, 100.1, 100.4}
    assert await woken(loop, tasks, 101.9) == {100.0, 100.1, 100.4}
    assert await woken(loop, tasks, 102.0) == set(tasks)


@on_clock
async def test_a_deed_that_fails_fails_for_who_waits_for_it(loop: Clock) -> None:
    beats = Ticker()
    tasks = [loop.create_task(beats.next(1.0, deed)) for deed in (lambda: 1 // 0, lambda: 7)]
    await asyncio.sleep(0)
    loop.now = 101.0
    failure, fine = await asyncio.gather(*tasks, return_exceptions=True)
    assert (type(failure), fine) == (ZeroDivisionError, 7)


@on_clock
async def test_each_interval_has_beats_of_its_own(loop: Clock) -> None:
    beats = Ticker()
    seconds, minutes = await waiting(beats, loop, 119.0), await waiting(beats, loop, 119.0, interval=60.0)
    assert (await woken(loop, seconds, 120.0), await woken(loop, minutes, 120.0)) == ({119.0}, set())
    assert await woken(loop, minutes, 180.0) == {119.0}


@on_clock
async def test_the_deed_of_one_who_has_gone_is_not_done(loop: Clock) -> None:
    beats, seen = Ticker(), list[str]()
    gone, there = (loop.create_task(beats.next(1.0, partial(seen.append, name))) for name in ("gone", "there"))
    await asyncio.sleep(0)
    gone.cancel()
    loop.now = 101.0
    await there
    assert seen == ["there"]
