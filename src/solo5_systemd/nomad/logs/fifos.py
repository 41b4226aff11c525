"""A task's console on its way to `nomad alloc logs`: Nomad's FIFOs, handed to the relay.

logmon ends for good once it sees a FIFO closed, so whoever holds the write ends must outlive this process: the relay
does. A FIFO that is never opened leaves logmon waiting, so both are opened even where nothing is to be written.
"""

import asyncio
import errno
import logging
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import PurePath
from typing import TYPE_CHECKING

from solo5_systemd.errors import HostError, Solo5Error
from solo5_systemd.names import TaskName
from solo5_systemd.nomad.config.values import Logging
from solo5_systemd.nomad.proto import driver_pb2 as wire

if TYPE_CHECKING:
    from solo5_systemd.nomad.engine import Session


# Open a FIFO for writing that somebody else made, in a directory where others may write too.

PATIENCE = 5.0
"""Seconds that its reader may take to come."""

_PAUSE = 0.01


async def open_fifo(path: str, root: str = "", patience: float = PATIENCE) -> int:
    """Wait for a reader, and open the write end, which does not block and belongs to the caller.

    No symbolic link below `root` is followed, and what is checked to be a FIFO is what is opened.

    Args:
        path: the FIFO's.
        root: a directory that no task can replace; empty, or one that `path` is not below: the FIFO's own directory.
        patience: seconds that the reader has.

    Raises:
        HostError: there is none, it is something else, or nobody reads it.
    """
    end = asyncio.get_running_loop().time() + patience
    while (fd := _open(path, root)) is None:
        if asyncio.get_running_loop().time() >= end:
            raise HostError(f"nobody reads {path}: expected a reader within {patience:.0f} seconds.")
        await asyncio.sleep(_PAUSE)
    return fd


def _open(path: str, root: str) -> int | None:
    """Return None where it has no reader yet."""
    place = PurePath(path)
    trusted = PurePath(root) if root and place.is_relative_to(root) else place.parent
    *directories, name = place.relative_to(trusted).parts
    held: list[int] = []
    try:
        held.append(os.open(trusted, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
        for directory in directories:
            flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            held.append(os.open(directory, flags, dir_fd=held[-1]))
        held.append(os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=held[-1]))
        if not stat.S_ISFIFO(os.fstat(held[-1]).st_mode):
            raise HostError(f"{path} is no FIFO: expected one that is read at its other end.")
        return os.open(f"/proc/self/fd/{held[-1]}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        raise HostError(f"{path} cannot be opened for writing: {error.strerror}.") from error
    finally:
        for fd in held:
            os.close(fd)


NOWHERE = ("", "/dev/null")

DRAIN_PATIENCE = 15.0
"""Seconds without progress of a task's last lines on their way to Nomad, after which its end is told all the same. More
than `journal.sync.PATIENCE`: the relay is called even where journald does not answer."""

ANSWER_PATIENCE = 60.0
"""Seconds until journald and the relay have answered for the first time. The relay reads the journal up to its end
before that, which takes longer on a busy machine; its watchdog ends one that hangs."""

SILENT = "journald or solo5-relay does not answer."
UNREAD = "its log FIFO is full and not read. The relay writes them when it is read."

RETRY = 0.2
"""Seconds between two attempts while relay or bus are away."""

_log = logging.getLogger(__name__)


@asynccontextmanager
async def _write_ends(task: wire.TaskConfig) -> AsyncIterator[tuple[int, int]]:
    from solo5_systemd.nomad.logs.fifos import open_fifo

    ends: list[int] = []
    try:
        ends.append(await open_fifo(task.stdout_path, task.alloc_dir))
        ends.append(await open_fifo(task.stderr_path, task.alloc_dir))
        yield ends[0], ends[1]
    finally:
        for end in ends:
            os.close(end)


async def connect(
    session: "Session", task: wire.TaskConfig, name: TaskName, unit: str, since: int, wanted: Logging, namespace: str
) -> None:
    """Have the console forwarded from `since` (microseconds since the epoch) on, from a journal namespace.

    Raises:
        HostError: a FIFO has no reader, or the relay does not answer.
    """
    if wanted is not Logging.NOMAD:
        await dismiss(task)  # with disable_log_collection there are neither readers nor FIFOs
    elif task.stdout_path not in NOWHERE and task.stderr_path not in NOWHERE:
        async with _write_ends(task) as (stdout, stderr):
            await (await session.relay()).forward(name, unit, since, stdout, stderr, namespace=namespace)


async def dismiss(task: wire.TaskConfig) -> None:
    """Open and close both FIFOs, where there are any: their readers wait for that, and Nomad seconds for these."""
    if task.stdout_path not in NOWHERE and task.stderr_path not in NOWHERE:
        with suppress(HostError):
            async with _write_ends(task):
                pass


async def let_go(session: "Session", name: TaskName, wanted: Logging) -> None:
    """Deliver the last lines of a task that has ended, and close Nomad's FIFOs; a failure is logged."""
    if wanted is not Logging.NOMAD:
        return
    why, patience = SILENT, ANSWER_PATIENCE
    now = asyncio.get_running_loop().time
    delivered: int | None = None
    try:
        async with asyncio.timeout(patience) as limit:
            while True:
                try:  # no other caller would repeat it, and the relay would keep the console
                    before, delivered = delivered, await (await session.relay()).drain(name)
                except Solo5Error as error:
                    why = str(error)
                else:
                    if delivered is None:
                        return
                    if why != UNREAD or delivered != before:
                        why, patience = UNREAD, DRAIN_PATIENCE
                        limit.reschedule(now() + DRAIN_PATIENCE)
                await asyncio.sleep(RETRY)
    except TimeoutError:
        _log.warning("Last lines of task %s not delivered to Nomad for %.0f s: %s", name, patience, why)
