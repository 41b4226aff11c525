"""PID 1 as the engine sees it: start, stop, signal, freeze, look."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from typing import Any

from dbus_next import Variant

from solo5_systemd.backends import JobFailedError, UnitFiles
from solo5_systemd.bus.connection import Connection, RemoteError
from solo5_systemd.bus.jobs import MANAGER, MANAGER_PATH, SYSTEMD, Jobs
from solo5_systemd.bus.watch import watch
from solo5_systemd.errors import HostError, InvalidRequestError, NoSuchTaskError, TakenError
from solo5_systemd.names import TASK_PREFIX, TaskName, task_scope, task_service
from solo5_systemd.unit.properties import Property, TransientUnit
from solo5_systemd.unit.state import SCOPE_PROPERTIES, SERVICE_PROPERTIES, UNIT_PROPERTIES, UnitState, unit_state

UNIT = "org.freedesktop.systemd1.Unit"
INTERFACES = {"service": "org.freedesktop.systemd1.Service", "scope": "org.freedesktop.systemd1.Scope"}
TYPE_PROPERTIES = {"service": SERVICE_PROPERTIES, "scope": SCOPE_PROPERTIES}


class Manager:
    """systemd's Manager over one connection; fulfils `backends.Units`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._jobs = Jobs(connection)

    async def start(self, unit: TransientUnit, files: UnitFiles) -> None:
        fds: list[int] = []
        properties = [_to_wire(p) for p in unit.properties]
        for name, fd in (("StandardInputFileDescriptor", files.stdin), ("StandardErrorFileDescriptor", files.stderr)):
            if fd is not None:
                properties.append([name, Variant("h", len(fds))])
                fds.append(fd)
        body = [unit.name, "fail", properties, []]
        try:
            result = await self._jobs.run("StartTransientUnit", "ssa(sv)a(sa(sv))", body, fds)
        except RemoteError as error:
            raise _start_error(unit.name, error) from error
        if result != "done":
            raise JobFailedError(unit.name, result)

    async def stop(self, unit: str) -> None:
        try:
            await self._jobs.run("StopUnit", "ss", [unit, "fail"])
        except RemoteError as error:
            if not _no_such_unit(error):
                raise _other(error) from error

    async def kill(self, unit: str, number: int, *, everyone: bool) -> None:
        try:
            await self._manager("KillUnit", "ssi", [unit, "all" if everyone else "main", number])
        except RemoteError as error:
            # "main" of a unit whose main process has just ended: what was wanted has happened.
            if not _no_such_unit(error) and not error.name.endswith("NoSuchProcess"):
                raise _other(error) from error

    async def forget(self, units: Sequence[str]) -> None:
        for unit in units:
            with suppress(RemoteError):  # not loaded: nothing to forget
                await self._manager("ResetFailedUnit", "s", [unit])

    async def freeze(self, unit: str) -> None:
        await self._freezer("FreezeUnit", unit)

    async def thaw(self, unit: str) -> None:
        await self._freezer("ThawUnit", unit)

    async def state(self, task: TaskName) -> UnitState | None:
        names = [task_service(task), task_scope(task)]
        listed = await self._manager("ListUnitsByNames", "as", [names])
        loaded = [row for row in listed[0] if row[2] == "loaded"]
        return await self._read(loaded[0][0], loaded[0][6]) if loaded else None

    async def states(self) -> Sequence[UnitState]:
        patterns = [f"{TASK_PREFIX}*.service", f"{TASK_PREFIX}*.scope"]
        listed = await self._manager("ListUnitsByPatterns", "asas", [[], patterns])
        rows = [row for row in listed[0] if row[2] == "loaded"]
        states = await asyncio.gather(*(self._read(row[0], row[6]) for row in rows))
        return [state for state in states if state is not None]

    async def changes(self, state: UnitState) -> AsyncGenerator[UnitState, None]:
        await self._jobs.subscribe()
        async with aclosing(watch(self._connection, state.unit, lambda: self.state(state.task))) as states:
            async for now in states:
                yield now

    async def _read(self, unit: str, path: str) -> UnitState | None:
        """The properties that we use, one by one: GetAll would have PID 1 read every file of the cgroup as well."""
        kind = unit.rpartition(".")[2]
        wanted = [(UNIT, name) for name in UNIT_PROPERTIES]
        wanted += [(INTERFACES[kind], name) for name in TYPE_PROPERTIES[kind]]
        values = await asyncio.gather(*(self._get(path, interface, name) for interface, name in wanted))
        return unit_state(unit, {name: v for (_, name), v in zip(wanted, values, strict=True) if v is not None})

    async def _get(self, path: str, interface: str, name: str) -> object:
        try:
            reply = await self._connection.call(
                SYSTEMD, path, "org.freedesktop.DBus.Properties", "Get", "ss", [interface, name]
            )
        except RemoteError:
            return None  # unloaded meanwhile, or a property that this systemd does not have yet
        return reply[0].value

    async def _freezer(self, member: str, unit: str) -> None:
        try:
            await self._manager(member, "s", [unit])
        except RemoteError as error:
            if _no_such_unit(error):
                raise NoSuchTaskError(f"unit {unit} is not loaded.") from error
            raise _other(error) from error

    async def _manager(self, member: str, signature: str, body: Sequence[Any]) -> list[Any]:
        return await self._connection.call(SYSTEMD, MANAGER_PATH, MANAGER, member, signature, body)


def _to_wire(item: Property) -> list[Any]:
    return [item.name, Variant(item.signature, _plain(item.value))]


def _plain(value: object) -> object:
    """Tuples are D-Bus structs, which dbus-next wants as lists."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _no_such_unit(error: RemoteError) -> bool:
    return error.name.endswith(".NoSuchUnit")


def _start_error(unit: str, error: RemoteError) -> Exception:
    if error.name.endswith(".UnitExists"):
        return TakenError(f"unit {unit} exists already.")
    if error.name.endswith((".InvalidArgs", ".PropertyReadOnly", ".BadUnitSetting")):
        return InvalidRequestError(f"systemd refuses the unit {unit}: {error.text}")
    return _other(error)


def _other(error: RemoteError) -> HostError:
    return HostError(f"systemd answered {error.name}: {error.text}")
