"""The time for which the processes of a cgroup are frozen, by the kernel's own state.

A call of PID 1 returns later than the kernel has acted, since it waits for a notification, of which the kernel sends
one in 10 ms at most for each file (CGROUP_FILE_NOTIFY_MIN_INTV): its duration is not that of the guest's pause. So the
state is read again and again, in a thread, for as long as a block runs.
"""

import os
import threading
import time
from types import TracebackType
from typing import Self

INTERVAL_S = 0.0002
"""Between two reads: the error of the measured time."""

_FROZEN = b"frozen 1"
_READ_SIZE = 256


class FrozenTime:
    """Measures while a block runs.

    Args:
        path: of the cgroup's `cgroup.events` (cgroup-v2.rst).

    Attributes:
        seconds: the longest time for which the cgroup was frozen; None: it was not, or that cannot be known.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._events: int | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="frozen", daemon=True)
        self._since: float | None = None
        self.seconds: float | None = None

    def __enter__(self) -> Self:
        """Begin; without the file, there is nothing to measure."""
        try:
            self._events = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return self
        self._look(self._events)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End."""
        if self._events is None:
            return
        self._over.set()
        self._thread.join()
        self._look(self._events)
        os.close(self._events)

    def _run(self) -> None:
        while self._events is not None and not self._over.wait(INTERVAL_S):
            self._look(self._events)

    def _look(self, events: int) -> None:
        now = time.monotonic()
        try:
            frozen = _FROZEN in os.pread(events, _READ_SIZE, 0)
        except OSError:  # the cgroup was removed
            frozen = False
        if frozen and self._since is None:
            self._since = now
        elif not frozen and self._since is not None:
            self.seconds = max(self.seconds or 0.0, now - self._since)
            self._since = None
