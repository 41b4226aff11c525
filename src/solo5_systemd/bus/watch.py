"""One unit's changes. A signal is only a hint: what counts is the state that is read after it."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress

from dbus_next import Message, MessageType

from solo5_systemd.bus.connection import Connection
from solo5_systemd.bus.jobs import MANAGER, MANAGER_PATH, SYSTEMD
from solo5_systemd.errors import HostError
from solo5_systemd.unit.state import UnitState

REREAD = 5.0
"""Seconds after which the state is read even if no signal came: a lost signal delays, and never hangs."""

_ALNUM = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")


def unit_path(unit: str) -> str:
    """A unit's D-Bus object path: all but letters and digits as `_` and two hexadecimal digits."""
    escaped = "".join(
        c if c in _ALNUM and not (i == 0 and c.isdigit()) else f"_{ord(c):02x}" for i, c in enumerate(unit)
    )
    return f"{MANAGER_PATH}/unit/{escaped}"


async def watch(
    connection: Connection, unit: str, read: Callable[[], Awaitable[UnitState | None]]
) -> AsyncGenerator[UnitState, None]:
    """The unit's state now and after each change; ends when it is unloaded.

    The manager must have been subscribed to before: without that, systemd emits no signals.
    """
    path = unit_path(unit)
    changed = asyncio.Event()
    rules = (
        f"type='signal',sender='{SYSTEMD}',path='{path}',interface='org.freedesktop.DBus.Properties'",
        f"type='signal',sender='{SYSTEMD}',path='{MANAGER_PATH}',interface='{MANAGER}',member='UnitRemoved',arg0='{unit}'",
    )

    def received(message: Message) -> bool:
        removed = message.member == "UnitRemoved" and message.body[:1] == [unit]
        if message.message_type is MessageType.SIGNAL and (message.path == path or removed):
            changed.set()
        return False

    def lost(_: object) -> None:
        changed.set()  # the next read says it

    connection.bus.add_message_handler(received)
    connection.lost.add_done_callback(lost)
    try:
        for rule in rules:
            await connection.match(rule)
        while (state := await read()) is not None:
            yield state
            with suppress(TimeoutError):
                async with asyncio.timeout(REREAD):
                    await changed.wait()
            changed.clear()
    finally:
        connection.lost.remove_done_callback(lost)
        connection.bus.remove_message_handler(received)
        for rule in rules:
            with suppress(HostError):  # the bus is gone, and its rules with it
                await connection.unmatch(rule)
