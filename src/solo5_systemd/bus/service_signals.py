"""The broadcast signals of a service, across restarts of the service and of the bus."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

from solo5_systemd.bus.connection import Connection
from solo5_systemd.concurrency.retry import retry
from solo5_systemd.dbus_api.messages import Message, MessageType
from solo5_systemd.errors import HostError

RETRY_INTERVAL_S = 1.0
"""Interval between two attempts to connect to the bus."""


async def signal_bodies(connection: Connection, interface: str, member: str) -> AsyncGenerator[list[Any], None]:
    """Yield the body of each signal from now on, without an end. Signals during an outage of the bus are missed.

    Args:
        connection: to the system bus.
        interface: of the service, which is its bus name too.
        member: the signal.
    """
    arrived: asyncio.Queue[list[Any]] = asyncio.Queue()

    def received(message: Message) -> None:
        # A unicast signal has not been checked against the rule's sender: any user can send one.
        is_broadcast = message.message_type is MessageType.SIGNAL and not message.destination
        if is_broadcast and (message.interface, message.member) == (interface, member):
            arrived.put_nowait(message.body)

    rule = f"type='signal',sender='{interface}',interface='{interface}',member='{member}'"
    connection.listen(received)
    subscriber = asyncio.ensure_future(_keep_subscribed(connection, rule))
    try:
        while True:
            yield await arrived.get()
    finally:
        subscriber.cancel()
        connection.ignore(received)
        with suppress(HostError):
            await connection.unmatch(rule)


async def _keep_subscribed(connection: Connection, rule: str) -> None:
    """Add the match rule to each new connection."""

    async def subscribe() -> "asyncio.Future[None]":
        await connection.connect()
        lost = connection.lost
        await connection.match(rule)
        return lost

    while True:
        lost = await retry(subscribe, HostError, interval_s=RETRY_INTERVAL_S)
        await asyncio.wait((lost,))
