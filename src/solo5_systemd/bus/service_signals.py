"""What a service of ours tells everybody who listens, through every restart of the service and of the bus."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

from dbus_next import Message, MessageType

from solo5_systemd.bus.connection import Connection
from solo5_systemd.errors import HostError

AWAY = 1.0
"""Seconds between two attempts while the bus is away."""


async def notices(connection: Connection, interface: str, member: str) -> AsyncGenerator[list[Any], None]:
    """The body of each signal from now on, for ever. What is told while the bus is away is missed.

    Args:
        connection: the system bus.
        interface: the service's, whose bus name it is as well.
        member: which signal.
    """
    arrived: asyncio.Queue[list[Any]] = asyncio.Queue()

    def received(message: Message) -> None:
        # What is sent to us alone has not passed the rule: anybody may send that.
        told = message.message_type is MessageType.SIGNAL and not message.destination
        if told and (message.interface, message.member) == (interface, member):
            arrived.put_nowait(message.body)

    rule = f"type='signal',sender='{interface}',interface='{interface}',member='{member}'"
    connection.listen(received)
    armer = asyncio.ensure_future(_stay_armed(connection, rule))
    try:
        while True:
            yield await arrived.get()
    finally:
        armer.cancel()
        connection.ignore(received)
        with suppress(HostError):
            await connection.unmatch(rule)


async def _stay_armed(connection: Connection, rule: str) -> None:
    """Have the bus send us what matches; a new connection has to be told anew."""
    while True:
        try:
            await connection.connect()
            lost = connection.lost
            await connection.match(rule)
        except HostError:
            await asyncio.sleep(AWAY)
        else:
            await asyncio.wait((lost,))
