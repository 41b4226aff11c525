"""Nomad's log FIFOs of a task, which are handed to solo5-relay.

logmon stops for good at a FIFO's end of file. The relay holds the write ends, so they outlive this process. logmon also
blocks in open(2) until a writer has opened its FIFO, so both FIFOs are opened even if nothing will be written.
"""

import asyncio
import errno
import logging
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import PurePath

from solo5_systemd.base.errors import HostError, Solo5Error
from solo5_systemd.base.names import TaskName
from solo5_systemd.bus.peers import RETRY_INTERVAL_S
from solo5_systemd.nomad.engine import EngineSession
from solo5_systemd.nomad.handle import DriverState
from solo5_systemd.nomad.option_values import Logging
from solo5_systemd.nomad.proto import driver_pb2 as wire

READER_TIMEOUT_S = 5.0
"""Seconds until a FIFO without a reader is an error."""

OPEN_INTERVAL_S = 0.01
"""Seconds between two attempts to open a FIFO."""

NO_FILE = ("", "/dev/null")
"""Paths of a task whose logs Nomad does not collect."""

DRAIN_TIMEOUT_S = 15.0
"""Seconds without progress of a drain, after which the task's end is reported all the same. Longer than the relay's own
wait for journald, so that the relay can still answer if journald does not."""

RELAY_TIMEOUT_S = 60.0
"""Seconds until journald and the relay have answered for the first time. The relay reads the journal up to its end
before that, which takes longer on a busy machine; its watchdog ends one that hangs."""

NO_ANSWER = "journald or solo5-relay does not answer."
NOT_READ = "its log FIFO is full and not read. The relay writes them when it is read."

_log = logging.getLogger(__name__)


async def open_fifo(path: str, root: str = "") -> int:
    """Wait for a FIFO's reader, and return a non-blocking file descriptor of the write end, which the caller owns.

    The directory may be writable by others: no symbolic link below `root` is followed, and the check for a FIFO is
    made on the very file that is opened.

    Args:
        root: a directory that no task can replace. Empty, or if `path` is not below it: the FIFO's own directory.

    Raises:
        HostError: the file does not exist, is not a FIFO, or has no reader.
    """
    end = asyncio.get_running_loop().time() + READER_TIMEOUT_S
    while (fd := _open(path, root)) is None:
        if asyncio.get_running_loop().time() >= end:
            raise HostError(f"{path} has no reader: expected one within {READER_TIMEOUT_S:.0f} seconds.")
        await asyncio.sleep(OPEN_INTERVAL_S)
    return fd


