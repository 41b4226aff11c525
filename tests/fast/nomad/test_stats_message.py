"""Samples as Nomad's resource usage: an unknown value is unmeasured, never zero."""

import pytest

from solo5_systemd.cgroup.usage import Cpu, Memory, Usage
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.proto.base_pb2 import ClientTopology
from solo5_systemd.nomad.proto.base_pb2 import ClientTopologyCore as Core
from solo5_systemd.nomad.stats_messages import cpu_part, head, memory_part, mhz_per_core, timestamp

_Cpu, _Memory = wire.CPUUsage, wire.MemoryUsage
CPU = Cpu(total=3_000_000, user=2_000_000, system=1_000_000, throttled_periods=4, throttled=500)
THEN = Usage(time=10.0, cpu=CPU)
NOW = Usage(time=12.0, cpu=CPU._replace(total=6_000_000, user=4_000_000, system=2_000_000))


def resource_usage(before: Usage | None, now: Usage, mhz: float) -> wire.TaskResourceUsage:
    parts = memory_part(now.memory) + cpu_part(before, now, mhz)
    return wire.TaskStatsResponse.FromString(parts).stats.agg_resource_usage


def measured(usage: wire.CPUUsage | wire.MemoryUsage) -> set[int]:
    return set(usage.measured_fields)


def test_memory_is_reported_in_nomads_fields() -> None:
    memory = Memory(current=9000, peak=9500, rss=4100, cache=1000, kernel=30, swap=0)
    usage = resource_usage(None, Usage(time=1.0, memory=memory), 0).memory
    assert (usage.rss, usage.cache, usage.swap, usage.kernel_usage) == (4100, 1000, 0, 30)
    assert (usage.usage, usage.max_usage) == (9000, 9500)
    assert measured(usage) == {
        *(_Memory.RSS, _Memory.CACHE, _Memory.SWAP, _Memory.USAGE, _Memory.MAX_USAGE, _Memory.KERNEL_USAGE)
    }


def test_processor_time_is_the_share_of_one_core_since_the_sample_before() -> None:
    usage = resource_usage(THEN, NOW, 2000).cpu
    assert (usage.percent, usage.user_mode, usage.system_mode, usage.total_ticks) == (150, 100, 50, 3000)
    assert (usage.throttled_periods, usage.throttled_time) == (4, 500_000)
    assert measured(usage) == set(_Cpu.Fields.values())


@pytest.mark.parametrize(
    "before, time, mhz, absent",
    [
        (None, 12.0, 2000, {*_Cpu.Fields.values()} - {_Cpu.THROTTLED_PERIODS, _Cpu.THROTTLED_TIME}),
        (THEN, 10.0, 2000, {_Cpu.PERCENT}),
        (THEN, 9.0, 2000, {_Cpu.PERCENT}),
        (THEN, 12.0, 0, {_Cpu.TOTAL_TICKS}),
    ],
    ids=["a first sample", "no time in between", "a clock that goes back", "a core of unknown speed"],
)
def test_what_cannot_be_known_of_processor_time_is_not_measured(
    before: Usage | None, time: float, mhz: float, absent: set[int]
) -> None:
    found = measured(resource_usage(before, NOW._replace(time=time), mhz).cpu)
    assert not absent & found
    assert _Cpu.THROTTLED_TIME in found
    assert (_Cpu.PERCENT in found) is (_Cpu.PERCENT not in absent)


def test_a_counter_that_goes_back_is_no_negative_share() -> None:
    assert resource_usage(NOW, THEN._replace(time=13.0), 2000).cpu.percent == 0


def test_what_the_kernel_does_not_tell_is_not_measured() -> None:
    usage = resource_usage(Usage(time=1.0), Usage(time=2.0), 2000)
    assert (measured(usage.cpu), measured(usage.memory)) == (set(), set())
    assert usage.HasField("cpu"), "Nomad's agent dereferences it unchecked"
    assert usage.HasField("memory")


def test_the_parts_in_a_row_are_one_message() -> None:
    parts = head("id") + timestamp(7_009) + memory_part(Memory(current=9000)) + cpu_part(THEN, NOW, 2000)
    stats = wire.TaskStatsResponse.FromString(parts).stats
    assert (stats.id, stats.timestamp.seconds, stats.timestamp.nanos) == ("id", 7, 9_000_000)
    assert (stats.agg_resource_usage.memory.usage, stats.agg_resource_usage.cpu.percent) == (9000, 150)


@pytest.mark.parametrize(
    "cores, total, mhz",
    [
        ([], 0, 0),
        ([], 8000, 0),
        ([Core(base_speed=2000, max_speed=4000, guess_speed=1000)] * 2, 0, 2000),
        ([Core(max_speed=4000, guess_speed=1000), Core(guess_speed=1000)], 0, 2500),
        ([Core(base_speed=2000)] * 4, 10_000, 2500),
        ([Core()], 0, 0),
    ],
)
def test_a_core_is_as_fast_as_nomad_reckons(cores: list[Core], total: int, mhz: float) -> None:
    assert mhz_per_core(ClientTopology(cores=cores, override_total_compute=total)) == mhz
