"""Sample one cgroup again and again, with its files kept open: to open one costs four times what reading it does."""

import os
import time

from solo5_systemd.cgroup.files import GONE, LARGEST, opened
from solo5_systemd.cgroup.usage import BASIC, Usage, usage


class Meter:
    """Memory and processor time of a cgroup, with one system call for each of its files.

    Args:
        directory: the cgroup's; empty for none, which never has a sample.
    """

    def __init__(self, directory: str) -> None:
        self._paths = {name: f"{directory}/{name}" for name in BASIC} if directory else {}
        self._descriptors: dict[str, int] = {}

    def sample(self) -> Usage | None:
        """What it is now; None where the cgroup is gone."""
        files = {name: data for name in self._paths if (data := self._read(name)) is not None}
        return usage(files, time.monotonic()) if files else None

    def close(self) -> None:
        """Let go of the files."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    def _read(self, name: str) -> bytes | None:
        known = name in self._descriptors
        try:
            if not known:
                self._descriptors[name] = opened(self._paths[name])
            return os.pread(self._descriptors[name], LARGEST, 0)
        except OSError as error:
            if error.errno not in GONE:
                raise
        if name in self._descriptors:
            os.close(self._descriptors.pop(name))
        return self._read(name) if known else None  # a unit that is started anew has another cgroup of the same name
