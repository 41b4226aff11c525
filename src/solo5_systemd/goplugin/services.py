"""The services by which a host manages any plugin."""

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
"""The server as a whole, and the name that go-plugin's hosts ask for."""


def handlers(over: asyncio.Event) -> list[Handler]:
    """All of them; *over* is set when the host wants the plugin to end."""
    plugin = plugin_pb2.DESCRIPTOR.services_by_name
    return [
        service_handler(plugin["GRPCController"], Controller(over), _explain),
        service_handler(plugin["GRPCStdio"], Stdio(), _explain),
        service_handler(plugin["GRPCBroker"], Broker(), _explain),
        service_handler(health_pb2.DESCRIPTOR.services_by_name["Health"], Health(), _explain),
    ]


class Controller:
    def __init__(self, over: asyncio.Event) -> None:
        self._over = over

    async def shutdown(self, _: plugin_pb2.Empty) -> plugin_pb2.Empty:
        self._over.set()
        return plugin_pb2.Empty()


class Stdio:
    """Nothing is printed here: see pipes. The stream is held, as a host would report its end."""

    def stream_stdio(self, _: Empty) -> AsyncIterator[StdioData]:
        return _Silence()


class Broker:
    """Hosts open it in case either side wants further connections; we never do."""

    def start_stream(self, _: AsyncIterator[ConnInfo]) -> AsyncIterator[ConnInfo]:
        return _Silence()


class Health:
    async def check(self, request: HealthCheckRequest) -> HealthCheckResponse:
        if request.service not in _SERVED:
            raise NotFoundError(f"no service {request.service!r} here: expected “plugin”.")
        return _serving()

    async def list(self, _: health_pb2.HealthListRequest) -> health_pb2.HealthListResponse:
        return health_pb2.HealthListResponse(statuses=dict.fromkeys(_SERVED, _serving()))

    async def watch(self, request: HealthCheckRequest) -> AsyncIterator[HealthCheckResponse]:
        known = request.service in _SERVED
        yield _serving() if known else HealthCheckResponse(status=HealthCheckResponse.SERVICE_UNKNOWN)
        async for _ in _Silence():
            pass


class _Silence:
    """A stream that says nothing until its caller goes."""

    def __aiter__(self) -> "_Silence":
        return self

    async def __anext__(self) -> Never:
        await asyncio.Event().wait()
        raise StopAsyncIteration


def _serving() -> HealthCheckResponse:
    return HealthCheckResponse(status=HealthCheckResponse.SERVING)


def _explain(error: Exception) -> Failure | None:
    if isinstance(error, NotFoundError):
        return Failure(code=grpc.StatusCode.NOT_FOUND, message=str(error))
    return None
