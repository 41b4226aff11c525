"""The connection to the system bus: it reconnects, limits calls in flight, and translates errors."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from solo5_systemd.base.errors import HostError
from solo5_systemd.bus.peers import SYSTEMD, remote_error
from solo5_systemd.bus.unit_file_text import check_texts
from solo5_systemd.dbus import message_bus
from solo5_systemd.dbus.message_bus import BUS, BUS_PATH, CALL_TIMEOUT_S, MessageBus
from solo5_systemd.dbus.messages import Message, MessageType

MAX_IN_FLIGHT = 24
"""Concurrent calls per peer: dbus-daemon refuses more than 128 of one connection (max_replies_per_connection of
dbus-daemon(1)), and listing 100 tasks takes 1000 small calls. Per peer, so that a slow one does not delay others."""


class Connection:
    """A connection to the system bus. After a disconnect, the next call reconnects, with the same match rules.

    Attributes:
        lost: done when the current connection is lost, for callers that wait for a signal.
    """

    def __init__(self, address: str | None = None) -> None:
        self._address = address
        self._bus: MessageBus | None = None
        self._connecting = asyncio.Lock()
        self._closed = False
        self._listeners: list[Callable[[Message], object]] = []
        self._rules: Counter[str] = Counter()
        self._in_flight: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(MAX_IN_FLIGHT))
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def connect(self) -> MessageBus:
        """Connect unless connected, and return the connection of the library.

        Raises:
            HostError: the bus cannot be reached.
        """
        async with self._connecting:
            if self._closed:
                raise HostError("the connection to the system bus is closed.")
            if self._bus is None or not self._bus.connected:
                self._bus = await message_bus.connect(self._address, self._listeners)
                self.lost = self._bus.lost
                for rule in self._rules:  # before any call on it
                    self._change_rule("AddMatch", rule)
            return self._bus

    async def close(self) -> None:
        """Disconnect; later calls fail."""
        self._closed = True
        if self._bus is not None:
            self._bus.disconnect()

    def listen(self, listener: Callable[[Message], None]) -> None:
        """Add a callback for every received message, also of later connections."""
        self._listeners.append(listener)

    def ignore(self, listener: Callable[[Message], None]) -> None:
        """Remove a callback of `listen`."""
        self._listeners.remove(listener)

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
            signature: D-Bus type string of *body*.
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

    def match(self, sender: str, interface: str, member: str) -> None:
        """Have the bus pass a broadcast on, before the reply to any later call, over each connection that there is.

        Each rule names its sender: the bus passes no other user's broadcasts then, and `MessageBus` drops unicasts.
        """
        rule = _rule(sender, interface, member)
        self._rules[rule] += 1
        if self._rules[rule] == 1:
            self._change_rule("AddMatch", rule)

    def unmatch(self, sender: str, interface: str, member: str) -> None:
        """End what one call of `match` began."""
        rule = _rule(sender, interface, member)
        self._rules[rule] -= 1
        if not self._rules[rule]:
            del self._rules[rule]
            self._change_rule("RemoveMatch", rule)

    def _change_rule(self, member: str, rule: str) -> None:
        """Call the bus without waiting for its reply, which comes before those to later calls."""
        if self._bus is not None and self._bus.connected:
            self._bus.send(
                Message(destination=BUS, path=BUS_PATH, interface=BUS, member=member, signature="s", body=[rule])
            )


def _rule(sender: str, interface: str, member: str) -> str:
    return f"type='signal',sender='{sender}',interface='{interface}',member='{member}'"


@asynccontextmanager
async def system_bus(address: str | None = None) -> AsyncIterator[Connection]:
    """Yield a connection to the system bus, closed at the end of the block.

    Args:
        address: D-Bus address; None: $DBUS_SYSTEM_BUS_ADDRESS, or the default one.

    Raises:
        HostError: the bus cannot be reached.
    """
    connection = Connection(address)
    await connection.connect()
    try:
        yield connection
    finally:
        await connection.close()
