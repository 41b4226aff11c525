"""A gRPC service from its descriptor and an object whose coroutines are its methods."""

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

_LONGEST = 1500
"""Characters of an error's message: it travels in headers, twice, where clients may allow no more than 8 KiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An error as gRPC has it: code, sentence, and messages that a program can look for."""

    code: grpc.StatusCode
    message: str
    details: tuple[Message, ...] = ()

    def __post_init__(self) -> None:
        if self.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            raise ValueError(f"{self.code} tells go-plugin that the plugin is dead: expected another code.")


Explain: TypeAlias = Callable[[Exception], Failure | None]
"""What the caller is told of an error; None for one that nobody foresaw."""


def service_handler(descriptor: ServiceDescriptor, implementation: object, explain: Explain) -> Handler:
    """Serve *descriptor*'s methods by those of *implementation*, named alike in snake_case.

    A method takes the request, or an asynchronous iterator of requests. It is a coroutine that returns the response, or
    returns an asynchronous iterator of responses. What it raises is answered as *explain* has it, or else logged and
    answered as UNKNOWN; a call whose caller has gone is cancelled.

    Raises:
        AttributeError: *implementation* lacks a method.
    """
    methods = {method.name: _method_handler(method, implementation, explain) for method in descriptor.methods}
    return grpc.method_handlers_generic_handler(descriptor.full_name, methods)


def _method_handler(
    descriptor: MethodDescriptor, implementation: object, explain: Explain
) -> "grpc.RpcMethodHandler[Any, Any]":
    method = getattr(implementation, _snake_case(descriptor.name))
    answer, make = {
        (False, False): (_unary(method), grpc.unary_unary_rpc_method_handler),
        (False, True): (_stream(method), grpc.unary_stream_rpc_method_handler),
        (True, True): (_stream(method), grpc.stream_stream_rpc_method_handler),
    }[descriptor.client_streaming, descriptor.server_streaming]
    return make(
        _explained(answer, descriptor.name, explain),
        request_deserializer=_message_class(descriptor.input_type).FromString,
        response_serializer=_message_class(descriptor.output_type).SerializeToString,
    )


def _unary(method: Callable[[Any], Awaitable[Any]]) -> Callable[[Any, Context], Awaitable[Any]]:
    async def answer(request: Any, _: Context) -> Any:
        return await method(request)

    return answer


def _stream(method: Callable[[Any], AsyncIterator[Any]]) -> Callable[[Any, Context], Awaitable[None]]:
    async def answer(request: Any, context: Context) -> None:
        responses = method(request)
        try:
            async for response in responses:
                await context.write(response)
        finally:
            if isinstance(responses, AsyncGenerator):
                await responses.aclose()

    return answer


def _explained(
    answer: Callable[[Any, Context], Awaitable[Any]], name: str, explain: Explain
) -> Callable[[Any, Context], Awaitable[Any]]:
    async def answer_or_fail(request: Any, context: Context) -> Any:
        try:
            return await answer(request, context)
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            failure = _unforeseen(name, error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller is told
            failure = explain(error) or _unforeseen(name, error)
        return await _abort(context, failure)

    return answer_or_fail


def _is_cancelled() -> bool:
    """Whether the call itself is: what a call waits for may be cancelled as well, and the caller still waits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _unforeseen(name: str, error: BaseException) -> Failure:
    _LOG.error("%s failed as nobody foresaw: %s", name, error, exc_info=error)
    return Failure(
        code=grpc.StatusCode.UNKNOWN,
        message=f"{name} failed by a fault of the plugin ({type(error).__name__}: {error}); its log says where.",
    )


async def _abort(context: Context, failure: Failure) -> NoReturn:
    message = _sendable(failure.message)
    status = Status(code=failure.code.value[0], message=message)
    for detail in failure.details:
        status.details.add().Pack(detail)
    carried = (("grpc-status-details-bin", status.SerializeToString()),) if failure.details else ()
    await context.abort(failure.code, message, carried)


def _sendable(message: str) -> str:
    """The message in Unicode (a file name may hold something else), and without its middle where it is very long."""
    text = message.encode(errors="replace").decode()
    half = _LONGEST // 2
    return text if len(text) <= _LONGEST else f"{text[:half]} … {text[-half:]}"


def _snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _message_class(descriptor: Any) -> type[Message]:
    """The generated class. No public name for it is in both protobuf 3.21 and 7."""
    return cast("type[Message]", descriptor._concrete_class)  # noqa: SLF001
