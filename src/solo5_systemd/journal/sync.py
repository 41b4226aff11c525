"""Wait until journald has written what it was sent: what `journalctl --sync` does, without a process for it."""

import asyncio
from contextlib import suppress

SOCKET = "/run/systemd/journal/io.systemd.journal"
"""Of journald's Varlink service; for root alone."""

REQUEST = b'{"method":"io.systemd.Journal.Synchronize"}\0'
PATIENCE = 10.0
"""Seconds for a journald that is stuck, or busy with others' lines."""


async def synchronize() -> None:
    """Return when it is done, or cannot be: whoever may not ask, or gets no answer, reads what there is."""
    with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
        async with asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_unix_connection(SOCKET)
            try:
                writer.write(REQUEST)
                await reader.readuntil(b"\0")
            finally:
                writer.close()
                await writer.wait_closed()
