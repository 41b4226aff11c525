"""The plugin process, from the handshake to its exit: the socket, go-plugin's own services, signals.

The socket is in a private directory. A later plugin removes the directories of plugins that were killed.
"""

import asyncio
import logging
import os
import shutil
import signal
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

import grpc
import grpc.aio
from google.protobuf.empty_pb2 import Empty

from solo5_systemd.base.errors import HostError, Solo5Error, host_errors
from solo5_systemd.base.locks import closing, lock_directory
from solo5_systemd.goplugin.hclog import take_over_stdio
from solo5_systemd.goplugin.proto import health_pb2, plugin_pb2
from solo5_systemd.goplugin.proto.health_pb2 import HealthCheckRequest, HealthCheckResponse
from solo5_systemd.goplugin.proto.plugin_pb2 import StdioData
from solo5_systemd.goplugin.rpc import Handler, service_handler

CORE_PROTOCOL = 1
"""The version of go-plugin's core protocol."""


class OwnServices:
    """The services plugin.GRPCController, plugin.GRPCStdio and grpc.health.v1.Health, as far as hosts need them."""

    def __init__(self, shutdown: asyncio.Event) -> None:
        self._shutdown = shutdown

    async def shutdown(self, _: plugin_pb2.Empty) -> plugin_pb2.Empty:
        """Request the plugin's shutdown."""
        self._shutdown.set()
        return plugin_pb2.Empty()

    async def stream_stdio(self, _: Empty) -> AsyncIterator[StdioData]:
        """Stream nothing: printed lines are log lines (see `hclog`). It stays open, since a host logs its end."""
        await asyncio.Event().wait()
        yield StdioData()

    async def check(self, _: HealthCheckRequest) -> HealthCheckResponse:
        """Return that the plugin is serving."""
        return HealthCheckResponse(status=HealthCheckResponse.SERVING)


_LOG = logging.getLogger(__name__)

_PREFIX, _SOCKET = "plugin-", "socket"

_UNLIMITED = 2**31 - 1
"""Bytes of a message: as many as hosts allow, instead of gRPC's 4 MiB."""

_STOP_GRACE_S = 0.02
"""Seconds that calls in flight have at shutdown: enough to answer the shutdown call itself. Cancelled calls then have
as many again for their cleanup."""

_EXIT_TIMEOUT_S = 1.5
"""Seconds from the shutdown request to a forced exit. The host kills the process, and logs that, after two seconds."""


async def serve(handlers: Sequence[Handler], *, cookie: tuple[str, str], version: int) -> int:
    """Serve until the host's shutdown call or SIGTERM, and return the exit status.

    It takes over the process: standard streams, logging and signals. Calls in flight are cancelled at the end.

    Args:
        cookie: an environment variable that a host sets for its plugins, and its value: against a start by hand.
        version: of the protocol of host and plugin.
    """
    name, value = cookie
    if os.environ.get(name) != value:
        print(
            f"this program is a plugin: {name} is not what a host sets it to. "
            "Put it, or a link to it, into the host's plugin directory; there is nothing to run by hand.",
            file=sys.stderr,  # started by hand: stderr is a terminal, not the host's log
        )
        return 1
    announced = take_over_stdio()
    try:
        with host_errors("no directory for the socket can be made"):
            directory = TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True)
        with directory, closing(lock_directory(Path(directory.name))):
            path = Path(directory.name, _SOCKET)
            _remove_killed(path.parent.parent)
            # The last field would be the plugin's certificate.
            handshake = f"{CORE_PROTOCOL}|{version}|unix|{path}|grpc|\n"
            await _serve_at(path, handlers, announced, handshake)
    except Solo5Error as error:
        _LOG.error("%s", error)
        return 1
    return 0


async def _serve_at(path: Path, handlers: Sequence[Handler], announced: int, handshake: str) -> None:
    shutdown = asyncio.Event()
    options = [(f"grpc.max_{way}_message_length", _UNLIMITED) for way in ("send", "receive")]
    services, plugin = OwnServices(shutdown), plugin_pb2.DESCRIPTOR.services_by_name
    described = (plugin["GRPCController"], plugin["GRPCStdio"], health_pb2.DESCRIPTOR.services_by_name["Health"])
    own = [service_handler(each, lambda: services, lambda _: None) for each in described]
    server = grpc.aio.server(handlers=[*handlers, *own], options=options)
    try:
        port = server.add_insecure_port(f"unix:{quote(str(path))}")
    except RuntimeError:
        port = 0  # as gRPC before 1.60 reports an error
    if not port:
        raise HostError(
            f"cannot listen on the socket {path}: expected a path of at most 107 bytes.",
            "Set TMPDIR to a shorter directory.",
        )
    # A terminal's SIGINT goes to the host as well, which then shuts the plugin down.
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, shutdown.set)
    loop.add_signal_handler(signal.SIGINT, lambda: None)  # not SIG_IGN, which children would inherit
    await server.start()
    with host_errors("the host closed the pipe before the handshake"):
        os.write(announced, handshake.encode())
    await shutdown.wait()

    def force_exit() -> None:
        shutil.rmtree(path.parent, ignore_errors=True)
        os._exit(0)

    timer = threading.Timer(_EXIT_TIMEOUT_S, force_exit)
    timer.daemon = True
    timer.start()
    await server.stop(_STOP_GRACE_S)
    await asyncio.sleep(_STOP_GRACE_S)  # for the cleanup of cancelled calls


def _remove_killed(parent: Path) -> None:
    """Remove the directories of plugins that were killed: those with a socket that no process has locked (flock(2)).

    Until its socket is there, a plugin that starts may not have locked its own.
    """
    for socket in parent.glob(f"{_PREFIX}*/{_SOCKET}"):
        # An error: of another user, with whom the directory for temporary files is shared, or of a plugin that runs.
        with suppress(OSError, Solo5Error), closing(lock_directory(socket.parent, timeout_s=0)):
            shutil.rmtree(socket.parent)
