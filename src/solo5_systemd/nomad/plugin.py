"""The plugin's process: Nomad launches it from its plugin_dir, and speaks to it over a socket."""

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor

from solo5_systemd import __version__
from solo5_systemd.goplugin.handshake import Handshake, MagicCookie
from solo5_systemd.goplugin.rpc import service_handler
from solo5_systemd.goplugin.server import serve
from solo5_systemd.nomad.driver import Driver
from solo5_systemd.nomad.errors import explain
from solo5_systemd.nomad.process import raise_limit
from solo5_systemd.nomad.proto import base_pb2, driver_pb2
from solo5_systemd.nomad.service import BasePlugin, DriverService

COOKIE = MagicCookie(
    name="NOMAD_PLUGIN_MAGIC_COOKIE",
    value="e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255",
)
"""What Nomad proves itself with (plugins/base/plugin.go); no secret, only a guard against starting it by hand."""

PROTOCOL = 2
"""Nomad's version of its own protocol over go-plugin's."""

THREADS = 64
"""For file systems that may hang: one that does must not take the others' images along."""


def main() -> None:
    """Serve until Nomad says that it is enough, and exit."""
    raise_limit()
    asyncio.run(_main())


async def _main() -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS, "files"))
    async with asyncio.TaskGroup() as background:
        # A group waits for its tasks; this ends them, since nobody needs them any more.
        sys.exit(await _serve(Driver(__version__, background)))


async def _serve(driver: Driver) -> int:
    base, drivers = (file.DESCRIPTOR.services_by_name for file in (base_pb2, driver_pb2))
    handlers = [
        service_handler(base["BasePlugin"], BasePlugin(driver, __version__), explain),
        service_handler(drivers["Driver"], DriverService(driver), explain),
    ]
    return await serve(Handshake(COOKIE, PROTOCOL), handlers, closing=driver.session.close)
