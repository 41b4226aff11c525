"""Repeated samples of one cgroup with its files kept open: open(2) costs four times as much as a read."""

import os
import time

from solo5_systemd.base.vanishing_files import READ_SIZE, VANISHED
from solo5_systemd.cgroup.usage import CPU, MEMORY, MEMORY_COUNTERS, Cpu, Memory, Usage, cpu, memory

SETTLE_S = 5.0
"""Seconds after a change of memory for which all its files are read: the kernel updates memory.stat every 2 s."""


class Meter:
    """A meter of a cgroup's memory and CPU time.

    A sample of an idle guest is three calls of pread(2): `MEMORY_COUNTERS` show whether its memory has changed, and the
    other files of memory are read only then. A counter that is missing is looked for again once the guest has run: on a
    host without the memory controller, two failed calls of open(2) would be most of the cost of a sample. Without a
    directory of a cgroup, it has no samples.
    """

    __slots__ = ("_counters", "_cpu", "_cpu_file", "_descriptors", "_directory", "_memory", "_settled")

    def __init__(self, directory: str | None) -> None:
        self._directory = directory
        self._descriptors: dict[str, int] = {}
        self._settled = 0.0
        self._counters: tuple[bytes | None, ...] = ()
        self._cpu_file: bytes | None = None
        self._memory, self._cpu = Memory(), Cpu()

    def sample(self) -> Usage | None:
        """Return the present usage; None where the cgroup was removed.

        What has not changed since the previous sample is the same object.
        """
        if self._directory is None:
            return None
        now = time.monotonic()
        cpu_file = self._read(CPU)
        if cpu_file is None:  # every cgroup has this file
            self.close()
            return None
        has_run = cpu_file != self._cpu_file
        if has_run:
            self._cpu_file, self._cpu = cpu_file, cpu({CPU: cpu_file})
        counters = tuple(self._read(name) if has_run or name in self._descriptors else None for name in MEMORY_COUNTERS)
        if counters != self._counters:
            self._counters, self._settled = counters, now + SETTLE_S
        if now < self._settled:
            files = dict(zip(MEMORY_COUNTERS, counters, strict=True))
            files |= {name: self._read(name) for name in MEMORY if name not in files}
            if (found := memory({name: data for name, data in files.items() if data})) != self._memory:
                self._memory = found
        return Usage(time=now, memory=self._memory, cpu=self._cpu)

    def close(self) -> None:
        """Close all files."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    def _read(self, name: str) -> bytes | None:
        known = name in self._descriptors
        try:
            if not known:
                self._descriptors[name] = os.open(f"{self._directory}/{name}", os.O_RDONLY)
            return os.pread(self._descriptors[name], READ_SIZE, 0)
        except OSError as error:
            if error.errno not in VANISHED:
                raise
        if name in self._descriptors:
            os.close(self._descriptors.pop(name))
        return self._read(name) if known else None  # once more: a restarted unit has a new cgroup of the same name
