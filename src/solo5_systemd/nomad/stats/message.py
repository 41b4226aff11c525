"""Samples of a cgroup as Nomad's resource usage. A value that the kernel does not provide is unmeasured, never zero."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from solo5_systemd.cgroup.usage import Cpu, Memory, Usage, share
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.proto.base_pb2 import ClientTopology

_Fields: TypeAlias = Sequence[tuple[str, Any]]

_MEMORY: _Fields = (
    ("rss", wire.MemoryUsage.RSS),
    ("cache", wire.MemoryUsage.CACHE),
    ("swap", wire.MemoryUsage.SWAP),
    ("usage", wire.MemoryUsage.USAGE),
    ("max_usage", wire.MemoryUsage.MAX_USAGE),
    ("kernel_usage", wire.MemoryUsage.KERNEL_USAGE),
)
_CPU: _Fields = (
    ("throttled_periods", wire.CPUUsage.THROTTLED_PERIODS),
    ("throttled_time", wire.CPUUsage.THROTTLED_TIME),
    ("system_mode", wire.CPUUsage.SYSTEM_MODE),
    ("user_mode", wire.CPUUsage.USER_MODE),
    ("percent", wire.CPUUsage.PERCENT),
    ("total_ticks", wire.CPUUsage.TOTAL_TICKS),
)
"""Each field by its name, and by its value in `measured_fields`. KERNEL_MAX_USAGE exists in cgroup v1 only."""


def mhz_per_core(topology: ClientTopology) -> float:
    """Return the MHz of one core as Nomad computes it (client/lib/numalib, cpustats); 0: unknown."""
    if not topology.cores:
        return 0.0
    total = topology.override_total_compute or sum(
        core.base_speed or core.max_speed or core.guess_speed for core in topology.cores
    )
    return total / len(topology.cores)


def fill_usage(message: wire.TaskResourceUsage, before: Usage | None, now: Usage, mhz: float) -> None:
    """Fill Nomad's message from two samples; in place, since copying a message costs more than filling it.

    Args:
        message: empty, or filled from the previous sample.
        before: the previous sample; None: there is none, and CPU shares are unmeasured.
        now: the current sample.
        mhz: of one core; 0: unknown.
    """
    if before is None or now.memory is not before.memory:  # otherwise the message still has these values
        _fill(message.memory, _MEMORY, _memory(now.memory))
    _fill(message.cpu, _CPU, _cpu(before, now, mhz))


def _fill(message: wire.CPUUsage | wire.MemoryUsage, fields: _Fields, values: Sequence[float | None]) -> None:
    """Set the measured values."""
    message.Clear()
    message.SetInParent()  # also without values: Nomad dereferences the sub-message unchecked
    measured = []
    for (name, field), value in zip(fields, values, strict=True):
        if value is not None:
            setattr(message, name, value)
            measured.append(field)
    message.measured_fields.extend(measured)


def _memory(memory: Memory) -> tuple[int | None, ...]:
    return memory.rss, memory.cache, memory.swap, memory.current, memory.peak, memory.kernel


def _cpu(before: Usage | None, now: Usage, mhz: float) -> tuple[float | None, ...]:
    cpu, then, window = now.cpu, Cpu(), 0.0
    if before is not None and now.time > before.time:
        then, window = before.cpu, (now.time - before.time) * 1e6
    percent = share(then.total, cpu.total, window)
    return (
        cpu.throttled_periods,
        None if cpu.throttled is None else cpu.throttled * 1000,  # in nanoseconds
        share(then.system, cpu.system, window),
        share(then.user, cpu.user, window),
        percent,
        percent * mhz / 100 if percent is not None and mhz else None,
    )
