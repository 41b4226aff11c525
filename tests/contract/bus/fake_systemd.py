"""A fake PID 1 on a private bus: it records calls, and sends real signals."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any

from solo5_systemd.base.names import unit_path
from solo5_systemd.bus.peers import MANAGER, MANAGER_PATH, SYSTEMD
from solo5_systemd.dbus.message_bus import MessageBus, connect
from solo5_systemd.dbus.messages import Message, MessageType, Variant

UNITS = "a(ssssssouso)"
PROPERTIES = "org.freedesktop.DBus.Properties"
UNKNOWN_PROPERTY = "org.freedesktop.DBus.Error.UnknownProperty"


class Report(Enum):
    """When JobRemoved is sent, relative to the reply with the job's path."""

    BEFORE = "before"
    AFTER = "after"
    NEVER = "never"


@dataclass
class Unit:
    """A loaded unit: its row in ListUnits, and its properties by name."""

    name: str
    active: str = "active"
    load: str = "loaded"
    job: str = ""
    properties: dict[str, Variant] = field(default_factory=dict)

    def row(self) -> list[Any]:
        job = 7 if self.job else 0
        return [self.name, "text", self.load, self.active, "sub", "", unit_path(self.name), job, self.job, "/"]


class FakeSystemd:
    """The methods of org.freedesktop.systemd1(5) that the engine calls.

    Attributes:
        calls: all Manager calls, as member and body, in order.
        read: all properties that were read, in order.
        files: device and inode of each received file descriptor.
        passing: members that return their error once.
        report: when JobRemoved is sent.
        one_job: each call returns the same job, as merged jobs do.
        on_list: called between a listing and its reply.
        others: answers the calls of other interfaces.
    """

    def __init__(self, bus: MessageBus) -> None:
        self.bus = bus
        self.calls: list[tuple[str, list[Any]]] = []
        self.read: list[str] = []
        self.files: list[tuple[int, int]] = []
        self.units: dict[str, Unit] = {}
        self.about = {"Version": "257"}
        self.errors: dict[str, str] = {}
        self.passing: set[str] = set()
        self.report = Report.AFTER
        self.result = "done"
        self.one_job = False
        self.silent: set[str] = set()
        self.on_list = _nothing
        self.others: Callable[[Message], Message | bool] = bool
        self._jobs = 0
        self._next_call = asyncio.Event()
        bus.handler = self._received

    async def appear(self) -> None:
        await self.bus.request_name(SYSTEMD)

    def called(self, member: str) -> list[list[Any]]:
        return [body for name, body in self.calls if name == member]

    async def until_called(self, member: str, times: int = 1) -> None:
        while len(self.called(member)) < times:
            await self._next_call.wait()

    # --- signals ---------------------------------------------------------------------------------------------

    def finish(self, job: str) -> None:
        self.bus.send(
            Message(
                message_type=MessageType.SIGNAL,
                path=MANAGER_PATH,
                interface=MANAGER,
                member="JobRemoved",
                signature="uoss",
                body=[1, job, "unit", self.result],
            )
        )

    # --- calls -----------------------------------------------------------------------------------------------

    def _received(self, message: Message) -> Message | bool:
        if message.message_type is not MessageType.METHOD_CALL:
            return False
        if message.interface == PROPERTIES:
            return self._get(message, *message.body)
        if message.interface != MANAGER:
            return self.others(message)
        self.calls.append((message.member, message.body))
        self._next_call.set()
        self._next_call = asyncio.Event()
        for fd in message.unix_fds:
            status = os.fstat(fd)
            self.files.append((status.st_dev, status.st_ino))
        if message.member in self.silent:
            return True
        if message.member in self.errors:
            error = self.errors[message.member]
            if message.member in self.passing:
                del self.errors[message.member]
            return Message.new_error(message, error, "the reason.")
        answer: Message = getattr(self, f"_{message.member}", self._done)(message)
        return answer

    def _done(self, message: Message) -> Message:
        return Message.new_method_return(message)

    def _job(self, message: Message) -> Message:
        if not self._jobs or not self.one_job:
            self._jobs += 1
        job = f"{MANAGER_PATH}/job/{self._jobs}"
        if self.report is Report.BEFORE:
            self.finish(job)
        elif self.report is Report.AFTER:
            asyncio.get_running_loop().call_later(0.01, self.finish, job)
        return Message.new_method_return(message, "o", [job])

    _StartTransientUnit = _StartUnit = _StopUnit = _job

    def _ListUnitsByNames(self, message: Message) -> Message:  # noqa: N802 - D-Bus members, as they are spelt
        rows = [self.units.get(name, Unit(name, active="inactive", load="not-found")).row() for name in message.body[0]]
        return self._listed(message, rows)

    def _ListUnitsByPatterns(self, message: Message) -> Message:  # noqa: N802
        _, patterns = message.body
        rows = [unit.row() for unit in self.units.values() if any(fnmatchcase(unit.name, p) for p in patterns)]
        return self._listed(message, rows)

    def _listed(self, message: Message, rows: list[list[Any]]) -> Message:
        self.on_list()
        return Message.new_method_return(message, UNITS, [rows])

    def _get(self, message: Message, _: str, name: str) -> Message:
        """Return a property, as systemd does: a unit that is not loaded has LoadState `not-found`."""
        self.read.append(name)
        if "Get" in self.errors:
            return Message.new_error(message, self.errors["Get"], "the reason.")
        if message.path == MANAGER_PATH:
            return Message.new_method_return(message, "v", [Variant("s", self.about[name])])
        unit = next((unit for unit in self.units.values() if unit_path(unit.name) == message.path), None)
        values = {"LoadState": Variant("s", unit.load if unit else "not-found"), "InvocationID": Variant("ay", b"")}
        values |= {"ActiveState": Variant("s", unit.active), **unit.properties} if unit else {}
        with suppress(KeyError):
            return Message.new_method_return(message, "v", [values[name]])
        return Message.new_error(message, UNKNOWN_PROPERTY, name)


@asynccontextmanager
async def pid1(address: str, units: dict[str, Unit] | None = None) -> AsyncIterator[FakeSystemd]:
    """Yield a fake PID 1 with units; the bus may exit before it."""
    bus = await connect(address)
    systemd = FakeSystemd(bus)
    systemd.units = {} if units is None else units
    await systemd.appear()
    try:
        yield systemd
    finally:
        bus.disconnect()


def _nothing() -> object:
    return None
