"""A test plugin: it greets, and does what plugins should not."""

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator

from google.protobuf.wrappers_pb2 import StringValue
from tests.fast.goplugin.greetings import GREETINGS

from solo5_systemd.base.errors import NotFoundError
from solo5_systemd.goplugin.rpc import service_handler
from solo5_systemd.goplugin.server import serve

LOG = logging.getLogger("greeter")


def run_child(*command: str) -> subprocess.Popen[bytes]:
    """Start a child that inherits file descriptors, as a library might."""
    return subprocess.Popen(command, close_fds=False)


class Greeter:
    async def greet(self, request: StringValue) -> StringValue:
        act = getattr(self, f"_{request.value}", None)
        return StringValue(value=await act() if act else f"hello {request.value}")

    async def greet_often(self, request: StringValue) -> AsyncIterator[StringValue]:
        try:
            for number in range(3):
                yield StringValue(value=f"hello {request.value} {number}")
            await asyncio.Event().wait()
        finally:
            LOG.info("nobody listens to %s", request.value)

    async def greet_each(self, requests: AsyncIterator[StringValue]) -> AsyncIterator[StringValue]:
        async for request in requests:
            yield await self.greet(request)

    async def _nobody(self) -> str:
        raise NotFoundError("there is no \udcff of that name.")

    async def _rambler(self) -> str:
        raise NotFoundError("well… " * 20_000)

    async def _crash(self) -> str:
        raise KeyError("missing")

    async def _forsaken(self) -> str:
        forsaken: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        forsaken.cancel()
        return await forsaken

    async def _printer(self) -> str:
        print("printed by mistake")
        print("and to stderr", file=sys.stderr)
        run_child("echo", "by a child").wait()
        return "printed"

    async def _logger(self) -> str:
        LOG.warning("two\nlines")
        return "logged"

    async def _flood(self) -> str:
        for number in range(10_000):
            LOG.info("line %d", number)
        return "flooded"

    async def _parent(self) -> str:
        return str(run_child("sleep", "60").pid)

    async def _stubborn(self) -> str:
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                LOG.info("not now")


def detail_of(error: Exception) -> StringValue | None:
    return StringValue(value="try another") if isinstance(error, NotFoundError) else None


async def main() -> int:
    handlers = [service_handler(GREETINGS, Greeter, detail_of)]
    status = await serve(handlers, cookie=("GREETER_COOKIE", "crumbs"), version=7)
    if "GREETER_FAILS" in os.environ:
        raise RuntimeError("it cannot be closed")
    if not status:
        LOG.info("closed")
    return status


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
