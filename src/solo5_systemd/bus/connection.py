"""The system bus: one connection that outlives the bus's own restarts, bounded calls, errors in our words."""

import asyncio
import socket
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from dbus_next import BusType, Message, MessageType
from dbus_next.errors import DBusError

from solo5_systemd.errors import BY_DBUS_NAME, HostError
from solo5_systemd.messagebus import MessageBus

SOCKET = "/run/dbus/system_bus_socket"
"""Of the system bus (systemd's dbus.socket)."""

IN_FLIGHT = 24
"""Calls to one peer that wait for a reply at once. dbus-next gives a connection up when its socket's buffer is full
(its writer takes EAGAIN for an error), and listing a hundred tasks is a thousand small calls. For each peer apart, so
that a slow one delays nobody who asks another."""

SEND_BUFFER = 1 << 20
"""Bytes that are asked for, against the same fault; the kernel gives what net.core.wmem_max allows."""

CALL_TIMEOUT_S = 25.0
"""Seconds for one reply: as long as dbus-daemon waits for a service that it activates (`service_start_timeout`)."""


class RemoteError(Exception):
    """A peer's error that has no class of ours.

    Attributes:
        name: the D-Bus error name.
        text: what the peer said.
    """

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name
        self.text = text


class Connection:
    """The system bus. Where it was lost, the next call connects again, and fails where that is not possible.

    What the bus knew of us is lost with it: whoever has it know something (match rules, subscriptions) tells it again
    when the generation has changed.

    Attributes:
        generation: how many connections there have been.
        lost: done as soon as the present one is gone, so that nobody waits for a signal that cannot come.
    """

    def __init__(self, address: str | None = None) -> None:
        self._address = address
        self._bus: MessageBus | None = None
        self._connecting = asyncio.Lock()
        self._closed = False
        self._listeners: list[Callable[[Message], None]] = []
        self._in_flight: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(IN_FLIGHT))
        self.generation = 0
        self.lost: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    async def connect(self) -> MessageBus:
        """The bus, connected.

        Raises:
            HostError: it cannot be reached.
        """
        async with self._connecting:
            if self._closed:
                raise HostError("the connection to the system bus is closed.")
            if self._bus is None or not self._bus.connected:
                await self._hang_up()
                self._bus = await _connected(self._address)
                self.lost = asyncio.ensure_future(_disconnected(self._bus))
                self.generation += 1
                for listener in self._listeners:
                    self._bus.add_message_handler(listener)
            return self._bus

    async def close(self) -> None:
        self._closed = True
        await self._hang_up()

    def listen(self, listener: Callable[[Message], None]) -> None:
        """Have every message that comes, from now on and over every later connection."""
        self._listeners.append(listener)
        if self._bus is not None:
            self._bus.add_message_handler(listener)

    def ignore(self, listener: Callable[[Message], None]) -> None:
        """Undo `listen`."""
        self._listeners.remove(listener)
        if self._bus is not None:
            self._bus.remove_message_handler(listener)

    async def call(
        self,
        destination: str,
        path: str,
        interface: str,
        member: str,
        signature: str = "",
        body: Sequence[Any] = (),
        unix_fds: Sequence[int] = (),
        within: float | None = None,
    ) -> list[Any]:
        """Call a method and return the reply's body.

        Args:
            destination: bus name of the peer.
            path: of its object.
            interface: of the method.
            member: the method.
            signature: D-Bus type string of *body*.
            body: arguments.
            unix_fds: descriptors that *body* refers to by index.
            within: seconds for the reply; None: `CALL_TIMEOUT_S`.

        Raises:
            Solo5Error: the peer answered with an error of ours.
            RemoteError: with another error.
            HostError: with none in time, or the bus is gone.
        """
        message = Message(
            destination=destination,
            path=path,
            interface=interface,
            member=member,
            signature=signature,
            body=list(body),
            unix_fds=list(unix_fds),
        )
        limit = CALL_TIMEOUT_S if within is None else within
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
        if reply is None:  # what the library gives where the bus was closed in order
            raise HostError(f"the system bus was closed during {member}.")
        if reply.message_type is MessageType.ERROR:
            raise _error(reply)
        return list(reply.body)

    async def match(self, rule: str) -> None:
        await self._bus_call("AddMatch", rule)

    async def unmatch(self, rule: str) -> None:
        await self._bus_call("RemoveMatch", rule)

    async def _bus_call(self, member: str, rule: str) -> None:
        await self.call("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus", member, "s", [rule])

    async def _hang_up(self) -> None:
        bus, self._bus = self._bus, None
        if bus is None:
            return
        if bus.connected:
            bus.disconnect()
        await self.lost
        _close(bus)


def _error(reply: Message) -> Exception:
    name = reply.error_name or ""
    text = str(reply.body[0]) if reply.body else name
    ours = BY_DBUS_NAME.get(name)
    if ours is not None:
        sentence, _, hint = text.partition("\n")
        return ours(sentence, hint)
    if name in (
        "org.freedesktop.DBus.Error.AccessDenied",
        "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired",
    ):
        return HostError(f"the system bus refuses: {text.rstrip('.')}.", "Run it as root.")
    return RemoteError(name, text)


@asynccontextmanager
async def system_bus(address: str | None = None) -> AsyncIterator[Connection]:
    """Connect, and disconnect in the end.

    Args:
        address: D-Bus's own; None: the system's, or that of $DBUS_SYSTEM_BUS_ADDRESS.

    Raises:
        HostError: there is no system bus to connect to.
    """
    connection = Connection(address)
    await connection.connect()
    try:
        yield connection
    finally:
        await connection.close()


class _Bus(MessageBus):
    """The library's own, which would read for ever from a daemon that ends while we say who we are."""

    async def _auth_readline(self) -> str:
        line = b""
        while not line.endswith(b"\r\n"):
            piece = await self._loop.sock_recv(self._sock, 2)
            if not piece:
                raise EOFError("it was closed during the authentication")
            line += piece
        return line[:-2].decode()


def _reason(error: Exception, where: str) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{where}: {error.strerror}"
    return str(error) or "it does not answer"


async def _connected(address: str | None) -> MessageBus:
    try:
        bus = _Bus(bus_address=address, bus_type=BusType.SYSTEM, negotiate_unix_fd=True)
        bus._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)  # noqa: SLF001
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                return await bus.connect()
        except BaseException:
            asyncio.get_running_loop().remove_reader(bus._fd)  # noqa: SLF001
            _close(bus)
            raise
    except (OSError, DBusError, EOFError) as error:
        from solo5_systemd.dependencies import advice

        raise HostError(
            f"the system bus cannot be reached: {_reason(error, address or SOCKET)}.",
            advice(SOCKET),
        ) from error


def _close(bus: MessageBus) -> None:
    """The library shuts its socket down, and leaves closing it to the garbage collector."""
    with suppress(OSError):  # words that could not be sent any more
        bus._stream.close()  # noqa: SLF001
    bus._sock.close()  # noqa: SLF001


async def _disconnected(bus: MessageBus) -> None:
    """Whatever ended it: who speaks next is told."""
    with suppress(EOFError, OSError):
        await bus.wait_for_disconnect()
