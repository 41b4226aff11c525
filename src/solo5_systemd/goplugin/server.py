"""The plugin process, from the handshake to its exit: the socket, go-plugin's own services, signals.

The socket is in a private directory. A later plugin removes the directories of plugins that were killed.
"""

import asyncio
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc
import grpc.aio
from google.protobuf.empty_pb2 import Empty

from solo5_systemd.base.errors import HostError, InvalidRequestError, NotFoundError, Solo5Error
from solo5_systemd.base.locks import lock_directory, try_lock
from solo5_systemd.goplugin.hclog import log_to, redirect_stdio
from solo5_systemd.goplugin.proto import health_pb2, plugin_pb2
from solo5_systemd.goplugin.proto.health_pb2 import HealthCheckRequest, HealthCheckResponse
from solo5_systemd.goplugin.proto.plugin_pb2 import ConnInfo, StdioData
from solo5_systemd.goplugin.rpc import Failure, Handler, service_handler

CORE_PROTOCOL = 1
"""The version of go-plugin's core protocol."""


@dataclass(frozen=True, slots=True)
class Handshake:
    """What a host and its plugins agree on.

    Attributes:
        cookie: an environment variable that a host sets for its plugins, against a start by hand; it is no secret.
    """

    cookie: str
    value: str
    version: int

    def check_cookie(self, environment: Mapping[str, str]) -> None:
        """Check that a host started this process.

        Raises:
            InvalidRequestError: the cookie is missing or wrong.
        """
        if environment.get(self.cookie) != self.value:
            raise InvalidRequestError(
                f"this program is a plugin: {self.cookie} is not what a host sets it to.",
                "Put it, or a link to it, into the host's plugin directory; there is nothing to run by hand.",
            )

    def check_protocol(self, environment: Mapping[str, str]) -> None:
        """Check that the host uses the supported protocol, without TLS.

        Raises:
            InvalidRequestError: the host requires TLS, or another version of its protocol.
        """
        if environment.get("PLUGIN_CLIENT_CERT"):
            raise InvalidRequestError(
                "the host requires TLS (PLUGIN_CLIENT_CERT is set), which this plugin does not support: "
                "expected a host without AutoMTLS, as the socket is in a directory that only its owner can enter."
            )
        offered = environment.get("PLUGIN_PROTOCOL_VERSIONS", "")
        if offered and str(self.version) not in (version.strip() for version in offered.split(",")):
            raise InvalidRequestError(
                f"the host has version {offered} of its plugin protocol: expected {self.version}.",
                "Install the plugin's release for this host.",
            )

    def line(self, socket: str) -> str:
        """Return the line that the host reads from stdout once the socket accepts connections.

        The last field would be the plugin's certificate.
        """
        return f"{CORE_PROTOCOL}|{self.version}|unix|{socket}|grpc|\n"


SOCKET_PATH_MAX = 107
"""Bytes of a socket's path (unix(7))."""

_PREFIX = "plugin-"
_NAME = "socket"


