"""Wait until journald has written a task's last lines.

`journalctl --sync` waits until journald has nothing to read. Before systemd 258 that is never, beside a task that
writes as fast as it can. What holds then: journald reads each stream in turn, and its native socket in turn too. So an
entry of our own that is in the journal shows that each stream was read since; a task has no line left when a turn
brought none.
"""

import asyncio
import os
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from solo5_systemd.errors import HostError
from solo5_systemd.journal import journald
from solo5_systemd.journal.journald import socket_of, write
from solo5_systemd.journal.reader import CONSOLES, JournalReader
from solo5_systemd.names import TaskName, task_scope, task_service

if TYPE_CHECKING:
    from solo5_systemd.journal.lines import Line

SOCKET = "/run/systemd/journal/io.systemd.journal"
"""Of journald's Varlink service; for root alone."""

REQUEST = b'{"method":"io.systemd.Journal.Synchronize"}\0'
PATIENCE = 10.0
"""Seconds for a journald that is stuck, or just being started anew."""

AGAIN = 0.05
"""Seconds between two attempts."""

LATE = 0.25
"""Seconds without an answer after which turns are counted. A journald that is not flooded answers in milliseconds."""

TURN = "6d2c3f0b6c0e4d0c9a3c58f6a7f0b1d5"
"""MESSAGE_ID= of the entry that marks a turn."""

INFO = 6


async def synchronize(task: TaskName, namespace: str = "") -> None:
    """Return when a task's lines are written, or where that cannot be known: the caller reads what there is.

    A journald that is being restarted is called again: what was written meanwhile waits for it in the streams.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE):
            synchronized = asyncio.ensure_future(_synchronized(socket_of(SOCKET, namespace)))
            settled = asyncio.ensure_future(_settled(task, namespace, LATE))
            try:
                await asyncio.wait((synchronized, settled), return_when=asyncio.FIRST_COMPLETED)
                if not synchronized.done() and settled.exception() is not None:
                    await synchronized  # the journal cannot be read
            finally:
                synchronized.cancel()
                settled.cancel()
                await asyncio.gather(synchronized, settled, return_exceptions=True)


async def _settled(task: TaskName, namespace: str, after: float) -> None:
    """Return after a turn in which no line of the task has come; the first begins after so many seconds."""
    await asyncio.sleep(after)
    units = (f"_SYSTEMD_UNIT={task_service(task)}", f"_SYSTEMD_UNIT={task_scope(task)}")
    with closing(JournalReader((*CONSOLES, *units), namespace)) as journal:
        last: list[Line] | None = None
        while True:
            await _turn(task, namespace)
            journal.refresh()
            before, last = last, journal.last(1)
            if before == last:
                return


async def _turn(task: TaskName, namespace: str) -> None:
    """Wait until journald has read every stream that has something to read now."""
    token = os.urandom(16).hex()
    with closing(JournalReader((f"MESSAGE_ID={TURN}", f"SOLO5_TURN={token}"), namespace)) as journal:
        journal.watch()
        written = False
        while not journal.last(1):
            if not written:
                with suppress(HostError):
                    write(_entry(task, token), socket_of(journald.NATIVE_SOCKET, namespace))
                    written = True
            await asyncio.sleep(AGAIN)
            journal.refresh()


def _entry(task: TaskName, token: str) -> dict[str, object]:
    return {
        "MESSAGE": f"journald is busy: waiting for the last lines of task {task}.",
        "MESSAGE_ID": TURN,
        "PRIORITY": INFO,
        "SYSLOG_IDENTIFIER": "solo5-systemd",
        "SOLO5_TASK": task,
        "SOLO5_TURN": token,
    }


async def _synchronized(address: str) -> None:
    while not await _is_over(address):  # noqa: ASYNC110 - another process is called
        await asyncio.sleep(AGAIN)


async def _is_over(address: str) -> bool:
    """Call; whether it is done, or cannot be."""
    try:
        await _call(address)
    except (FileNotFoundError, PermissionError):
        return True
    except (OSError, asyncio.IncompleteReadError):
        return False
    return True


async def _call(address: str) -> None:
    reader, writer = await asyncio.open_unix_connection(address)
    try:
        writer.write(REQUEST)
        await reader.readuntil(b"\0")
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
