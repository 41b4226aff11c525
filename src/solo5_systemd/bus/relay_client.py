"""The client of solo5-relay: org.solo5.Relay1, and the relay's records on disk."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path

from solo5_systemd.base.decode import Fields, json_document
from solo5_systemd.base.errors import Solo5Error
from solo5_systemd.base.names import TaskName, task_name
from solo5_systemd.bus.connection import Connection
from solo5_systemd.bus.services import Service
from solo5_systemd.dbus.interfaces import RELAY1

STATE = Path("/run/solo5/relay")
"""The directory with one record per forwarded task."""

_ATTEMPTS = 3
"""Of a call during which the relay exits: all its methods are idempotent."""

_DRAIN_INTERVAL_S = 0.05
"""Interval between two calls of Drain for one task."""

_DRAIN_TIMEOUT_S = 1.0
"""Time for which one `drain` waits until the FIFO is read."""


class Relay:
    """solo5-relay over one bus connection, and its records on disk.

    Args:
        sync: waits until the journal (of a namespace) has written all lines of a task. The relay cannot do that itself:
            journald synchronizes for root only.
    """

    def __init__(
        self, connection: Connection, sync: Callable[[TaskName, str], Awaitable[None]], state: Path = STATE
    ) -> None:
        self._service = Service(unit="solo5-relay", interface=RELAY1, connection=connection, attempts=_ATTEMPTS)
        self._sync = sync
        self._state = state

    async def forward(
        self, task: TaskName, unit: str, since: int, stdout: int, stderr: int, *, namespace: str = ""
    ) -> None:
        """Forward a unit's console to two FIFOs. Idempotent; called before the unit starts, or after a recovery.

        Args:
            task: the key for `drain`.
            since: microseconds since the epoch; earlier lines are skipped. A task with a record continues after the
                last delivered line.
            stdout: write end for the guest's console; the caller closes its own copies.
            stderr: write end for the tender's stderr.
            namespace: journal namespace of the lines; empty: the host's journal.
        """
        await self._service.call("Forward", namespace, task, unit, since, 0, 1, fds=(stdout, stderr))

    async def has_record(self, task: TaskName) -> bool:
        """Return whether the relay has a record of the task: lines to deliver, or no `drain` yet."""
        return await asyncio.to_thread((self._state / f"{task}.json").exists)

    async def records(self) -> Mapping[TaskName, float]:
        """Return the tasks with a record, each with the seconds since its last delivery."""
        changed = await asyncio.to_thread(lambda: {path.stem: _changed(path) for path in self._state.glob("*.json")})
        return {TaskName(name): time.time() - each / 1e9 for name, each in changed.items() if each is not None}

    async def open_tasks(self) -> frozenset[TaskName]:
        """Return the tasks whose FIFOs are open. Does not activate the relay if there is no record."""
        if not await asyncio.to_thread(lambda: any(self._state.glob("*.json"))):
            return frozenset()
        [tasks] = await self._service.call("List")
        return frozenset(map(task_name, tasks))

    async def drain(self, task: TaskName) -> int | None:
        """Deliver the last lines of an ended task, and close its FIFOs. Idempotent.

        Returns:
            None if all are delivered. Otherwise, after a second or so, a number that changes with each delivery: the
            relay delivers the rest when the FIFO is read.
        """
        namespace = await asyncio.to_thread(_namespace, self._state / f"{task}.json")
        if namespace is None:
            return None  # without activating the relay
        await self._sync(task, namespace)
        until = time.monotonic() + _DRAIN_TIMEOUT_S
        while await self._service.call("Drain", task) == [False]:
            if time.monotonic() >= until:
                return await asyncio.to_thread(_changed, self._state / f"{task}.json")
            await asyncio.sleep(_DRAIN_INTERVAL_S)  # a call that blocks in the relay would delay those of other tasks
        return None

    def gaps(self) -> AsyncGenerator[tuple[TaskName, int], None]:
        """Yield each task of which journald has dropped lines, with their number; as `Service.signals`."""
        return self._service.signals("Gap", lambda task, lines: (task_name(task), lines))


def _namespace(record: Path) -> str | None:
    """Return the journal namespace of a record's lines, empty for the host's journal; None without a record."""
    try:
        return Fields(json_document(record.read_bytes(), "the record")).text("namespace", "")
    except FileNotFoundError:
        return None
    except (OSError, Solo5Error):
        return ""  # damaged: the relay reports it


def _changed(record: Path) -> int | None:
    """Return the time of the last delivery in nanoseconds since the epoch; None without a record."""
    with suppress(FileNotFoundError):
        return record.stat().st_mtime_ns
    return None
