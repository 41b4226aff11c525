"""Synchronization with journald: waits until it has written a task's last lines.

`journalctl --sync` waits until journald has nothing to read. Before systemd 258 it does not return next to a task that
writes at full speed. But journald reads all its streams and its native socket round robin. So when a marker entry that
was sent to the native socket is in the journal, each stream was read once since: one round. A task has no lines left
after a round without one.
"""

import asyncio
import os
import socket
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from solo5_systemd.base.concurrency import retry
from solo5_systemd.base.declared_units import units_of
from solo5_systemd.base.errors import HostError
from solo5_systemd.base.journal_entry import namespace_path, write_entry
from solo5_systemd.base.names import TaskName
from solo5_systemd.journal.reader import CONSOLE_MATCHES, JournalReader

if TYPE_CHECKING:
    from solo5_systemd.journal.lines import Line

SOCKET = "/run/systemd/journal/io.systemd.journal"
"""The Varlink socket of the host's journald; for root only."""

REQUEST = b'{"method":"io.systemd.Journal.Synchronize"}\0'
REPLY_MAX = 4096
SYNC_TIMEOUT_S = 10.0
"""For a journald that hangs or is being restarted."""

ATTEMPT_INTERVAL_S = 0.05

ROUNDS_DELAY_S = 0.25
"""Without a reply of Synchronize after this time, rounds are counted. A journald that is not busy replies in ms."""

ROUND_MESSAGE_ID = "6d2c3f0b6c0e4d0c9a3c58f6a7f0b1d5"
"""MESSAGE_ID= of the marker entry."""

INFO = 6

_LASTING = (FileNotFoundError, PermissionError)
"""Errors of connect(2) after which a retry fails too."""


async def synchronize(task: TaskName, namespace: str = "") -> None:
    """Return when journald has written all lines that a task wrote before; or after SYNC_TIMEOUT_S.

    The call is repeated if journald is restarted meanwhile: the lines stay in the streams, which systemd stores.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(SYNC_TIMEOUT_S):
            synchronized = asyncio.ensure_future(_synchronized(namespace_path(SOCKET, namespace)))
            idle = asyncio.ensure_future(_idle_round(task, namespace, ROUNDS_DELAY_S))
            try:
                await asyncio.wait((synchronized, idle), return_when=asyncio.FIRST_COMPLETED)
                if not synchronized.done() and idle.exception() is not None:
                    await synchronized  # the journal cannot be read, and so rounds cannot be counted
            finally:
                synchronized.cancel()
                idle.cancel()
                await asyncio.gather(synchronized, idle, return_exceptions=True)  # each closes its socket or journal


async def _idle_round(task: TaskName, namespace: str, delay_s: float) -> None:
    """Wait for the delay, then return after a round without a line of the task."""
    await asyncio.sleep(delay_s)
    units = [f"_SYSTEMD_UNIT={unit}" for unit in units_of(task)]
    with closing(JournalReader((*CONSOLE_MATCHES, *units), namespace)) as journal:
        last: list[tuple[Line, str]] | None = None
        while True:
            await _round(task, namespace)
            journal.refresh()
            before, last = last, journal.last(1)
            if before == last:
                return


async def _round(task: TaskName, namespace: str) -> None:
    """Send a marker entry and wait until it is in the journal: each stream was read meanwhile."""
    token = os.urandom(16).hex()
    marker = {
        "MESSAGE": f"journald is busy: waiting for the last lines of task {task}.",
        "MESSAGE_ID": ROUND_MESSAGE_ID,
        "PRIORITY": INFO,
        "SYSLOG_IDENTIFIER": "solo5-systemd",
        "SOLO5_TASK": task,
        "SOLO5_TURN": token,
    }
    with closing(JournalReader((f"MESSAGE_ID={ROUND_MESSAGE_ID}", f"SOLO5_TURN={token}"), namespace)) as journal:
        journal.watch()
        written = False
        while not journal.last(1):
            if not written:
                with suppress(HostError):  # a journald that is being restarted gets it later
                    write_entry(marker, namespace)
                    written = True
            await asyncio.sleep(ATTEMPT_INTERVAL_S)
            journal.refresh()


async def _synchronized(address: str) -> None:
    """Call Synchronize until it returns; at once without a journald, or for a caller that is not root."""
    with suppress(*_LASTING):
        await retry(
            lambda: _call(address),
            (OSError, EOFError),
            interval_s=ATTEMPT_INTERVAL_S,
            transient=lambda error: not isinstance(error, _LASTING),
        )


async def _call(address: str) -> None:
    loop = asyncio.get_running_loop()
    # Not asyncio.open_unix_connection(): cancelled at the wrong moment, it leaves the socket open.
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as journald:
        await loop.sock_connect(journald, address)
        await loop.sock_sendall(journald, REQUEST)
        reply = b""
        while not reply.endswith(b"\0"):
            reply = await loop.sock_recv(journald, REPLY_MAX)
            if not reply:
                raise EOFError("journald has closed the connection")
