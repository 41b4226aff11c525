"""Samples of a cgroup as Nomad's resource usage. A value that the kernel does not provide is unmeasured, never zero.

A sample is a TaskStatsResponse in parts, each serialised by itself: protobuf merges the messages of concatenated bytes
(its encoding, "Last One Wins"). So a part that has not changed is not made again.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from solo5_systemd.cgroup.usage import Cpu, Memory, Usage, share
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.proto.base_pb2 import ClientTopology

_Fields: TypeAlias = Sequence[tuple[str, Any]]


def _fields(message: Any, names: str) -> _Fields:
    """Return each field by its name, and by its value in `measured_fields`."""
    return [(name, message.Fields.Value(name.upper())) for name in names.split()]


_MEMORY = _fields(wire.MemoryUsage, "rss cache swap usage max_usage kernel_usage")
"""KERNEL_MAX_USAGE exists in cgroup v1 only."""

_CPU = _fields(wire.CPUUsage, "throttled_periods throttled_time system_mode user_mode percent total_ticks")


def mhz_per_core(topology: ClientTopology) -> float:
    """Return the MHz of one core as Nomad computes it (client/lib/numalib, cpustats); 0: unknown."""
    if not topology.cores:
        return 0.0
    total = topology.override_total_compute or sum(
        core.base_speed or core.max_speed or core.guess_speed for core in topology.cores
    )
    return total / len(topology.cores)


def head(task_id: str) -> bytes:
    """Return the part of a sample that names its task."""
    return wire.TaskStatsResponse(stats=wire.TaskStats(id=task_id)).SerializeToString()


@lru_cache(maxsize=1)
def timestamp(milliseconds: int) -> bytes:
    """Return the part with the time since the epoch. Most samples of a tick have the one of the sample before."""
    part = wire.TaskStatsResponse()
    part.stats.timestamp.FromMilliseconds(milliseconds)
    return part.SerializeToString()


def memory_part(memory: Memory) -> bytes:
    """Return the part with the usage of memory."""
    values = (memory.rss, memory.cache, memory.swap, memory.current, memory.peak, memory.kernel)
    return _part("memory", _MEMORY, values)


def cpu_part(before: Usage | None, now: Usage, mhz: float) -> bytes:
    """Return the part with the usage of CPU time; without a sample `before`, shares are unmeasured.

    `mhz`: of one core; 0: unknown.
    """
    cpu, then, window = now.cpu, Cpu(), 0.0
    if before is not None and now.time > before.time:
        then, window = before.cpu, (now.time - before.time) * 1e6
    percent = share(then.total, cpu.total, window)
    values = (
        cpu.throttled_periods,
        None if cpu.throttled is None else cpu.throttled * 1000,  # in nanoseconds
        share(then.system, cpu.system, window),
        share(then.user, cpu.user, window),
        percent,
        percent * mhz / 100 if percent is not None and mhz else None,
    )
    return _part("cpu", _CPU, values)


def _part(resource: str, fields: _Fields, values: Sequence[float | None]) -> bytes:
    part = wire.TaskStatsResponse()
    message = getattr(part.stats.agg_resource_usage, resource)
    message.SetInParent()  # also without values: Nomad dereferences the sub-message unchecked
    measured = []
    for (name, field), value in zip(fields, values, strict=True):
        if value is not None:
            setattr(message, name, value)
            measured.append(field)
    message.measured_fields.extend(measured)
    return part.SerializeToString()
