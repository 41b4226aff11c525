"""gRPC services from a descriptor, and an object with a coroutine for each method."""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The gRPC status of an error, with details for programs. UNAVAILABLE and CANCELLED mean a dead plugin to hosts."""

    code: grpc.StatusCode
    message: str
    details: tuple[Message, ...] = ()


ToFailure: TypeAlias = Callable[[Exception], Failure | None]
"""Returns the gRPC status of an exception; None: it is an internal error."""


def service_handler(descriptor: ServiceDescriptor, implementation: object, to_failure: ToFailure) -> Handler:
    """Return a handler that serves the methods of *descriptor* by those of *implementation*, in snake_case.

    A method takes the request, or an asynchronous iterator of requests. It is a coroutine that returns the response, or
    returns an asynchronous iterator of responses; a response may be serialised already. An exception becomes the status
    that *to_failure* returns, or else is logged, with the status UNKNOWN. A call is cancelled when its caller
    disconnects.

    Raises:
        AttributeError: *implementation* lacks a method.
    """
    methods = {method.name: _method_handler(method, implementation, to_failure) for method in descriptor.methods}
    return grpc.method_handlers_generic_handler(descriptor.full_name, methods)


def _method_handler(
    descriptor: MethodDescriptor, implementation: object, to_failure: ToFailure
) -> "grpc.RpcMethodHandler[Any, Any]":
    method = getattr(implementation, re.sub(r"(?<!^)(?=[A-Z])", "_", descriptor.name).lower())
    call, make = {
        (False, False): (_unary(method), grpc.unary_unary_rpc_method_handler),
        (False, True): (_stream(method), grpc.unary_stream_rpc_method_handler),
        (True, True): (_stream(method), grpc.stream_stream_rpc_method_handler),
    }[descriptor.client_streaming, descriptor.server_streaming]
    return make(
        _with_error_status(call, descriptor.name, to_failure),
        # The generated class of the request. Protobuf 3.21 and 7 have no public name for it in common.
        request_deserializer=cast("Any", descriptor.input_type)._concrete_class.FromString,  # noqa: SLF001
        response_serializer=lambda response: response if isinstance(response, bytes) else response.SerializeToString(),
    )


def _unary(method: Callable[[Any], Awaitable[Any]]) -> Callable[[Any, Context], Awaitable[Any]]:
    async def call(request: Any, _: Context) -> Any:
        return await method(request)

    return call


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
    call: Callable[[Any, Context], Awaitable[Any]], name: str, to_failure: ToFailure
) -> Callable[[Any, Context], Awaitable[Any]]:
    async def call_or_abort(request: Any, context: Context) -> Any:
        try:
            return await call(request, context)
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            failure = _internal_error(name, error)
        except Exception as error:  # noqa: BLE001 - each becomes the status of the call
            failure = to_failure(error) or _internal_error(name, error)
        return await _abort(context, failure)

    return call_or_abort


def _is_cancelled() -> bool:
    """Return whether the call itself is cancelled, and not only a future that it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _internal_error(name: str, error: BaseException) -> Failure:
    _LOG.error("%s: internal error: %s", name, error, exc_info=error)
    return Failure(
        code=grpc.StatusCode.UNKNOWN,
        message=f"{name}: internal error of the plugin ({type(error).__name__}: {error}); see its log for the place.",
    )


async def _abort(context: Context, failure: Failure) -> NoReturn:
    message = _sendable(failure.message)
    status = Status(code=failure.code.value[0], message=message)
    for detail in failure.details:
        status.details.add().Pack(detail)
    carried = (("grpc-status-details-bin", status.SerializeToString()),) if failure.details else ()
    await context.abort(failure.code, message, carried)


def _sendable(message: str) -> str:
    """Return a message in valid Unicode (a file name may have other bytes), without its middle if it is too long."""
    text = message.encode(errors="replace").decode()
    half = _MESSAGE_MAX // 2
    return text if len(text) <= _MESSAGE_MAX else f"{text[:half]} … {text[-half:]}"
