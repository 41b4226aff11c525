"""The system bus: one connection, bounded calls, errors in our words."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from dbus_next import BusType, Message, MessageType
from dbus_next.aio import MessageBus
from dbus_next.errors import DBusError

from solo5_systemd.errors import BY_DBUS_NAME, HostError

IN_FLIGHT = 24
"""Calls that wait for a reply at once. dbus-next gives a connection up when its socket's buffer is full (its writer
takes EAGAIN for an error), and listing a hundred tasks is a thousand small calls."""

CALL_TIMEOUT = 25.0
"""Seconds for one reply: dbus-daemon's own patience for a service that it activates."""


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
    """A connected system bus.

    Attributes:
        bus: the library's own object.
        lost: done as soon as the bus is gone, so that nobody waits for a signal that cannot come.
    """

    def __init__(self, bus: MessageBus) -> None:
        self.bus = bus
        self._in_flight = asyncio.Semaphore(IN_FLIGHT)
        self.lost: asyncio.Future[object] = asyncio.ensure_future(_disconnected(bus))

    def check(self) -> None:
        """Raise if the bus is gone.

        Raises:
            HostError: it is.
        """
        if self.lost.done() or not self.bus.connected:
            raise HostError(
                "the connection to the system bus broke.", "Check that dbus is running: systemctl status dbus.service"
            )

    async def call(
        self,
        destination: str,
        path: str,
        interface: str,
        member: str,
        signature: str = "",
        body: Sequence[Any] = (),
        unix_fds: Sequence[int] = (),
    ) -> list[Any]:
        """Call a method and return the reply's body.

        Raises:
            Solo5Error: the peer answered with an error of ours.
            RemoteError: with another error.
            HostError: with none in time, or the bus is gone.
        """
        self.check()
        message = Message(
            destination=destination,
            path=path,
            interface=interface,
            member=member,
            signature=signature,
            body=list(body),
            unix_fds=list(unix_fds),
        )
        try:
            async with self._in_flight, asyncio.timeout(CALL_TIMEOUT):
                reply = await self.bus.call(message)
        except TimeoutError as error:
            raise HostError(f"{destination} did not answer {member} within {CALL_TIMEOUT:.0f} seconds.") from error
        except (EOFError, OSError) as error:
            raise HostError(f"the connection to the system bus broke during {member}: {error}.") from error
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
async def system_bus() -> AsyncIterator[Connection]:
    """Connect, and disconnect in the end.

    Raises:
        HostError: there is no system bus to connect to.
    """
    try:
        bus = await MessageBus(bus_type=BusType.SYSTEM, negotiate_unix_fd=True).connect()
    except (OSError, DBusError, EOFError) as error:
        raise HostError(
            f"the system bus cannot be reached: {error}.",
            "Check that dbus is running: systemctl status dbus.socket dbus.service",
        ) from error
    connection = Connection(bus)
    try:
        yield connection
    finally:
        if bus.connected:
            bus.disconnect()
        await connection.lost
        _close(bus)


def _close(bus: MessageBus) -> None:
    """The library shuts its socket down, and leaves closing it to the garbage collector."""
    with suppress(OSError):  # words that could not be sent any more
        bus._stream.close()  # noqa: SLF001
    bus._sock.close()  # noqa: SLF001


async def _disconnected(bus: MessageBus) -> None:
    """Whatever ended it: who speaks next is told."""
    with suppress(EOFError, OSError):
        await bus.wait_for_disconnect()
