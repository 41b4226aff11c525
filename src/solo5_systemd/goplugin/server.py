"""One plugin process, from the handshake to its end."""

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
from solo5_systemd.goplugin.socket_dir import admit_group, socket_path
from solo5_systemd.goplugin.stdio import log_to, take_pipes

_LOG = logging.getLogger(__name__)

_UNLIMITED = 2**31 - 1
"""Bytes of a message: as much as hosts allow, instead of gRPC's 4 MiB."""

_FAREWELL = 0.02
"""Seconds that calls in flight have when we leave, enough for the answer to the call that asked us to; and as many
again to clean up."""

_PATIENCE = 1.5
"""Seconds after which we leave in any case: two seconds after its request, the host kills and complains."""


async def serve(handshake: Handshake, handlers: Sequence[Handler], *, closing: Callable[[], Awaitable[None]]) -> int:
    """Serve *handlers*, and what go-plugin itself needs, until the host or SIGTERM wants us to end; the exit status.

    Takes the process over: its standard streams, its log, its signals. Calls in flight are cut in the end, *closing* is
    awaited, and 1.5 s later the process exits even if something in it does not care.
    """
    try:
        handshake.recognise(os.environ)
    except Solo5Error as error:
        print(error, file=sys.stderr)
        return 1
    pipes = take_pipes()
    log_to(pipes.log)
    try:
        handshake.agree(os.environ)
        with socket_path(os.environ) as path:
            await _serve_at(path, handlers, lambda: _announce(handshake.line(str(path)), pipes.handshake))
            await closing()
    except Solo5Error as error:
        _LOG.error("%s", error)
        return 1
    return 0


async def _serve_at(path: Path, handlers: Sequence[Handler], announce: Callable[[], None]) -> None:
    over = asyncio.Event()
    options = [(f"grpc.max_{way}_message_length", _UNLIMITED) for way in ("send", "receive")]
    server = grpc.aio.server(handlers=[*handlers, *services.handlers(over)], options=options)
    _listen(server, path)
    _heed_signals(over)
    await server.start()
    admit_group(path, os.environ)
    announce()
    await over.wait()
    _leave_in_any_case(path)
    await server.stop(_FAREWELL)
    await asyncio.sleep(_FAREWELL)  # the calls that were cut hear of it, and clean up


def _listen(server: grpc.aio.Server, path: Path) -> None:
    try:
        port = server.add_insecure_port(f"unix:{quote(str(path))}")
    except RuntimeError as error:
        raise HostError(f"the socket {path} cannot be listened at: {error}.") from error
    if not port:  # as gRPC said it before 1.60
        raise HostError(f"the socket {path} cannot be listened at.")


def _heed_signals(over: asyncio.Event) -> None:
    """Heed TERM. A terminal's INT is for the host, which gets it too; children would inherit that it is ignored."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, over.set)
    loop.add_signal_handler(signal.SIGINT, lambda: None)


def _announce(line: str, descriptor: int) -> None:
    try:
        os.write(descriptor, line.encode())
    except OSError as error:
        raise HostError(f"the host is gone before the handshake: {error.strerror}.") from error


def _leave_in_any_case(path: Path) -> None:
    def leave() -> None:
        shutil.rmtree(path.parent, ignore_errors=True)
        os._exit(0)

    timer = threading.Timer(_PATIENCE, leave)
    timer.daemon = True
    timer.start()
