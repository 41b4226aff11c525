"""The space of disks: looks at the file systems of running tasks' disks, each in a thread, since one may hang.

What knows disks is imported once there is one, for the startup time of `solo5ctl metrics`.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from solo5_systemd.base.errors import HostError
from solo5_systemd.base.event_loop import off_the_loop
from solo5_systemd.storage import locks

if TYPE_CHECKING:
    from solo5_systemd.storage.model import FailedDisk

TIMEOUT_S = 2.0
"""How long the end of a task waits for file systems, one of which may hang."""


class DiskSpace:
    """The space of disks on this host. An event loop goes on meanwhile."""

    def __init__(self) -> None:
        self._full: dict[tuple[str, str], FailedDisk] = {}
        self._looking: threading.Thread | None = None
        self._found: list[tuple[FailedDisk, bool]] = []

    async def failed_disks(self, task: str) -> "Sequence[FailedDisk]":
        """Return the disks of a task's last run that have failed; none where that is not known in time.

        A system call that hangs is left behind in its thread.
        """
        from solo5_systemd.storage.disk_state import failed_disks

        found: list[FailedDisk] = []
        thread = await off_the_loop(lambda: self._run(lambda: found.extend(failed_disks(task))))
        return () if thread.is_alive() else tuple(found)

    async def changes(self) -> "Sequence[tuple[FailedDisk, bool]]":
        """Return the disks of running tasks whose file system has changed since the last call, and whether it is full.

        Raises:
            HostError: a file system does not answer.
        """
        if self._looking is not None and self._looking.is_alive():  # one thread at most is left behind
            await off_the_loop(partial(self._looking.join, TIMEOUT_S))
        else:
            self._looking = await off_the_loop(lambda: self._run(lambda: self._found.extend(self.look())))
        if self._looking.is_alive():
            raise HostError(
                f"the file system of a disk has not answered for {TIMEOUT_S:.0f} s: expected its free space.",
                "A network file system may have lost its server: df",
            )
        found, self._found = self._found, []
        return tuple(found)

    def _run(self, act: Callable[[], None]) -> threading.Thread:
        def suppressed() -> None:
            with suppress(OSError, HostError):  # not root, or a file system that has failed
                act()

        thread = threading.Thread(target=suppressed, name="disk-space", daemon=True)
        thread.start()
        thread.join(TIMEOUT_S)
        return thread

    def look(self) -> "Iterator[tuple[FailedDisk, bool]]":
        """Yield what has changed since the last look; raises OSError or HostError where the locks cannot be read."""
        samples, before = locks.samples(), self._full
        if not samples and not before:
            return
        from solo5_systemd.storage.disk_state import full_disks, may_be_full

        # The records of all tasks are read only while a file system is full: 33 ms for 1,000 of them.
        self._full = full_disks(locks.records_of_tasks()) if before or any(map(may_be_full, samples)) else {}
        for key in sorted(self._full.keys() ^ before.keys()):
            yield (self._full | before)[key], key in self._full
