"""Ask systemd which tasks' network units still stand."""

from collections.abc import Iterable

from dbus_next import Message, MessageType
from dbus_next.aio import MessageBus

from solo5_systemd.names import TaskName, network_service

_STANDING = ("active", "activating", "reloading", "deactivating")


async def without_unit(bus: MessageBus, tasks: Iterable[TaskName]) -> frozenset[TaskName]:
    """The tasks among these whose network unit is not there; none where systemd does not answer."""
    units = {network_service(task): task for task in tasks}
    reply = await bus.call(
        Message(
            destination="org.freedesktop.systemd1",
            path="/org/freedesktop/systemd1",
            interface="org.freedesktop.systemd1.Manager",
            member="ListUnitsByNames",
            signature="as",
            body=[list(units)],
        )
    )
    if reply.message_type is not MessageType.METHOD_RETURN:
        return frozenset()
    return frozenset(units[name] for name, _, _, state, *_ in reply.body[0] if state not in _STANDING)
