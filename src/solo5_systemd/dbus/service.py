"""A D-Bus activated service that exits when idle."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from solo5_systemd.base.errors import InvalidRequestError, Solo5Error
from solo5_systemd.dbus.fdstore import notify
from solo5_systemd.dbus.interfaces import Interface
from solo5_systemd.dbus.message_bus import MessageBus
from solo5_systemd.dbus.messages import Message, MessageType, SignatureTree, expects_reply, from_wire, to_wire

Handler = Callable[..., Awaitable[Sequence[object] | None]]

_log = logging.getLogger(__name__)


class Service:
    """Handles the method calls of one interface.

    Args:
        handlers: one per method, from and to plain values (None: no result). A file descriptor is passed as its number,
            and closed when the handler returns.
        needed: returns whether the service has to keep running when idle.
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

    async def serve(self, idle: float) -> bool:
        """Handle calls; return after `idle` seconds without a call in which the service was not needed.

        STOPPING=1 is sent before the bus name is released. A call after the release activates the service again, and
        systemd must have the message by then. Calls from before are still answered.

        Returns:
            Whether the service has to be restarted: a call that arrived between the last check and the release of the
            name made it needed. STOPPING=1 cannot be revoked, so only a restart can help.
        """
        async with asyncio.TaskGroup() as self._handler_tasks:
            self._bus.handler = self._on_message
            await self._bus.request_name(self._interface.name)
            notify("READY=1")
            while await self._is_called_within(idle) or self._calls or self._needed():
                pass
            notify("STOPPING=1")
            await self._bus.release_name(self._interface.name)
        return self._needed()

    def emit(self, member: str, body: Sequence[object]) -> None:
        """Emit a signal of the interface (broadcast)."""
        signature = self._interface.signals[member].out_signature
        self._send(Message.new_signal(self._interface.path, self._interface.name, member, signature, list(body)))

    def _send(self, message: Message) -> None:
        with suppress(OSError, EOFError):  # the connection has ended, and with it the process ends
            self._bus.send(message)

    async def _is_called_within(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                await self._called.wait()
        except TimeoutError:
            return False
        self._called.clear()
        return True

    def _on_message(self, message: Message) -> bool | Message:
        if message.message_type is not MessageType.METHOD_CALL or message.path != self._interface.path:
            return False
        if message.member == "Introspect" and message.interface == "org.freedesktop.DBus.Introspectable":
            return Message.new_method_return(message, "s", [_introspection(self._interface)])
        if message.interface != self._interface.name or message.member not in self._interface.methods:
            return False
        self._handler_tasks.create_task(self._handle(message))
        return True

    async def _handle(self, message: Message) -> None:
        self._calls += 1
        try:
            reply = await self._reply(message)
        except Solo5Error as error:
            text = "\n".join(filter(None, (error.sentence, error.hint)))
            reply = Message.new_error(message, error.dbus_name, text)
        except Exception:  # noqa: BLE001 - a bug in one method must not end the service
            _log.exception("internal error in %s", message.member)
            text = f"internal error of {self._interface.name} in {message.member}: see the journal of its unit."
            reply = Message.new_error(message, Solo5Error.dbus_name, text)
        finally:
            for fd in message.unix_fds:
                os.close(fd)
            self._calls -= 1
            self._called.set()
        if expects_reply(message):
            self._send_reply(message, reply)

    def _send_reply(self, message: Message, reply: Message) -> None:
        try:
            self._send(reply)
        except Exception:  # noqa: BLE001 - such as a text that D-Bus cannot carry, from a file of another program
            _log.exception("the reply of %s cannot be sent", message.member)
            text = f"the reply of {message.member} cannot be sent: see the journal of its unit."
            self._send(Message.new_error(message, Solo5Error.dbus_name, text))

    async def _reply(self, message: Message) -> Message:
        method = self._interface.methods[message.member]
        if message.signature != method.in_signature:
            raise InvalidRequestError(
                f"{message.member} was called with signature {message.signature!r}: expected {method.in_signature!r}."
            )
        body = await self._handlers[message.member](*_arguments(message)) or ()
        kinds = SignatureTree(method.out_signature).types
        reply = [to_wire(kind.signature, value) for kind, value in zip(kinds, body, strict=True)]
        return Message.new_method_return(message, method.out_signature, reply)


def _arguments(message: Message) -> list[Any]:
    """Return the plain body of a call, with descriptors in the place of their indices (type h)."""
    pairs = zip(message.signature_tree.types, message.body, strict=True)
    return [_descriptor(message, value) if kind.token == "h" else from_wire(value) for kind, value in pairs]  # noqa: S105


def _descriptor(message: Message, index: int) -> int:
    if not 0 <= index < len(message.unix_fds):
        raise InvalidRequestError(
            f"{message.member} was called with descriptor index {index}: expected less than {len(message.unix_fds)}."
        )
    return int(message.unix_fds[index])


def _introspection(interface: Interface) -> str:
    found = ""
    for kind, members in (("method", interface.methods), ("signal", interface.signals)):
        for name, member in members.items():
            directed = [(each.signature, "in") for each in SignatureTree(member.in_signature).types]
            directed += [(each.signature, "out") for each in SignatureTree(member.out_signature).types]
            pairs = zip(member.names.split(), directed, strict=True)
            arguments = (f'<arg name="{arg}" type="{of}" direction="{direction}"/>' for arg, (of, direction) in pairs)
            found += f'<{kind} name="{name}">{"".join(arguments)}</{kind}>'
    return f'<node><interface name="{interface.name}">{found}</interface></node>'
