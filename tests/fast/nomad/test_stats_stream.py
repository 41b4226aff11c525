"""The stream of a task's statistics: it ends with the task, and respects `stats_interval`; the ticks of all streams."""

import asyncio
from functools import partial

import pytest
from google.protobuf.duration_pb2 import Duration
from tests.fast.nomad.agent import Agent, agent_of_a_task
from tests.fast.nomad.values import TASK_ID, UNIT, task_config
from tests.support.fakes.backends import Machine
from tests.support.fakes.background import Background
from tests.support.fakes.clock import passed

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
from solo5_systemd.nomad.stats_messages import mhz_per_core
from solo5_systemd.unit.state import MainCode

pytestmark = pytest.mark.leaps

QUICK = PluginConfig(stats_interval=0.001)
REQUEST = wire.TaskStatsRequest(task_id=TASK_ID, collection_interval=Duration(nanos=1_000_000))


async def collected(nomad: Agent) -> list[wire.TaskStatsResponse]:
    return [wire.TaskStatsResponse.FromString(sample) async for sample in nomad.driver.task_stats(REQUEST)]


async def test_samples_come_at_once_and_end_with_the_task(machine: Machine, nomad: Agent) -> None:
    nomad.base.config = QUICK
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


async def test_an_idle_guest_costs_no_message(nomad: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[str]()

    def counted(part: str, *_: object) -> bytes:
        made.append(part)
        return b""

    for part in ("memory_part", "cpu_part"):
        monkeypatch.setattr(stats_messages, part, partial(counted, part))
    nomad.base.config = QUICK
    await nomad.start(task_config())
    async with Background(collected(nomad)):
        await passed(0.05)
    assert made == ["memory_part", "cpu_part", "cpu_part"], "no share, and then a share of 0"


async def test_a_cgroup_that_is_gone_has_no_sample(machine: Machine, nomad: Agent) -> None:
    machine.usages.removed.add(f"/solo5.slice/{UNIT}")
    nomad.base.config = QUICK
    await nomad.start(task_config())
    async with Background(collected(nomad)) as collecting:
        await passed(0.05)
        machine.units.end(UNIT, MainCode.EXITED, 0)
        assert await collecting == []
    assert machine.steps.taken.count(f"usage /solo5.slice/{UNIT}") >= 48


async def test_samples_are_no_closer_than_the_operator_wants(machine: Machine, nomad: Agent) -> None:
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


async def test_nomads_topology_gives_the_speed_of_a_core(nomad: Agent) -> None:
    topology = ClientTopology(cores=[ClientTopologyCore(base_speed=2000)] * 4)
    config = NomadConfig(driver=NomadDriverConfig(Topology=topology))
    await nomad.base.set_config(SetConfigRequest(nomad_config=config))
    await nomad.configure()
    assert mhz_per_core(nomad.base.topology) == 2000


async def waiting(beats: Ticker, *comings: float, interval: float = 1.0) -> dict[float, float]:
    """Wait for a tick at each of these times; return when each has it."""
    loop = asyncio.get_running_loop()

    async def wait(coming: float) -> float:
        await passed(coming)
        await beats.next(interval, lambda: None)
        return loop.time()

    return dict(zip(comings, await asyncio.gather(*map(wait, comings)), strict=True))


async def test_all_who_wait_are_woken_on_the_same_beat_unless_it_is_very_near() -> None:
    assert await waiting(Ticker(), 0.0, 0.1, 0.4, 0.6) == {0.0: 1.0, 0.1: 1.0, 0.4: 1.0, 0.6: 2.0}


async def test_each_interval_has_beats_of_its_own() -> None:
    beats = Ticker()
    seconds, minutes = await asyncio.gather(waiting(beats, 59.0), waiting(beats, 59.0, interval=60.0))
    assert (seconds, minutes) == ({59.0: 60.0}, {59.0: 120.0})


async def test_a_deed_that_fails_fails_for_who_waits_for_it_and_that_of_one_who_has_gone_is_not_done() -> None:
    beats, seen = Ticker(), list[str]()
    async with Background(beats.next(1.0, partial(seen.append, "gone"))):
        await asyncio.sleep(0)
    waits = (beats.next(1.0, lambda: 1 // 0), beats.next(1.0, partial(seen.append, "there")))
    failure, _ = await asyncio.gather(*waits, return_exceptions=True)
    assert (type(failure), seen) == (ZeroDivisionError, ["there"])
