"""The units of tasks as solo5-networkd sees them: ends by inotify, starts by a FIFO, all else by a call of PID 1.

PID 1 keeps a symbolic link for each active unit and removes it at the unit's end; see docs/decisions/unit-end.md.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from stat import S_ISFIFO
from typing import Any

from solo5_systemd.base.declared_units import is_declared, service_of, task_of, units_of
from solo5_systemd.base.errors import HostError
from solo5_systemd.base.inotify import RemovedEntries
from solo5_systemd.base.names import (
    INVOCATION_LINK,
    UNITS,
    WAITING,
    TaskName,
    prepare_service,
    unit_path,
    update_service,
)
from solo5_systemd.dbus.message_bus import CALL_TIMEOUT_S, MessageBus
from solo5_systemd.dbus.messages import Message, MessageType

_IN_USE = ("active", "activating", "reloading", "deactivating")
"""The ActiveState= values of a unit that runs, or stops still."""

_PATH, _MANAGER = "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"
_UNKNOWN = (1 << 64) - 1
"""The value of CPUUsageNSec= without accounting."""

FIFOS = Path(WAITING)
"""One FIFO for each task whose socket unit is active: PID 1 starts the task's service once something is in it."""

_log = logging.getLogger(__name__)


class TaskUnits:
    """The units of tasks."""

    def __init__(self, bus: MessageBus) -> None:
        self._bus = bus
        self._removed: RemovedEntries | None = None
        try:
            self._removed = RemovedEntries(Path(UNITS))
        except OSError as error:
            _log.warning("inotify: %s: %s; ends of tasks are noticed later", UNITS, error.strerror)

    def fileno(self) -> int | None:
        """Return a descriptor that is readable after an end; None where inotify has reached a limit."""
        return self._removed.fileno() if self._removed else None

    def ended(self) -> frozenset[TaskName] | None:
        """Return the tasks of which a run has ended since the last call; None: events were lost."""
        names = self._removed.read() if self._removed else frozenset()
        if names is None:
            return None
        # PID 1 exports log settings of units there as well.
        units = (name.removeprefix(INVOCATION_LINK) for name in names if name.startswith(INVOCATION_LINK))
        return frozenset(filter(None, map(task_of, units)))

    def has_run(self, task: TaskName) -> bool:
        """Return whether the task's unit runs: its link exists."""
        return self._running(task) is not None

    def is_updated(self, task: TaskName) -> bool:
        """Return whether an update of the task is under way."""
        return os.path.lexists(f"{UNITS}/{INVOCATION_LINK}{update_service(task)}")

    def without_run(self, tasks: Iterable[TaskName]) -> Sequence[TaskName]:
        """Return those of many tasks whose unit does not run; the directory is read once."""
        existing = exported()
        return [task for task in tasks if existing.isdisjoint(f"{INVOCATION_LINK}{unit}" for unit in units_of(task))]

    async def over(self, tasks: Collection[TaskName]) -> frozenset[TaskName]:
        """Return the tasks whose unit neither runs nor has a job; none where PID 1 does not reply.

        A declared task is not over either as long as its preparation is active: PID 1 handles calls before it stops
        that, and a start that is called then cancels the stop, and runs with what is prepared and attached.
        """
        units = {name: task for task in tasks for name in units_of(task)}
        prepared = {prepare_service(task): task for task in tasks if is_declared(task)}
        found = _body(await call_pid1(self._bus, "ListUnitsByNames", "as", [*units, *prepared]))
        if found is None:
            return frozenset()
        in_use = {units[row[0]] for row in found[0] if row[0] in units and (row[3] in _IN_USE or row[7])}
        in_use |= {prepared[row[0]] for row in found[0] if row[0] in prepared and row[3] == "active"}
        return frozenset(tasks) - in_use

    # -- socket units --------------------------------------------------------------------------------------------

    def with_fifo(self) -> Iterator[TaskName]:
        """Yield the tasks with a FIFO."""
        try:
            names: Sequence[str] = os.listdir(FIFOS)  # noqa: PTH208 - for strings
        except OSError:
            return
        yield from filter(self.has_fifo, map(TaskName, names))

    def has_fifo(self, task: TaskName) -> bool:
        """Return whether the socket unit of a task is active."""
        try:
            return S_ISFIFO(os.lstat(_fifo(task)).st_mode)
        except OSError:
            return False

    def is_read(self, task: TaskName) -> bool:
        """Return whether PID 1 reads the FIFO of a task.

        It closes that of a socket unit whose file was gone at a daemon-reload, and leaves the unit active.
        """
        return self._write(task, b"")

    def start(self, task: TaskName) -> bool:
        """Have PID 1 start a task; return whether it reads its FIFO."""
        return self._write(task, b"\n")

    def _write(self, task: TaskName, content: bytes) -> bool:
        if not self.has_fifo(task):
            return False
        try:
            descriptor = os.open(_fifo(task), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                os.write(descriptor, content)
            finally:
                os.close(descriptor)
        except BlockingIOError:  # full: PID 1 has not read the earlier ones yet
            return True
        except OSError:  # PID 1 has closed it
            return False
        return True

    def remove_fifo(self, task: TaskName) -> None:
        """Remove a FIFO that PID 1 has closed, as the end of its socket unit would."""
        with suppress(OSError):
            os.unlink(_fifo(task))  # noqa: PTH108 - a text

    async def stop_undeclared_socket(self, task: TaskName) -> bool:
        """Stop the socket unit of a task if its file is gone; return whether PID 1 has replied.

        PID 1 keeps such a unit active, without `PartOf=` and what it starts.
        """
        unit = f"{task}.socket"
        found = _body(await call_pid1(self._bus, "ListUnitsByNames", "as", [unit]))
        if found and any((row[2], row[3]) == ("not-found", "active") for row in found[0]):
            found = _body(await call_pid1(self._bus, "StopUnit", "ss", unit, "replace"))
        return found is not None

    # -- runs ----------------------------------------------------------------------------------------------------

    async def signal(self, task: TaskName, number: signal.Signals) -> bool:
        """Send a signal to the tender of a task; return whether it runs, and gets it. Raises HostError if unknown."""
        unit = self._running(task)
        if unit is None:
            return False
        reply = await call_pid1(self._bus, "KillUnit", "ssi", unit, "main", int(number))
        if reply is None:
            raise HostError(f"PID 1 has not replied: whether {unit} has got {number.name} is unknown.")
        return reply.message_type is MessageType.METHOD_RETURN

    async def forget_starts(self, task: TaskName) -> None:
        """Have PID 1 count no start of a task until now: StartLimitBurst= is for those that end by themselves."""
        await call_pid1(self._bus, "ResetFailedUnit", "s", service_of(task))

    async def processor_time(self, task: TaskName) -> float | None:
        """Return the processor time of the run of a task in seconds; None: unknown."""
        value = await self._property(task, "CPUUsageNSec")
        return None if value in (None, _UNKNOWN) else int(value) / 1e9

    async def control_group(self, task: TaskName) -> str:
        """Return ControlGroup= of the run of a task; empty: unknown."""
        return await self._property(task, "ControlGroup") or ""

    async def _property(self, task: TaskName, name: str) -> Any:
        """Return a property of the service of a task; None: unknown."""
        unit = self._running(task)
        if unit is None:
            return None
        reply = await call_pid1(
            self._bus,
            "Get",
            "ss",
            "org.freedesktop.systemd1.Service",
            name,
            path=unit_path(unit),
            interface="org.freedesktop.DBus.Properties",
        )
        found = _body(reply)
        return found[0].value if found else None

    def _running(self, task: TaskName) -> str | None:
        """Return the unit of a task that runs; None: there is none."""
        path = f"{UNITS}/{INVOCATION_LINK}"
        return next((unit for unit in units_of(task) if os.path.lexists(f"{path}{unit}")), None)

    def close(self) -> None:
        """Remove the watch."""
        if self._removed:
            self._removed.close()


def _fifo(task: TaskName) -> str:
    return f"{FIFOS}/{task}"  # no Path, as in lease_files


def exported() -> frozenset[str]:
    """Return the names of what PID 1 exports of active units."""
    try:
        return frozenset(os.listdir(UNITS))  # noqa: PTH208 - for strings
    except OSError:
        return frozenset()


async def call_pid1(
    bus: MessageBus,
    member: str,
    signature: str,
    *body: object,
    path: str = _PATH,
    interface: str = _MANAGER,
    timeout_s: float = CALL_TIMEOUT_S,
) -> Message | None:
    """Call a method of PID 1, and return its reply, or its error; None where it does not reply."""
    request = Message(
        destination="org.freedesktop.systemd1",
        path=path,
        interface=interface,
        member=member,
        signature=signature,
        body=[*body],
    )
    try:
        async with asyncio.timeout(timeout_s):
            return await bus.call(request)
    except (TimeoutError, OSError, EOFError):  # without the bus, the service is about to end
        return None


def _body(reply: Message | None) -> Sequence[Any] | None:
    """Return the values of a reply; None where the method has failed, or PID 1 has not replied."""
    return reply.body if reply is not None and reply.message_type is MessageType.METHOD_RETURN else None
