"""The plugin process, from the handshake to its exit."""

import asyncio
import logging
import os
import shutil
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from urllib.parse import quote

import grpc.aio

from solo5_systemd.errors import HostError, Solo5Error
from solo5_systemd.goplugin import services
from solo5_systemd.goplugin.handshake import Handshake
from solo5_systemd.goplugin.rpc import Handler
from solo5_systemd.goplugin.socket_dir import grant_group, socket_path
from solo5_systemd.goplugin.stdio import log_to, redirect_stdio

_LOG = logging.getLogger(__name__)

_UNLIMITED = 2**31 - 1
"""Bytes of a message: as many as hosts allow, instead of gRPC's 4 MiB."""

_STOP_GRACE_S = 0.02
"""Seconds that calls in flight have at shutdown: enough to answer the shutdown call itself. Cancelled calls then have
as many again for their cleanup."""

_EXIT_TIMEOUT_S = 1.5
"""Seconds from the shutdown request to a forced exit. The host kills the process, and logs that, after two seconds."""


async def serve(handshake: Handshake, handlers: Sequence[Handler], *, closing: Callable[[], Awaitable[None]]) -> int:
    """Serve until the host's shutdown call or SIGTERM, and return the exit status.

    It takes over the process: standard streams, logging and signals. At the end, calls in flight are cancelled and
    *closing* is awaited; the process exits after 1.5 s even if something blocks that.

    Args:
        handshake: cookie and protocol version.
        handlers: the services, besides those of go-plugin itself.
        closing: called after the last call.
    """
    try:
        handshake.check_cookie(os.environ)
    except Solo5Error as error:
        print(error, file=sys.stderr)  # started by hand: stderr is a terminal, not the host's log
        return 1
    pipes = redirect_stdio()
    log_to(pipes.log)
    try:
        handshake.check_protocol(os.environ)
        with socket_path(os.environ) as path:
            await _serve_at(path, handlers, lambda: _announce(handshake.line(str(path)), pipes.handshake))
            await closing()
    except Solo5Error as error:
        _LOG.error("%s", error)
        return 1
    return 0


async def _serve_at(path: Path, handlers: Sequence[Handler], announce: Callable[[], None]) -> None:
    shutdown = asyncio.Event()
    options = [(f"grpc.max_{way}_message_length", _UNLIMITED) for way in ("send", "receive")]
    server = grpc.aio.server(handlers=[*handlers, *services.handlers(shutdown)], options=options)
    _listen(server, path)
    _handle_signals(shutdown)
    await server.start()
    grant_group(path, os.environ)
    announce()
    await shutdown.wait()
    _force_exit_after_timeout(path)
    await server.stop(_STOP_GRACE_S)
    await asyncio.sleep(_STOP_GRACE_S)  # for the cleanup of cancelled calls


def _listen(server: grpc.aio.Server, path: Path) -> None:
    try:
        port = server.add_insecure_port(f"unix:{quote(str(path))}")
    except RuntimeError as error:
        raise HostError(f"cannot listen on the socket {path}: {error}.") from error
    if not port:  # gRPC before 1.60 reports an error this way
        raise HostError(f"cannot listen on the socket {path}.")


def _handle_signals(shutdown: asyncio.Event) -> None:
    """Shut down on SIGTERM. A terminal's SIGINT goes to the host as well, which then shuts the plugin down."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, shutdown.set)
    loop.add_signal_handler(signal.SIGINT, lambda: None)  # not SIG_IGN, which children would inherit


def _announce(line: str, descriptor: int) -> None:
    try:
        os.write(descriptor, line.encode())
    except OSError as error:
        raise HostError(f"the host closed the pipe before the handshake: {error.strerror}.") from error


def _force_exit_after_timeout(path: Path) -> None:
    def force_exit() -> None:
        shutil.rmtree(path.parent, ignore_errors=True)
        os._exit(0)

    timer = threading.Timer(_EXIT_TIMEOUT_S, force_exit)
    timer.daemon = True
    timer.start()
