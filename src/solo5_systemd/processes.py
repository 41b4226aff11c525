"""Programs that are executed as children."""

from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


@asynccontextmanager
async def reaped(process: Process) -> AsyncIterator[Process]:
    """Yield a child; where it still runs at the end of the block it is killed, and it is reaped in any case."""
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
