"""Parsers of a cgroup's accounting files (kernel: Documentation/admin-guide/cgroup-v2.rst, accounting/psi.rst).

Samples are tuples: made as dataclasses, the classes take 3 ms more of each `solo5ctl metrics`.
A value that the kernel does not report is None, never zero. A guest's memory is shared memory under hvt and anonymous
memory under spt: the resident set is the sum of both, and the page cache is `file` without `shmem`.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

N = TypeVar("N", int, float)

Files = Mapping[str, bytes]
"""The contents of a cgroup's files, by file name, without missing files."""

MEMORY_COUNTERS = ("memory.current", "memory.peak")
"""The files of memory of which one changes with any of the others; each is one number."""

MEMORY = (*MEMORY_COUNTERS, "memory.swap.current", "memory.stat")
CPU = "cpu.stat"
ALL = (
    *MEMORY,
    CPU,
    "memory.max",
    "memory.events",
    "io.stat",
    "pids.current",
    "cpu.pressure",
    "memory.pressure",
    "io.pressure",
)


class Memory(NamedTuple):
    """Memory in bytes, None where the kernel does not report it; `limit` is None also without a limit."""

    current: int | None = None
    peak: int | None = None
    limit: int | None = None
    rss: int | None = None
    cache: int | None = None
    kernel: int | None = None
    swap: int | None = None
    oom_kills: int | None = None


class Cpu(NamedTuple):
    """CPU time in µs; of CPUQuota=: elapsed periods, throttled periods, and the throttled time in µs."""

    total: int | None = None
    user: int | None = None
    system: int | None = None
    periods: int | None = None
    throttled_periods: int | None = None
    throttled: int | None = None


class Io(NamedTuple):
    """Bytes and operations at block devices; reads and writes that stay in the page cache are not counted."""

    read_bytes: int | None = None
    written_bytes: int | None = None
    reads: int | None = None
    writes: int | None = None


Pressure = Mapping[str, Mapping[str, float | None]]
"""Stall times of one resource by `some` (processes stalled) and `full` (all of them): `avg10`, `avg60`, `avg300` in
percent of so many seconds, `total` in µs."""


class Usage(NamedTuple):
    """One sample of a cgroup.

    Attributes:
        time: time.monotonic() of the sample, in seconds.
        disks: by name of the host's block device; None without I/O accounting.
        processes: threads included.
        pressure: by `cpu`, `memory`, `io`.
    """

    time: float
    memory: Memory = Memory()
    cpu: Cpu = Cpu()
    disks: Mapping[str, Io] | None = None
    processes: int | None = None
    pressure: Mapping[str, Pressure] | None = None

    @property
    def io(self) -> Io:
        """The I/O of all devices together."""
        if self.disks is None:
            return Io()
        each = self.disks.values()
        return Io(
            read_bytes=sum(disk.read_bytes or 0 for disk in each),
            written_bytes=sum(disk.written_bytes or 0 for disk in each),
            reads=sum(disk.reads or 0 for disk in each),
            writes=sum(disk.writes or 0 for disk in each),
        )


def usage(files: Files, time: float, device: Callable[[str], str] = str) -> Usage:
    """Parse a sample. `device` returns the name of a block device by its number, such as `254:0`."""
    disks = {
        device(number): Io(
            read_bytes=_number(counts.get("rbytes"), int),
            written_bytes=_number(counts.get("wbytes"), int),
            reads=_number(counts.get("rios"), int),
            writes=_number(counts.get("wios"), int),
        )
        for number, counts in _assignments(files.get("io.stat", b"")).items()
        if counts
    }
    pressure = {
        resource: {
            which: {key: _number(text, int) if key == "total" else _number(text, float) for key, text in stall.items()}
            for which, stall in _assignments(files[f"{resource}.pressure"]).items()
        }
        for resource in ("cpu", "memory", "io")
        if f"{resource}.pressure" in files
    }
    return Usage(
        time=time,
        memory=memory(files),
        cpu=cpu(files),
        disks=disks if "io.stat" in files else None,
        processes=_number(files.get("pids.current"), int),
        pressure=pressure or None,
    )


def memory(files: Files) -> Memory:
    """Parse the files of memory."""
    stat = _counts(files.get("memory.stat"))
    anonymous, file, shared = stat(b"anon"), stat(b"file"), stat(b"shmem")
    return Memory(
        current=_number(files.get("memory.current"), int),
        peak=_number(files.get("memory.peak"), int),
        limit=_number(files.get("memory.max"), int),
        rss=None if anonymous is None or shared is None else anonymous + shared,
        cache=None if file is None or shared is None else max(0, file - shared),
        kernel=stat(b"kernel"),
        swap=_number(files.get("memory.swap.current"), int),
        oom_kills=_counts(files.get("memory.events"))(b"oom_kill"),
    )


def cpu(files: Files) -> Cpu:
    """Parse cpu.stat."""
    count = _counts(files.get(CPU))
    return Cpu(
        total=count(b"usage_usec"),
        user=count(b"user_usec"),
        system=count(b"system_usec"),
        periods=count(b"nr_periods"),
        throttled_periods=count(b"nr_throttled"),
        throttled=count(b"throttled_usec"),
    )


def cpu_percent(before: Usage, after: Usage) -> float | None:
    """Return the CPU usage between two samples, in percent of one CPU; None without CPU accounting."""
    window = (after.time - before.time) * 1e6
    return share(before.cpu.total, after.cpu.total, window) if window > 0 else None


def share(before: int | None, after: int | None, window: float) -> float | None:
    """Return the difference of two counts of µs as percent of a window in µs; None if a count is None."""
    return None if before is None or after is None else max(0, after - before) / window * 100


def _assignments(data: bytes) -> dict[str, dict[str, str]]:
    """Parse lines of a word and assignments, by their words: io.stat, and the files of pressure."""
    lines = (line.split() for line in data.decode("ascii", "replace").splitlines())
    return {
        words[0]: {key: value for key, _, value in (word.partition("=") for word in words[1:])}
        for words in lines
        if words
    }


def _counts(data: bytes | None) -> Callable[[bytes], int | None]:
    """Return what reads the number of a key in `KEY NUMBER` lines: few of some fifty are wanted."""
    words = (data or b"").split()
    found = dict(zip(words[::2], words[1::2], strict=False))
    return lambda key: _number(found.get(key), int)


def _number(data: bytes | str | None, kind: Callable[[bytes | str], N]) -> N | None:
    """Parse a number; None for a word, such as `max`."""
    try:
        return kind(data) if data is not None else None
    except ValueError:
        return None
