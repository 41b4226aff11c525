"""The gRPC services of go-plugin itself, by which a host manages any plugin."""

import asyncio
from collections.abc import AsyncIterator
from typing import Never

import grpc
from google.protobuf.empty_pb2 import Empty

from solo5_systemd.errors import NotFoundError
from solo5_systemd.goplugin.proto import health_pb2, plugin_pb2
from solo5_systemd.goplugin.proto.health_pb2 import HealthCheckRequest, HealthCheckResponse
from solo5_systemd.goplugin.proto.plugin_pb2 import ConnInfo, StdioData
from solo5_systemd.goplugin.rpc import Failure, Handler, service_handler

_SERVED = ("", "plugin")
"""The name of the whole server, and that which go-plugin's hosts check."""


def handlers(shutdown: asyncio.Event) -> list[Handler]:
    """Return the handlers of all services. The host's shutdown call sets *shutdown*."""
    plugin = plugin_pb2.DESCRIPTOR.services_by_name
    return [
        service_handler(plugin["GRPCController"], Controller(shutdown), _to_failure),
        service_handler(plugin["GRPCStdio"], Stdio(), _to_failure),
        service_handler(plugin["GRPCBroker"], Broker(), _to_failure),
        service_handler(health_pb2.DESCRIPTOR.services_by_name["Health"], Health(), _to_failure),
    ]


class Controller:
    """The service plugin.GRPCController."""

    def __init__(self, shutdown: asyncio.Event) -> None:
        self._shutdown = shutdown

    async def shutdown(self, _: plugin_pb2.Empty) -> plugin_pb2.Empty:
        """Request the plugin's shutdown."""
        self._shutdown.set()
        return plugin_pb2.Empty()


class Stdio:
    """The service plugin.GRPCStdio, without data: printed lines are log lines (see `stdio`)."""

    def stream_stdio(self, _: Empty) -> AsyncIterator[StdioData]:
        """Stream nothing. The stream stays open, since a host logs its end."""
        return _IdleStream()


class Broker:
    """The service plugin.GRPCBroker, by which either side could request further connections; unused."""

    def start_stream(self, _: AsyncIterator[ConnInfo]) -> AsyncIterator[ConnInfo]:
        """Stream nothing."""
        return _IdleStream()


class Health:
    """The service grpc.health.v1.Health."""

    async def check(self, request: HealthCheckRequest) -> HealthCheckResponse:
        """Return that the plugin is serving.

        Raises:
            NotFoundError: there is no such service.
        """
        if request.service not in _SERVED:
            raise NotFoundError(f"no service {request.service!r} here: expected “plugin”.")
        return _serving()

    async def list(self, _: health_pb2.HealthListRequest) -> health_pb2.HealthListResponse:
        """Return the status of all services."""
        return health_pb2.HealthListResponse(statuses=dict.fromkeys(_SERVED, _serving()))

    async def watch(self, request: HealthCheckRequest) -> AsyncIterator[HealthCheckResponse]:
        """Stream the status of a service, which never changes."""
        served = request.service in _SERVED
        yield _serving() if served else HealthCheckResponse(status=HealthCheckResponse.SERVICE_UNKNOWN)
        async for _ in _IdleStream():
            pass


class _IdleStream:
    """A stream without messages, open until its caller disconnects."""

    def __aiter__(self) -> "_IdleStream":
        return self

    async def __anext__(self) -> Never:
        await asyncio.Event().wait()
        raise StopAsyncIteration


def _serving() -> HealthCheckResponse:
    return HealthCheckResponse(status=HealthCheckResponse.SERVING)


def _to_failure(error: Exception) -> Failure | None:
    if isinstance(error, NotFoundError):
        return Failure(code=grpc.StatusCode.NOT_FOUND, message=str(error))
    return None
