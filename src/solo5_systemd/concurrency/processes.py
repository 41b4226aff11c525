"""Child processes."""

from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


@asynccontextmanager
async def reaped(process: Process) -> AsyncIterator[Process]:
    """Yield a child process; kill it if it is running at the end of the block, and reap it."""
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
