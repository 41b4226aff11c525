"""Unicast signals of a local user, which the policy of the system bus allows."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from dbus_next import Message
from dbus_next.aio import MessageBus as LibraryBus

from solo5_systemd.bus.connection import Connection, system_bus
from solo5_systemd.dbus.message_bus import BUS, BUS_PATH

FDS = Path("/proc/self/fd")
MOST = 16
"""Descriptors of one message; dbus-daemon passes as many."""


@pytest.fixture
async def stranger(address: str) -> AsyncIterator[LibraryBus]:
    bus = await LibraryBus(bus_address=address, negotiate_unix_fd=True).connect()
    yield bus
    bus.disconnect()
    bus._sock.close()


@pytest.fixture
async def watched(address: str) -> AsyncIterator[tuple[Connection, list[Message]]]:
    """Yield a connection, and the messages that its callbacks received."""
    seen: list[Message] = []
    async with system_bus() as connection:
        connection.listen(seen.append)
        yield connection, seen


def signal(to: str | None, body: Sequence[object] = (), signature: str = "", fds: Sequence[int] = ()) -> Message:
    message = Message.new_signal("/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager", "JobRemoved")
    message.destination = to
    message.body, message.signature = list(body), signature
    message.unix_fds = list(fds)
    return message


async def match(connection: Connection, rule: str) -> None:
    """Add a rule that passes the broadcasts of any user, which no part of the program has."""
    await connection.call(BUS, BUS_PATH, BUS, "AddMatch", "s", [rule])


async def arrived(connection: Connection, stranger: LibraryBus) -> None:
    """Wait until all messages of the sender have been read: the bus keeps their order."""
    end: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    def listener(message: Message) -> None:
        if message.member == "End" and not end.done():
            end.set_result(None)

    await match(connection, "type='signal',member='End'")
    connection.listen(listener)
    await stranger.send(Message.new_signal("/", "x.x", "End"))
    await asyncio.wait_for(end, 60)
    connection.ignore(listener)


async def test_descriptors_of_a_strangers_signals_are_closed(
    watched: tuple[Connection, list[Message]], stranger: LibraryBus, tmp_path: Path
) -> None:
    connection, _ = watched
    name = (await connection.connect()).unique_name
    file = tmp_path / "file"
    file.touch()
    for _ in range(20):
        fds = [os.open(file, os.O_RDONLY) for _ in range(MOST)]
        await stranger.send(signal(name, range(MOST), "h" * MOST, fds))
        for fd in fds:
            os.close(fd)
    await arrived(connection, stranger)
    assert [fd for fd in FDS.iterdir() if fd.resolve() == file] == []


async def test_a_strangers_signal_reaches_no_listener_and_its_body_is_not_read(
    watched: tuple[Connection, list[Message]], stranger: LibraryBus
) -> None:
    connection, seen = watched
    name = (await connection.connect()).unique_name
    await match(connection, "type='signal',interface='org.freedesktop.systemd1.Manager'")
    numbers = list(range(10_000))
    await stranger.send(signal(name, [1, "/a", "b", "done"], "uoss"))
    await stranger.send(signal(name, [numbers], "ai"))
    await stranger.send(signal(None, [numbers[:9]], "ai"))  # to all: the rule lets it through
    await arrived(connection, stranger)
    bodies = [message.body for message in seen if message.member in ("JobRemoved", "x")]
    assert bodies == [[numbers[:9]]]
