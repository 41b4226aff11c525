"""The units of tasks as solo5-networkd sees them: ends by inotify, all else by a call of PID 1.

PID 1 keeps a symbolic link for each active unit and removes it at the unit's end; see docs/decisions/unit-end.md.
"""

import asyncio
import logging
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from solo5_systemd.base.declared_units import task_of, units_of
from solo5_systemd.base.names import INVOCATION_LINK, UNITS, TaskName
from solo5_systemd.base.removals import RemovedEntries
from solo5_systemd.dbus.message_bus import CALL_TIMEOUT_S, MessageBus
from solo5_systemd.dbus.messages import Message, MessageType

_IN_USE = ("active", "activating", "reloading", "deactivating")
"""The ActiveState= values of a unit that runs, or stops still."""

_log = logging.getLogger(__name__)


class TaskUnits:
    """The units of tasks.

    Args:
        bus: a connected bus.
        directory: of the links.
    """

    def __init__(self, bus: MessageBus, directory: Path = Path(UNITS)) -> None:
        self._bus = bus
        self._directory = directory
        self._removed: RemovedEntries | None = None
        try:
            self._removed = RemovedEntries(directory)
        except OSError as error:
            _log.warning("inotify: %s: %s; ends of tasks are noticed later", directory, error.strerror)

    def fileno(self) -> int | None:
        """Return a descriptor that is readable after an end; None where inotify has reached a limit."""
        return self._removed.fileno() if self._removed else None

    def ended(self) -> frozenset[TaskName] | None:
        """Return the tasks of which a run has ended since the last call; None: events were lost."""
        names = self._removed.read() if self._removed else frozenset()
        if names is None:
            return None
        units = (name.removeprefix(INVOCATION_LINK) for name in names if name.startswith(INVOCATION_LINK))
        return frozenset(filter(None, map(task_of, units)))

    def has_run(self, task: TaskName) -> bool:
        """Return whether the task's unit runs: its link exists."""
        return any(os.path.lexists(f"{self._directory}/{link}") for link in _links(task))

    def without_run(self, tasks: Iterable[TaskName]) -> Sequence[TaskName]:
        """Return those of many tasks whose unit does not run; the directory is read once."""
        existing = frozenset[str]()
        with suppress(OSError):
            existing = frozenset(os.listdir(self._directory))  # noqa: PTH208 - for strings
        return [task for task in tasks if existing.isdisjoint(_links(task))]

    async def over(self, tasks: Iterable[TaskName]) -> frozenset[TaskName]:
        """Return the tasks whose unit neither runs nor has a job; none where PID 1 does not reply."""
        units = {name: task for task in tasks for name in units_of(task)}
        request = Message(
            destination="org.freedesktop.systemd1",
            path="/org/freedesktop/systemd1",
            interface="org.freedesktop.systemd1.Manager",
            member="ListUnitsByNames",
            signature="as",
            body=[list(units)],
        )
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                reply = await self._bus.call(request)
        except (TimeoutError, OSError, EOFError):  # without the bus, the service is about to end
            return frozenset()
        if reply.message_type is not MessageType.METHOD_RETURN:
            return frozenset()
        in_use = {units[row[0]] for row in reply.body[0] if row[3] in _IN_USE or row[7]}
        return frozenset(units.values()) - in_use

    def close(self) -> None:
        """Remove the watch."""
        if self._removed:
            self._removed.close()


def _links(task: TaskName) -> Sequence[str]:
    return [f"{INVOCATION_LINK}{unit}" for unit in units_of(task)]
