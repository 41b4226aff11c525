"""gRPC services from a descriptor, and an object with a coroutine for each method, which may be made at a call."""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn, TypeAlias, cast

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message

from solo5_systemd.goplugin.proto.status_pb2 import Status

Handler: TypeAlias = grpc.GenericRpcHandler
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

_LOG = logging.getLogger(__name__)

_MESSAGE_MAX = 1500
"""Characters of an error message: it is sent in headers, twice, and clients may limit these to 8 KiB."""


DetailOf: TypeAlias = Callable[[Exception], Message | None]
"""Returns the detail of an expected error, for programs; None: it is an internal error."""


def service_handler(
    descriptor: ServiceDescriptor, implementation: Callable[[], object], detail_of: DetailOf
) -> Handler:
    """Return a handler that serves the methods of *descriptor* by those of *implementation()*, in snake_case.

    A method takes the request, or an asynchronous iterator of requests. It is a coroutine that returns the response, or
    returns an asynchronous iterator of responses; a response may be serialised already. A call is cancelled when its
    caller disconnects.

    An exception to which *detail_of* returns a detail becomes the status FAILED_PRECONDITION with that detail; any
    other is logged, with the status UNKNOWN. UNAVAILABLE and CANCELLED would mean a dead plugin to hosts.
    """
    methods = {method.name: _method_handler(method, implementation, detail_of) for method in descriptor.methods}
    return grpc.method_handlers_generic_handler(descriptor.full_name, methods)


def _method_handler(
    descriptor: MethodDescriptor, implementation: Callable[[], object], detail_of: DetailOf
) -> "grpc.RpcMethodHandler[Any, Any]":
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", descriptor.name).lower()

    def method(request: Any) -> Any:
        return getattr(implementation(), name)(request)

    call, make = {
        (False, False): (lambda request, _: method(request), grpc.unary_unary_rpc_method_handler),
        (False, True): (_stream(method), grpc.unary_stream_rpc_method_handler),
        (True, True): (_stream(method), grpc.stream_stream_rpc_method_handler),
    }[descriptor.client_streaming, descriptor.server_streaming]
    return make(
        _with_error_status(call, descriptor.name, detail_of),
        # The generated class of the request. Protobuf 3.21 and 7 have no public name for it in common.
        request_deserializer=cast("Any", descriptor.input_type)._concrete_class.FromString,  # noqa: SLF001
        response_serializer=lambda response: response if isinstance(response, bytes) else response.SerializeToString(),
    )


def _stream(method: Callable[[Any], AsyncIterator[Any]]) -> Callable[[Any, Context], Awaitable[None]]:
    async def call(request: Any, context: Context) -> None:
        responses = method(request)
        try:
            async for response in responses:
                await context.write(response)
        finally:
            if isinstance(responses, AsyncGenerator):  # run its cleanup now, not at garbage collection
                await responses.aclose()

    return call


def _with_error_status(
    call: Callable[[Any, Context], Awaitable[Any]], name: str, detail_of: DetailOf
) -> Callable[[Any, Context], Awaitable[Any]]:
    async def call_or_abort(request: Any, context: Context) -> Any:
        try:
            return await call(request, context)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # the call itself is cancelled, and not only a future that it awaits
            return await _abort_internal(context, name, error)
        except Exception as error:  # noqa: BLE001 - each becomes the status of the call
            detail = detail_of(error)
            if detail is None:
                return await _abort_internal(context, name, error)
            code, message = grpc.StatusCode.FAILED_PRECONDITION, _sendable(str(error))
            status = Status(code=code.value[0], message=message)
            status.details.add().Pack(detail)
            return await context.abort(code, message, (("grpc-status-details-bin", status.SerializeToString()),))

    return call_or_abort


async def _abort_internal(context: Context, name: str, error: BaseException) -> NoReturn:
    _LOG.error("%s: internal error: %s", name, error, exc_info=error)
    message = f"{name}: internal error of the plugin ({type(error).__name__}: {error}); see its log for the place."
    await context.abort(grpc.StatusCode.UNKNOWN, _sendable(message))


def _sendable(message: str) -> str:
    """Return a message in valid Unicode (a file name may have other bytes), without its middle if it is too long."""
    text = message.encode(errors="replace").decode()
    half = _MESSAGE_MAX // 2
    return text if len(text) <= _MESSAGE_MAX else f"{text[:half]} … {text[-half:]}"
