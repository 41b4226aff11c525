"""Sample one cgroup again and again, with its files kept open: to open one costs four times what reading it does."""

import os
import time

from solo5_systemd.cgroup.files import GONE, LARGEST, opened
from solo5_systemd.cgroup.usage import CPU, MEMORY, Cpu, Memory, Usage, cpu, memory


class Meter:
    """Memory and processor time of a cgroup, with one system call for each of its files.

    A file that says what it said is not parsed again: those of memory seldom change, and those of an idle guest never.

    Args:
        directory: the cgroup's; None where there is none, and never a sample.
    """

    def __init__(self, directory: str | None) -> None:
        self._directory = directory
        self._descriptors: dict[str, int] = {}
        self._memory_files: list[bytes | None] = []
        self._cpu_file: bytes | None = None
        self._memory, self._cpu = Memory(), Cpu()

    def sample(self) -> Usage | None:
        """What it is now; None where the cgroup is gone."""
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
        """Let go of the files."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    def _read(self, name: str) -> bytes | None:
        known = name in self._descriptors
        try:
            if not known:
                self._descriptors[name] = opened(f"{self._directory}/{name}")
            return os.pread(self._descriptors[name], LARGEST, 0)
        except OSError as error:
            if error.errno not in GONE:
                raise
        if name in self._descriptors:
            os.close(self._descriptors.pop(name))
        return self._read(name) if known else None  # a unit that is started anew has another cgroup of the same name
