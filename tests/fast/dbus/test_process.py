"""The end of a service's connection to the bus."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
from tests.support.fakes.background import yields

from solo5_systemd.base.errors import HostError
from solo5_systemd.dbus.message_bus import MessageBus
from solo5_systemd.dbus.process import serve_with


@pytest.fixture
async def ends() -> AsyncIterator[tuple[MessageBus, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    yield MessageBus(ours), theirs
    theirs.close()


async def test_a_service_that_has_ended_closes_its_connection(ends: tuple[MessageBus, socket.socket]) -> None:
    async def serving() -> bool:
        await yields()
        assert ends[0].connected
        return True

    assert await serve_with(ends[0], serving())
    assert not ends[0].connected
    assert ends[1].recv(1) == b""


async def test_a_lost_connection_ends_the_service_with_one_error(ends: tuple[MessageBus, socket.socket]) -> None:
    async def serving() -> bool:
        await yields()
        ends[0].disconnect()
        await asyncio.Event().wait()
        return False

    with pytest.raises(ExceptionGroup) as failed:
        await serve_with(ends[0], serving())
    [error] = failed.value.exceptions
    assert isinstance(error, HostError)
    assert "lost the connection" in str(error)
