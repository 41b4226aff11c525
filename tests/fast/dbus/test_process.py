"""The end of a service's connection to the bus."""

import asyncio
import socket

import pytest
from tests.support.fakes.background import yields

from solo5_systemd.base.errors import HostError
from solo5_systemd.dbus.message_bus import MessageBus
from solo5_systemd.dbus.process import serve_with, until_disconnected


@pytest.fixture
def ends() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    return ours, theirs


async def test_a_service_that_has_ended_can_still_close_its_connection(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    bus = MessageBus(ends[0])

    async def serving() -> bool:
        await yields()
        return True

    assert await serve_with(serving(), until_disconnected(bus))
    assert not bus.lost.done()
    bus.disconnect()
    assert ends[0].fileno() == -1
    ends[1].close()


async def test_a_lost_connection_ends_the_service_with_one_error(ends: tuple[socket.socket, socket.socket]) -> None:
    bus = MessageBus(ends[0])
    waiting = asyncio.ensure_future(until_disconnected(bus))
    await yields()
    bus.disconnect()
    with pytest.raises(HostError, match="lost the connection"):
        await waiting
    ends[1].close()
