"""Repeated samples of one cgroup with its files kept open: open(2) costs four times as much as a read."""

import os
import time

from solo5_systemd.cgroup.hierarchy import READ_SIZE, VANISHED, open_file
from solo5_systemd.cgroup.usage import CPU, MEMORY, Cpu, Memory, Usage, cpu, memory


class Meter:
    """A meter of a cgroup's memory and CPU time, with one pread(2) for each file and sample.

    Files with unchanged content are not parsed again: those of memory seldom change, those of an idle guest never.

    Args:
        directory: the cgroup's directory; None: without samples.
    """

    def __init__(self, directory: str | None) -> None:
        self._directory = directory
        self._descriptors: dict[str, int] = {}
        self._memory_files: list[bytes | None] = []
        self._cpu_file: bytes | None = None
        self._memory, self._cpu = Memory(), Cpu()

    def sample(self) -> Usage | None:
        """Return the present usage; None where the cgroup was removed."""
        if self._directory is None:
            return None
        memory_files = [self._read(name) for name in MEMORY]
        cpu_file = self._read(CPU)
        if memory_files != self._memory_files:
            self._memory_files = memory_files
            self._memory = memory({name: data for name, data in zip(MEMORY, memory_files, strict=True) if data})
        if cpu_file != self._cpu_file:
            self._cpu_file = cpu_file
            self._cpu = cpu({CPU: cpu_file} if cpu_file else {})
        return Usage(time=time.monotonic(), memory=self._memory, cpu=self._cpu) if self._descriptors else None

    def close(self) -> None:
        """Close all files."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    def _read(self, name: str) -> bytes | None:
        known = name in self._descriptors
        try:
            if not known:
                self._descriptors[name] = open_file(f"{self._directory}/{name}")
            return os.pread(self._descriptors[name], READ_SIZE, 0)
        except OSError as error:
            if error.errno not in VANISHED:
                raise
        if name in self._descriptors:
            os.close(self._descriptors.pop(name))
        # A restarted unit has a new cgroup of the same name: open its file once more.
        return self._read(name) if known else None
