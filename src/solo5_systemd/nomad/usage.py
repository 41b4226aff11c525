"""Samples of a cgroup as Nomad's statistics. What the kernel does not tell is left unmeasured, never zero."""

from collections.abc import Iterator

from solo5_systemd.cgroup.usage import Usage
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.proto.base_pb2 import ClientTopology

_Memory = wire.MemoryUsage
_Cpu = wire.CPUUsage


def mhz_per_core(topology: ClientTopology) -> float:
    """What one core's worth of time is in MHz, by Nomad's own reckoning (client/lib/numalib, cpustats); 0: unknown."""
    if not topology.cores:
        return 0.0
    total = topology.override_total_compute or sum(
        core.base_speed or core.max_speed or core.guess_speed for core in topology.cores
    )
    return total / len(topology.cores)


def resource_usage(before: Usage | None, now: Usage, mhz: float) -> wire.TaskResourceUsage:
    """Two samples as Nomad's.

    Args:
        before: the one before; None for the first, which has no processor's share yet.
        now: this one.
        mhz: of one core; 0 where Nomad did not say.
    """
    return wire.TaskResourceUsage(cpu=_cpu(before, now, mhz), memory=_memory(now))


def _memory(now: Usage) -> wire.MemoryUsage:
    memory = now.memory
    values = {
        _Memory.RSS: ("rss", memory.rss),
        _Memory.CACHE: ("cache", memory.cache),
        _Memory.SWAP: ("swap", memory.swap),
        _Memory.USAGE: ("usage", memory.current),
        _Memory.MAX_USAGE: ("max_usage", memory.peak),
        _Memory.KERNEL_USAGE: ("kernel_usage", memory.kernel),
    }
    known = {field: (name, value) for field, (name, value) in values.items() if value is not None}
    return wire.MemoryUsage(measured_fields=known.keys(), **dict(known.values()))


def _cpu(before: Usage | None, now: Usage, mhz: float) -> wire.CPUUsage:
    usage = wire.CPUUsage()
    for field, name, value in (*_throttling(now), *_shares(before, now, mhz)):
        setattr(usage, name, value)
        usage.measured_fields.append(field)
    return usage


def _throttling(now: Usage) -> Iterator[tuple[wire.CPUUsage.Fields, str, int]]:
    if now.cpu.throttled_periods is not None:
        yield _Cpu.THROTTLED_PERIODS, "throttled_periods", now.cpu.throttled_periods
    if now.cpu.throttled is not None:
        yield _Cpu.THROTTLED_TIME, "throttled_time", now.cpu.throttled * 1000  # Nomad's is in nanoseconds


def _shares(before: Usage | None, now: Usage, mhz: float) -> Iterator[tuple[wire.CPUUsage.Fields, str, float]]:
    """Percentages of one core since the sample before."""
    if before is None or now.time <= before.time:
        return
    window = (now.time - before.time) * 1e6
    pairs = (
        (_Cpu.SYSTEM_MODE, "system_mode", before.cpu.system, now.cpu.system),
        (_Cpu.USER_MODE, "user_mode", before.cpu.user, now.cpu.user),
        (_Cpu.PERCENT, "percent", before.cpu.total, now.cpu.total),
    )
    for field, name, then, since in pairs:
        if then is not None and since is not None:
            yield field, name, max(0, since - then) / window * 100
    if mhz and before.cpu.total is not None and now.cpu.total is not None:
        yield _Cpu.TOTAL_TICKS, "total_ticks", max(0, now.cpu.total - before.cpu.total) / window * mhz
