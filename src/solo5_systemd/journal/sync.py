"""Wait until journald has written what it was sent: what `journalctl --sync` does, without a process for it."""

import asyncio
from contextlib import suppress

SOCKET = "/run/systemd/journal/io.systemd.journal"
"""Of journald's Varlink service; for root alone."""

REQUEST = b'{"method":"io.systemd.Journal.Synchronize"}\0'
PATIENCE = 10.0
"""Seconds for a journald that is stuck, busy with others' lines, or just being started anew."""

AGAIN = 0.05
"""Seconds between two attempts."""


async def synchronize() -> None:
    """Return when it is done, or cannot be: whoever may not ask, or gets no answer, reads what there is.

    A journald that is being restarted is asked again: what was written meanwhile waits for it in the streams.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE):
            while not await _is_over():  # noqa: ASYNC110 - another process is asked
                await asyncio.sleep(AGAIN)


async def _is_over() -> bool:
    """It is done, or there is nobody whom we could ask."""
    try:
        await _ask()
    except (FileNotFoundError, PermissionError):
        return True
    except (OSError, asyncio.IncompleteReadError):
        return False
    return True


async def _ask() -> None:
    reader, writer = await asyncio.open_unix_connection(SOCKET)
    try:
        writer.write(REQUEST)
        await reader.readuntil(b"\0")
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
