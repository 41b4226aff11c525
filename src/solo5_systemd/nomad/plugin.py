"""The plugin process: Nomad launches it from its plugin_dir, and calls it over a Unix socket."""

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from ctypes import CDLL
from functools import cache

from solo5_systemd import __version__
from solo5_systemd.goplugin.rpc import service_handler
from solo5_systemd.goplugin.server import serve
from solo5_systemd.nomad.base_plugin import BasePlugin
from solo5_systemd.nomad.errors import detail_of
from solo5_systemd.nomad.proto import base_pb2, driver_pb2

COOKIE = ("NOMAD_PLUGIN_MAGIC_COOKIE", "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255")
PROTOCOL_VERSION = 2
"""Both as in Nomad's plugins/base/plugin.go and plugins/drivers/versions.go."""

THREADS = 64
"""Threads for file I/O: many, since a hanging file system blocks a thread for each of its files."""

M_ARENA_MAX = -8
"""mallopt(3)."""


def use_one_arena() -> None:
    """Let all threads allocate from one arena of glibc: with an arena each, they keep MBs that others cannot use."""
    with suppress(AttributeError):
        CDLL(None).mallopt(M_ARENA_MAX, 1)


def main() -> None:
    """Run the plugin until Nomad shuts it down."""
    use_one_arena()  # before the first thread
    asyncio.run(_main())


async def _main() -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS, "files"))
    base = BasePlugin(__version__)
    async with asyncio.TaskGroup() as background:

        @cache
        def driver() -> object:
            # At its first call, which probes do not make.
            from solo5_systemd.nomad.scope_tenders import raise_nofile_limit
            from solo5_systemd.nomad.service import DriverPlugin

            raise_nofile_limit()
            return DriverPlugin(base, background)

        handlers = [
            service_handler(base_pb2.DESCRIPTOR.services_by_name["BasePlugin"], lambda: base, detail_of),
            service_handler(driver_pb2.DESCRIPTOR.services_by_name["Driver"], driver, detail_of),
        ]
        status = await serve(handlers, cookie=COOKIE, version=PROTOCOL_VERSION)
        sys.exit(status)  # the exception makes the group cancel its tasks, for which it would wait otherwise
