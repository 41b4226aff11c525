"""The accounts of one cgroup, from the text of its files (kernel: Documentation/admin-guide/cgroup-v2.rst).

What the kernel does not tell is None, never zero. A guest's memory is shared memory under hvt and anonymous under
spt; the resident set is therefore the sum of both, and the page cache is what remains of `file` without `shmem`.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes, each None where the kernel does not account it; `limit` None also for "no limit"."""

    current: int | None = None
    peak: int | None = None
    limit: int | None = None
    rss: int | None = None
    cache: int | None = None
    kernel: int | None = None
    swap: int | None = None
    oom_kills: int | None = None


@dataclass(frozen=True, kw_only=True)
class Cpu:
    """Microseconds of processor time, and how often and how long a quota held it back."""

    total: int | None = None
    user: int | None = None
    system: int | None = None
    throttled_periods: int | None = None
    throttled: int | None = None


@dataclass(frozen=True, kw_only=True)
class Io:
    """Bytes and operations, summed over all devices."""

    read_bytes: int | None = None
    written_bytes: int | None = None
    reads: int | None = None
    writes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Usage:
    """One sample; `time` is seconds on the monotonic clock of who took it."""

    time: float
    memory: Memory = Memory()
    cpu: Cpu = Cpu()
    io: Io = Io()
    processes: int | None = None


def usage(files: Mapping[str, str], time: float) -> Usage:
    """Read a sample from the contents of a cgroup's files, by file name; a file that is not there is left out."""
    stat = _pairs(files.get("memory.stat", ""))
    cpu = _pairs(files.get("cpu.stat", ""))
    return Usage(
        time=time,
        memory=Memory(
            current=_number(files, "memory.current"),
            peak=_number(files, "memory.peak"),
            limit=_number(files, "memory.max"),
            rss=_sum(stat, "anon", "shmem"),
            cache=_difference(stat, "file", "shmem"),
            kernel=stat.get("kernel"),
            swap=_number(files, "memory.swap.current"),
            oom_kills=_pairs(files.get("memory.events", "")).get("oom_kill"),
        ),
        cpu=Cpu(
            total=cpu.get("usage_usec"),
            user=cpu.get("user_usec"),
            system=cpu.get("system_usec"),
            throttled_periods=cpu.get("nr_throttled"),
            throttled=cpu.get("throttled_usec"),
        ),
        io=_io(files.get("io.stat")),
        processes=_number(files, "pids.current"),
    )


def cpu_percent(before: Usage, after: Usage) -> float | None:
    """Of one processor, between two samples; None where it cannot be known."""
    if before.cpu.total is None or after.cpu.total is None or after.time <= before.time:
        return None
    return max(0, after.cpu.total - before.cpu.total) / ((after.time - before.time) * 1e6) * 100


def _number(files: Mapping[str, str], name: str) -> int | None:
    text = files.get(name, "").strip()
    return int(text) if text.isascii() and text.isdigit() else None  # "max" is no number


def _pairs(text: str) -> dict[str, int]:
    words = (line.split() for line in text.splitlines())
    return {w[0]: int(w[1]) for w in words if len(w) == 2 and w[1].isascii() and w[1].isdigit()}


def _sum(stat: Mapping[str, int], *keys: str) -> int | None:
    return sum(stat[key] for key in keys) if all(key in stat for key in keys) else None


def _difference(stat: Mapping[str, int], whole: str, part: str) -> int | None:
    return max(0, stat[whole] - stat[part]) if whole in stat and part in stat else None


def _io(text: str | None) -> Io:
    """`MAJ:MIN rbytes=… wbytes=… rios=… wios=…`, a line for each device; an empty file is a zero, no file unknown."""
    if text is None:
        return Io()
    totals = dict.fromkeys(("rbytes", "wbytes", "rios", "wios"), 0)
    for line in text.splitlines():
        for word in line.split()[1:]:
            key, _, value = word.partition("=")
            if key in totals and value.isascii() and value.isdigit():
                totals[key] += int(value)
    return Io(read_bytes=totals["rbytes"], written_bytes=totals["wbytes"], reads=totals["rios"], writes=totals["wios"])