def _open(path: str, root: str) -> int | None:
    """Return a file descriptor; None if the FIFO has no reader yet (ENXIO)."""
    place = PurePath(path)
    trusted = PurePath(root) if root and place.is_relative_to(root) else place.parent
    *directories, name = place.relative_to(trusted).parts
    held: list[int] = []
    try:
        held.append(os.open(trusted, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
        for directory in directories:  # one by one: a task could replace any of them by a symbolic link
            flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            held.append(os.open(directory, flags, dir_fd=held[-1]))
        held.append(os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=held[-1]))
        if not stat.S_ISFIFO(os.fstat(held[-1]).st_mode):
            raise HostError(f"{path} is not a FIFO: expected one with a reader at its other end.")
        # Through /proc, so that the checked file itself is opened, whatever has its name now.
        return os.open(f"/proc/self/fd/{held[-1]}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        raise HostError(f"{path} cannot be opened for writing: {error.strerror}.") from error
    finally:
        for fd in held:
            os.close(fd)


@asynccontextmanager
async def _write_ends(task: wire.TaskConfig) -> AsyncIterator[tuple[int, int]]:
    ends: list[int] = []
    try:
        ends.append(await open_fifo(task.stdout_path, task.alloc_dir))
        ends.append(await open_fifo(task.stderr_path, task.alloc_dir))
        yield ends[0], ends[1]
    finally:
        for end in ends:
            os.close(end)


async def connect(
    session: EngineSession,
    task: wire.TaskConfig,
    name: TaskName,
    unit: str,
    since: int,
    destination: Logging,
    namespace: str,
) -> None:
    """Hand a task's FIFOs to the relay, which forwards the console from `since` (µs since the epoch) on.

    Raises:
        HostError: a FIFO has no reader, or the relay does not answer.
    """
    if destination is not Logging.NOMAD:
        await unblock_readers(task)  # with disable_log_collection there are neither readers nor FIFOs
    else:
        async with _write_ends(task) as (stdout, stderr):
            await session.engine.backends.relay.forward(name, unit, since, stdout, stderr, namespace=namespace)


async def unblock_readers(task: wire.TaskConfig) -> None:
    """Open and close both FIFOs, if there are any, so that logmon's open(2) returns; the client waits for that."""
    if task.stdout_path not in NO_FILE and task.stderr_path not in NO_FILE:
        with suppress(HostError):
            async with _write_ends(task):
                pass


async def drain(session: EngineSession, name: TaskName) -> None:
    """Have the relay write the last lines of an ended task, if it has a record of it, and close its FIFOs.

    A failure is logged.
    """
    why, timeout_s = NO_ANSWER, RELAY_TIMEOUT_S
    now = asyncio.get_running_loop().time
    delivered: int | None = None
    try:
        async with asyncio.timeout(timeout_s) as limit:
            while True:
                try:  # retried, since nothing else would make the relay close these FIFOs
                    before, delivered = delivered, await session.engine.backends.relay.drain(name)
                except Exception as error:  # noqa: BLE001 - it would end the plugin, as where no thread can be started
                    why = str(error)
                else:
                    if delivered is None:
                        return
                    if why != NOT_READ or delivered != before:  # first answer, or progress: the limit starts again
                        why, timeout_s = NOT_READ, DRAIN_TIMEOUT_S
                        limit.reschedule(now() + DRAIN_TIMEOUT_S)
                await asyncio.sleep(RETRY_INTERVAL_S)
    except TimeoutError:
        _log.warning("last lines of task %s not delivered to Nomad for %.0f s: %s", name, timeout_s, why)


CONCURRENCY = 4
"""Tasks at once: a FIFO without a reader takes its full timeout, and a returning agent needs answers meanwhile."""


class LogReattacher:
    """Reattaches FIFOs of recovered tasks, a few at once."""

    def __init__(self, session: EngineSession) -> None:
        self._session = session
        self._slots = asyncio.Semaphore(CONCURRENCY)
        self._held: frozenset[TaskName] | None = None

    async def reattach(self, config: wire.TaskConfig, state: DriverState, *, running: bool) -> None:
        """Reattach a task's FIFOs. A failure is only logged: the journal has all lines of the console.

        RecoverTask does not wait for it, only the report of the task's end does.
        """
        run = state.run
        async with self._slots:
            try:
                # Of JOURNALD the relay has no record, and a new logmon waits in open(2).
                if state.logging is Logging.JOURNALD or await self._is_lost(run.task, running=running):
                    await connect(
                        self._session, config, run.task, run.unit, run.started, state.logging, run.log_namespace
                    )
            except Solo5Error as error:
                _log.info("log FIFOs of task %s not reattached: %s", run.task, error)
            except Exception:  # noqa: BLE001 - an exception in the group's task would end the plugin
                _log.exception("log FIFOs of task %s not reattached: internal error", run.task)

    async def _is_lost(self, task: TaskName, *, running: bool) -> bool:
        relay = self._session.engine.backends.relay
        if not running and not await relay.has_record(task):
            return False  # the relay has delivered all of an ended task, and rightly does not hold its FIFOs any more
        # One answer is for all: the relay closes the FIFOs of ended tasks only, when this driver drains them, and Nomad
        # has all tasks recovered when the driver starts.
        if self._held is None:
            self._held = await relay.open_tasks()
        return task not in self._held
