"""Resource usage of a task as a table row and as JSON; unknown values are empty cells and absent keys."""

from collections.abc import Callable, Mapping
from dataclasses import asdict

from solo5_systemd.base.names import DeviceName
from solo5_systemd.cgroup.usage import Pressure, Usage, cpu_percent
from solo5_systemd.cli.render import UNKNOWN, size
from solo5_systemd.engine.task import Sample

HEADER = ("NAME", "CPU %", "MEM / LIMIT", "NET I/O", "BLOCK I/O", "PIDS")
WIDE_HEADER = ("CPU TIME", "THROTTLED", "PEAK", "SWAP", "WAITING %")

SORT_KEYS: Mapping[str, Callable[[Sample | None, Sample], float]] = {
    "cpu": lambda before, now: _percent(before, now) or 0,
    "memory": lambda _, now: now.usage.memory.rss or 0,
    "net": lambda _, now: sum(_received_and_sent(now)),
    "block": lambda _, now: (now.usage.io.read_bytes or 0) + (now.usage.io.written_bytes or 0),
}
"""Sort keys of `stats --sort` besides `name`; all sort in descending order."""


def row(name: str, before: Sample | None, now: Sample, *, wide: bool = False) -> tuple[str, ...]:
    """Return a row of `stats`, with the columns of docker stats.

    Args:
        before: the previous sample, from which the CPU percentage is computed; None: no percentage.
    """
    usage, percent = now.usage, _percent(before, now)
    narrow = (
        name,
        "" if percent is None else f"{percent:.1f}%",
        _pair(usage.memory.rss, usage.memory.limit),
        _pair(*_received_and_sent(now)) if now.nics else "",
        _pair(usage.io.read_bytes, usage.io.written_bytes),
        "" if usage.processes is None else str(usage.processes),
    )
    return (*narrow, *_wide_columns(usage)) if wide else narrow


def usage_json(name: str, before: Sample | None, now: Sample) -> dict[str, object]:
    """Return a sample as a JSON object, in bytes and microseconds, with the kernel's names."""
    usage, percent = now.usage, _percent(before, now)
    return _without_none(
        {
            "name": name,
            "cpu_percent": None if percent is None else round(percent, 2),
            "cpu": _without_none(asdict(usage.cpu)),
            "memory": _without_none(asdict(usage.memory)),
            "io": _without_none(asdict(usage.io)),
            "disks": [
                {"device": device} | _disks_json(now, device) | _without_none(asdict(io))
                for device, io in (usage.disks or {}).items()
            ],
            "nics": [{"nic": nic} | asdict(traffic) | _drops_json(now, nic) for nic, traffic in now.nics.items()],
            "processes": usage.processes,
            "pressure": {name: _pressure(each) for name, each in (usage.pressure or {}).items()},
        }
    )


def _disks_json(now: Sample, device: str) -> dict[str, object]:
    return {"disks": [*now.disks[device]]} if device in now.disks else {}


def _drops_json(now: Sample, nic: DeviceName) -> dict[str, object]:
    return {"drops": dict(now.drops[nic])} if nic in now.drops else {}


def _percent(before: Sample | None, now: Sample) -> float | None:
    return cpu_percent(before.usage, now.usage) if before else None


def _received_and_sent(now: Sample) -> tuple[int, int]:
    return sum(nic.received.bytes for nic in now.nics.values()), sum(nic.sent.bytes for nic in now.nics.values())


def _wide_columns(usage: Usage) -> tuple[str, ...]:
    return (
        _seconds(usage.cpu.total),
        _seconds(usage.cpu.throttled),
        _size(usage.memory.peak),
        _size(usage.memory.swap),
        _waiting(usage.pressure or {}),
    )


def _waiting(pressure: Mapping[str, Pressure]) -> str:
    """Return PSI `some avg10` of cpu, memory and io in percent."""
    stalls = (pressure.get(resource, Pressure()).some for resource in ("cpu", "memory", "io"))
    averages = [stall.avg10 if stall else None for stall in stalls]
    cells = (UNKNOWN if average is None else f"{average:.0f}" for average in averages)
    return "" if averages == [None] * 3 else " / ".join(cells)


def _pair(first: int | None, second: int | None) -> str:
    return "" if first is second is None else f"{_size(first) or UNKNOWN} / {_size(second) or UNKNOWN}"


def _seconds(microseconds: int | None) -> str:
    return "" if microseconds is None else f"{microseconds / 1e6:.2f}s"


def _size(count: int | None) -> str:
    return "" if count is None else size(count)


def _pressure(pressure: Pressure) -> dict[str, object]:
    return {
        kind: _without_none(asdict(stall))
        for kind in ("some", "full")
        if (stall := getattr(pressure, kind)) is not None
    }


def _without_none(values: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in values.items() if value is not None and value not in ({}, [])}
