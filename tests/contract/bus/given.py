"""A task's unit, and calls for it."""

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager

from tests.contract.bus.fake_systemd import Unit
from tests.contract.netservice import PrivateBus

from solo5_systemd.base.names import TaskName
from solo5_systemd.bus.connection import Connection
from solo5_systemd.bus.manager import Manager
from solo5_systemd.dbus.messages import Variant
from solo5_systemd.task.properties import Property, TransientUnit

WEB = TaskName("web")
UNIT = "solo5-task-web.service"
SCOPE = "solo5-task-web.scope"
TRANSIENT = TransientUnit(name=UNIT, properties=(Property("MemoryMax", "t", 1 << 20),))
Call = Callable[[Manager], Coroutine[object, object, object]]
PROMPT = 15.0
"""Seconds within which a broken bus must be told; all our own timeouts are longer."""


def service(active: str = "active", *, invocation: int = 1, **properties: Variant) -> Unit:
    values = {"InvocationID": Variant("ay", bytes([invocation] * 16)), "FreezerState": Variant("s", "running")}
    return Unit(UNIT, active=active, properties=values | properties)


async def start(manager: Manager) -> None:
    await manager.start(TRANSIENT)


async def stop(manager: Manager) -> None:
    await manager.stop(UNIT)


@asynccontextmanager
async def restarted(bus: PrivateBus, connection: Connection) -> AsyncIterator[None]:
    """Restart the bus daemon for the block; close the connection and the daemon at its end."""
    bus.close()
    bus.open()
    try:
        yield
    finally:
        await connection.close()
        bus.close()
