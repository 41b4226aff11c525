"""What a task uses, as a row and as JSON."""

from dataclasses import asdict

from solo5_systemd.cgroup.usage import Usage, cpu_percent
from solo5_systemd.cli.render import size

HEADER = ("NAME", "CPU %", "CPU TIME", "MEMORY", "LIMIT", "PEAK", "SWAP", "READ", "WRITTEN")


def row(name: str, before: Usage | None, now: Usage) -> tuple[str, ...]:
    """One line of `stats`; what the kernel does not tell is empty.

    Args:
        name: the task's.
        before: the sample before this one, which a percentage needs.
        now: the sample.
    """
    percent = cpu_percent(before, now) if before else None
    return (
        name,
        "" if percent is None else f"{percent:.1f}%",
        "" if now.cpu.total is None else f"{now.cpu.total / 1e6:.2f}s",
        *map(_size, (now.memory.rss, now.memory.limit, now.memory.peak, now.memory.swap)),
        *map(_size, (now.io.read_bytes, now.io.written_bytes)),
    )


def usage_json(name: str, before: Usage | None, now: Usage) -> dict[str, object]:
    """Bytes and microseconds under the kernel's words; what is unknown is absent."""
    percent = cpu_percent(before, now) if before else None
    return _known(
        {
            "name": name,
            "cpu_percent": None if percent is None else round(percent, 2),
            "cpu": _known(asdict(now.cpu)),
            "memory": _known(asdict(now.memory)),
            "io": _known(asdict(now.io)),
            "processes": now.processes,
        }
    )


def _size(count: int | None) -> str:
    return "" if count is None else size(count)


def _known(values: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in values.items() if value is not None and value != {}}
