"""The connection to the system bus: it reconnects, limits calls in flight, and translates errors."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from solo5_systemd.base.concurrency import retry
from solo5_systemd.base.errors import HostError
from solo5_systemd.bus.peers import CALL_RETRIES, PEER_LOST, RETRY_INTERVAL_S, SYSTEMD, RemoteError, remote_error
from solo5_systemd.bus.unit_file_text import check_texts
from solo5_systemd.dbus import message_bus
from solo5_systemd.dbus.message_bus import BUS, BUS_PATH, CALL_TIMEOUT_S, MessageBus
from solo5_systemd.dbus.messages import Message, MessageType

MAX_IN_FLIGHT = 24
"""Concurrent calls per peer: dbus-daemon refuses more than 128 of one connection (max_replies_per_connection of
dbus-daemon(1)), and listing 100 tasks takes 1000 small calls. Per peer, so that a slow one does not delay others."""


Signal: TypeAlias = tuple[str, str, str]
"""A broadcast: its sender, interface and member."""

Listener: TypeAlias = Callable[[list[Any] | None], object]
"""Called with the body of each signal; with None when the connection is lost, and signals may be."""


class Connection:
    """A connection to the system bus. After a disconnect, the next call reconnects, with the same match rules."""

    def __init__(self, address: str | None = None) -> None:
        self._address = address
        self._bus: MessageBus | None = None
        self._connecting = asyncio.Lock()
        self._closed = False
        self._listeners: defaultdict[Signal, Counter[Listener]] = defaultdict(Counter)
        self._in_flight: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(MAX_IN_FLIGHT))

    async def connect(self) -> MessageBus:
        """Connect unless connected, and return the connection of the library.

        Raises:
            HostError: the bus cannot be reached.
        """
        async with self._connecting:
            if self._closed:
                raise HostError("the connection to the system bus is closed.")
            if self._bus is None or not self._bus.connected:
                self._bus = await message_bus.connect(self._address, self._received)
                self._bus.lost.add_done_callback(self._lost)
                for signal, listeners in self._listeners.items():  # before any call on it
                    if listeners:
                        self._change_rule("AddMatch", signal)
            return self._bus

    async def close(self) -> None:
        """Disconnect; later calls fail."""
        self._closed = True
        if self._bus is not None:
            self._bus.disconnect()

    async def call(
        self,
        destination: str,
        path: str,
        interface: str,
        member: str,
        signature: str = "",
        body: Sequence[Any] = (),
        unix_fds: Sequence[int] = (),
        timeout_s: float | None = None,
    ) -> list[Any]:
        """Call a method and return the reply's body.

        Args:
            unix_fds: file descriptors that *body* refers to by index.
            timeout_s: seconds for the reply; None: `CALL_TIMEOUT_S`.

        Raises:
            InvalidRequestError: text for PID 1 would be unit file syntax; nothing was sent.
            Solo5Error: the peer returned an error of `errors`.
            RemoteError: the peer returned another error.
            HostError: timeout, or the connection was lost.
        """
        if destination == SYSTEMD:
            check_texts(member, body)
        message = Message(
            destination=destination,
            path=path,
            interface=interface,
            member=member,
            signature=signature,
            body=list(body),
            unix_fds=list(unix_fds),
        )
        limit = CALL_TIMEOUT_S if timeout_s is None else timeout_s
        try:
            async with self._in_flight[destination], asyncio.timeout(limit):
                bus = await self.connect()
                reply = await bus.call(message)
        except TimeoutError as error:
            raise HostError(f"{destination} did not answer {member} within {limit:.0f} seconds.") from error
        except (EOFError, OSError) as error:
            raise HostError(
                f"the connection to the system bus broke during {member}: {str(error) or 'it was closed'}."
            ) from error
        if reply.message_type is MessageType.ERROR:
            name = reply.error_name or ""
            raise remote_error(name, str(reply.body[0]) if reply.body else name)
        return list(reply.body)

    async def call_systemd(
        self,
        path: str,
        interface: str,
        member: str,
        signature: str = "",
        body: Sequence[Any] = (),
        unix_fds: Sequence[int] = (),
    ) -> list[Any]:
        """Call a method of PID 1 as `call`, and again while that is off the bus, such as during its re-execution.

        A call without a reply was not handled, since PID 1 replies in the same step; or it is a reload, freeze or thaw,
        which may be repeated.
        """
        return await retry(
            lambda: self.call(SYSTEMD, path, interface, member, signature, body, unix_fds),
            RemoteError,
            interval_s=RETRY_INTERVAL_S,
            attempts=1 + CALL_RETRIES,
            transient=lambda error: error.name in PEER_LOST,
        )

    def listen(self, signal: Signal, listener: Listener) -> None:
        """Have the bus pass a broadcast on, before the reply to any later call, over each connection that there is.

        Each rule names its sender: the bus passes no other user's broadcasts then, and `MessageBus` drops unicasts.
        """
        if not self._listeners[signal]:
            self._change_rule("AddMatch", signal)
        self._listeners[signal][listener] += 1

    def ignore(self, signal: Signal, listener: Listener) -> None:
        """End what one call of `listen` began."""
        self._listeners[signal] -= Counter((listener,))
        if not self._listeners[signal]:
            self._change_rule("RemoveMatch", signal)

    def _change_rule(self, member: str, signal: Signal) -> None:
        """Call the bus without waiting for its reply, which comes before those to later calls."""
        if self._bus is not None and self._bus.connected:
            rule = "type='signal',sender='{}',interface='{}',member='{}'".format(*signal)
            self._bus.send(
                Message(destination=BUS, path=BUS_PATH, interface=BUS, member=member, signature="s", body=[rule])
            )

    def _received(self, message: Message) -> None:
        if message.message_type is MessageType.SIGNAL:
            for (_, *name), listeners in self._listeners.items():
                if name == [message.interface, message.member]:
                    for listener in listeners:
                        listener(message.body)

    def _lost(self, _: object) -> None:
        for listeners in self._listeners.values():
            for listener in listeners:
                listener(None)


@asynccontextmanager
async def system_bus(address: str | None = None) -> AsyncIterator[Connection]:
    """Yield a connection to the system bus, or to that of an address, closed at the end of the block.

    Raises:
        HostError: the bus cannot be reached.
    """
    connection = Connection(address)
    await connection.connect()
    try:
        yield connection
    finally:
        await connection.close()
