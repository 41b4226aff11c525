"""A service on the bus that is started by its first call, and leaves when nobody has needed it for a while."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from dbus_next import Message, MessageType
from dbus_next.aio import MessageBus

from solo5_systemd.dbus_api.interface import Interface
from solo5_systemd.errors import InvalidRequestError, Solo5Error

Handler = Callable[..., Awaitable[Sequence[object]]]

_log = logging.getLogger(__name__)


class Service:
    """Answers calls of one interface.

    Args:
        bus: a connected bus.
        interface: what is answered.
        handlers: one for each method: wire values in, wire values out. A descriptor comes as its number, and is closed
            when the handler is done.
        needed: whether somebody relies on us, so that we have to stay.
    """

    def __init__(
        self, bus: MessageBus, interface: Interface, handlers: Mapping[str, Handler], needed: Callable[[], bool]
    ) -> None:
        self._bus = bus
        self._interface = interface
        self._handlers = handlers
        self._needed = needed
        self._calls = 0
        self._called = asyncio.Event()

    async def serve(self, idle: float, ready: Callable[[], None], stopping: Callable[[], None]) -> bool:
        """Answer, and return when nobody has needed us for `idle` seconds.

        Args:
            idle: in seconds.
            ready: called as soon as calls are answered.
            stopping: called before the name is given up: whoever calls then has us started anew, and systemd must
                know by then that it has to wait for our end. What arrived before is still answered.

        Returns:
            Whether we are needed again: a call came in between the decision to leave and the moment from which the bus
            sends calls to our successor. There is no way back from `stopping`, so we are to be started again.
        """
        async with asyncio.TaskGroup() as self._answers:
            self._bus.add_message_handler(self._received)
            await self._bus.request_name(self._interface.name)
            ready()
            while await self._called_within(idle) or self._calls or self._needed():
                pass
            stopping()
            await self._bus.release_name(self._interface.name)
        return self._needed()

    async def tell(self, member: str, body: Sequence[object]) -> None:
        """Send one of the interface's signals to whoever listens."""
        signature = self._interface.signals[member].tells
        await self._bus.send(
            Message.new_signal(self._interface.path, self._interface.name, member, signature, list(body))
        )

    async def _called_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._called.wait()
        except TimeoutError:
            return False
        self._called.clear()
        return True

    def _received(self, message: Message) -> bool | Message:
        if message.message_type is not MessageType.METHOD_CALL or message.path != self._interface.path:
            return False
        if message.member == "Introspect" and message.interface == "org.freedesktop.DBus.Introspectable":
            return Message.new_method_return(message, "s", [self._interface.introspection()])
        if message.interface != self._interface.name or message.member not in self._interface.methods:
            return False
        self._answers.create_task(self._answer(message))
        return True

    async def _answer(self, message: Message) -> None:
        self._calls += 1
        try:
            reply = await self._reply(message)
        except Solo5Error as error:
            text = "\n".join(filter(None, (error.sentence, error.hint)))
            reply = Message.new_error(message, error.dbus_name, text)
        except Exception:  # noqa: BLE001 - the one catch-all of a service, logged and told
            _log.exception("%s failed in a way that nobody foresaw.", message.member)
            text = f"{self._interface.name} failed at {message.member}: its unit's journal has the details."
            reply = Message.new_error(message, Solo5Error.dbus_name, text)
        finally:
            for fd in message.unix_fds:
                os.close(fd)
            self._calls -= 1
            self._called.set()
        await self._bus.send(reply)

    async def _reply(self, message: Message) -> Message:
        method = self._interface.methods[message.member]
        if message.signature != method.takes:
            raise InvalidRequestError(
                f"{message.member} was called with {message.signature or 'nothing'}: expected {method.takes}."
            )
        body = await self._handlers[message.member](*_arguments(message))
        return Message.new_method_return(message, method.gives, list(body))


def _arguments(message: Message) -> list[Any]:
    """The body, where a descriptor stands as its place among those that came along."""
    pairs = zip(message.signature_tree.types, message.body, strict=True)
    return [_descriptor(message, value) if kind.token == "h" else value for kind, value in pairs]  # noqa: S105


def _descriptor(message: Message, place: int) -> int:
    if not 0 <= place < len(message.unix_fds):
        raise InvalidRequestError(f"{message.member} was called without descriptor {place}: expected it to come along.")
    return int(message.unix_fds[place])