@contextmanager
def socket_path(environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield a path for the socket, in a new directory that is removed at the end of the block.

    The directory is below PLUGIN_UNIX_SOCKET_DIR, or else in the directory for temporary files. It is locked (flock(2))
    while the process lives, so an unlocked one is that of a killed plugin. systemd-tmpfiles skips locked ones, too.

    Raises:
        HostError: no directory can be made there, or the path would be too long.
    """
    parent = Path(environment.get("PLUGIN_UNIX_SOCKET_DIR") or tempfile.gettempdir())
    # A socket: a plugin that is just starting has not locked its new directory yet.
    for killed in parent.glob(f"{_PREFIX}*/{_NAME}"):
        with suppress(OSError):
            _remove_unlocked(killed.parent)
    directory, lock = _locked_directory(parent)
    try:
        path = directory / _NAME
        if len(os.fsencode(path)) > SOCKET_PATH_MAX:
            raise HostError(
                f"the socket's path {path} is longer than the {SOCKET_PATH_MAX} bytes that Linux allows.",
                "Set TMPDIR, or PLUGIN_UNIX_SOCKET_DIR, to a shorter directory.",
            )
        yield path
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(lock)


def _locked_directory(parent: Path) -> tuple[Path, int]:
    try:
        directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    except OSError as error:
        raise HostError(
            f"no directory for the socket can be made in {parent}: {error.strerror}.",
            "Set TMPDIR, or PLUGIN_UNIX_SOCKET_DIR, to a directory that the plugin can write to.",
        ) from error
    return directory, lock_directory(directory)


def _remove_unlocked(directory: Path) -> None:
    lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if try_lock(lock):  # not one of another user, with whom the directory for temporary files is shared
            shutil.rmtree(directory)
    finally:
        os.close(lock)


_SERVED = ("", "plugin")
"""The name of the server itself, and that which go-plugin's hosts check."""


def own_services(shutdown: asyncio.Event) -> list[Handler]:
    """Return the handlers of go-plugin's own services. The host's shutdown call sets *shutdown*."""
    plugin, health = plugin_pb2.DESCRIPTOR.services_by_name, health_pb2.DESCRIPTOR.services_by_name
    own = (plugin["GRPCController"], plugin["GRPCStdio"], plugin["GRPCBroker"], health["Health"])
    return [service_handler(each, OwnServices(shutdown), _to_failure) for each in own]


class OwnServices:
    """The services plugin.GRPCController, GRPCStdio and GRPCBroker, and of grpc.health.v1.Health what hosts call."""

    def __init__(self, shutdown: asyncio.Event) -> None:
        self._shutdown = shutdown

    async def shutdown(self, _: plugin_pb2.Empty) -> plugin_pb2.Empty:
        """Request the plugin's shutdown."""
        self._shutdown.set()
        return plugin_pb2.Empty()

    def stream_stdio(self, _: Empty) -> AsyncIterator[StdioData]:
        """Stream nothing: printed lines are log lines (see `hclog`). It stays open, since a host logs its end."""
        return _idle()

    def start_stream(self, _: AsyncIterator[ConnInfo]) -> AsyncIterator[ConnInfo]:
        """Stream nothing: neither side requests further connections."""
        return _idle()

    async def check(self, request: HealthCheckRequest) -> HealthCheckResponse:
        """Return that the plugin is serving.

        Raises:
            NotFoundError: there is no such service.
        """
        if request.service not in _SERVED:
            raise NotFoundError(f"no service {request.service!r} here: expected “plugin”.")
        return HealthCheckResponse(status=HealthCheckResponse.SERVING)


async def _idle() -> AsyncIterator[Any]:
    """Yield nothing, until the caller disconnects."""
    await asyncio.Event().wait()
    yield


def _to_failure(error: Exception) -> Failure | None:
    if isinstance(error, NotFoundError):
        return Failure(code=grpc.StatusCode.NOT_FOUND, message=str(error))
    return None


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
    """
    try:
        handshake.check_cookie(os.environ)
    except Solo5Error as error:
        print(error, file=sys.stderr)  # started by hand: stderr is a terminal, not the host's log
        return 1
    announced, log = redirect_stdio()
    log_to(log)
    try:
        handshake.check_protocol(os.environ)
        with socket_path(os.environ) as path:
            await _serve_at(path, handlers, lambda: _announce(handshake.line(str(path)), announced))
            await closing()
    except Solo5Error as error:
        _LOG.error("%s", error)
        return 1
    return 0


async def _serve_at(path: Path, handlers: Sequence[Handler], announce: Callable[[], None]) -> None:
    shutdown = asyncio.Event()
    options = [(f"grpc.max_{way}_message_length", _UNLIMITED) for way in ("send", "receive")]
    server = grpc.aio.server(handlers=[*handlers, *own_services(shutdown)], options=options)
    _listen(server, path)
    # A terminal's SIGINT goes to the host as well, which then shuts the plugin down.
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, shutdown.set)
    loop.add_signal_handler(signal.SIGINT, lambda: None)  # not SIG_IGN, which children would inherit
    await server.start()
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
