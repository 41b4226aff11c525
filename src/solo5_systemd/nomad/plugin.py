"""The plugin process: Nomad launches it from its plugin_dir, and calls it over a Unix socket."""

import asyncio
import resource
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from ctypes import CDLL

from solo5_systemd import __version__
from solo5_systemd.goplugin.rpc import service_handler
from solo5_systemd.goplugin.server import Handshake, serve
from solo5_systemd.nomad.proto import base_pb2, driver_pb2
from solo5_systemd.nomad.service import DriverPlugin, detail_of

HANDSHAKE = Handshake(
    cookie="NOMAD_PLUGIN_MAGIC_COOKIE",
    value="e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255",
    version=2,
)
"""As in Nomad's plugins/base/plugin.go."""

THREADS = 64
"""Threads for file I/O: many, since a hanging file system blocks a thread for each of its files."""


M_ARENA_MAX = -8
"""mallopt(3)."""


def use_one_arena() -> None:
    """Let all threads allocate memory from one arena, where the C library is glibc.

    With an arena for each, the threads for file I/O keep several MB that the others cannot use.
    """
    with suppress(AttributeError):
        CDLL(None).mallopt(M_ARENA_MAX, 1)


def raise_nofile_limit() -> None:
    """Raise the soft RLIMIT_NOFILE to the hard one: statistics hold five file descriptors for each task."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> None:
    """Run the plugin until Nomad shuts it down."""
    use_one_arena()  # before the first thread
    raise_nofile_limit()
    asyncio.run(_main())


async def _main() -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS, "files"))
    async with asyncio.TaskGroup() as background:
        # The exception makes the group cancel its tasks, for which it would wait otherwise.
        sys.exit(await _serve(DriverPlugin(__version__, background)))


async def _serve(plugin: DriverPlugin) -> int:
    services = (base_pb2.DESCRIPTOR.services_by_name["BasePlugin"], driver_pb2.DESCRIPTOR.services_by_name["Driver"])
    handlers = [service_handler(each, plugin, detail_of) for each in services]
    return await serve(HANDSHAKE, handlers, closing=plugin.session.close)
