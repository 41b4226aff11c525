"""Why a service of ours does not answer, as the bus and PID 1 have it."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from solo5_systemd.bus.connection import Connection, RemoteError
from solo5_systemd.bus.watch import unit_path
from solo5_systemd.dependencies import LACKING
from solo5_systemd.errors import DependencyError, HostError

T = TypeVar("T")

LATE = 1.0
"""Seconds without an answer after which the unit is read. The bus does not report a start that failed: a call waits for
all of its timeout then."""

_BUS, _BUS_PATH = "org.freedesktop.DBus", "/org/freedesktop/DBus"
_SYSTEMD = "org.freedesktop.systemd1"

_ABSENT = "org.freedesktop.DBus.Error.ServiceUnknown"


@dataclass(frozen=True, kw_only=True)
class Service:
    """A service of ours.

    Attributes:
        unit: without its suffix.
        name: on the bus.
        connection: the system bus.
    """

    unit: str
    name: str
    connection: Connection

    async def answer(self, call: Coroutine[Any, Any, T]) -> T:
        """Return the result of a call to it, or raise early where it cannot start.

        Raises:
            DependencyError: it lacks something, and gave no answer in a second.
            Exception: whatever the call raises.
        """
        calling = asyncio.ensure_future(call)
        try:
            while not (await asyncio.wait({calling}, timeout=LATE))[0]:
                lacking = await self._lacking()
                if lacking is not None:
                    raise lacking
            return await calling
        finally:
            calling.cancel()

    async def unanswered(self, error: RemoteError) -> HostError:
        """Return why a call failed: the service is absent, or lacks something, or else the bus's own words."""
        if error.name == _ABSENT:
            return HostError(
                f"{self.unit} is not installed: expected it to be started by the system bus.",
                "The package installs it; `solo5ctl doctor` shows what else is missing.",
            )
        return await self._lacking() or HostError(
            f"{self.unit} did not start or did not answer: {error.text}.",
            f"`systemctl status {self.unit}` and `journalctl -u {self.unit}` show why.",
        )

    async def _lacking(self) -> DependencyError | None:
        """Return what keeps it from starting, where that is a dependency; its last process left the sentence."""
        try:
            [owned] = await self.connection.call(_BUS, _BUS_PATH, _BUS, "NameHasOwner", "s", [self.name])
            if owned:
                return None
            status = await self._property("ExecMainStatus")
            sentence = await self._property("StatusText") if status == LACKING else ""
        except (HostError, RemoteError):
            return None
        if status != LACKING:
            return None
        return DependencyError(
            f"{self.unit} cannot start: {sentence or 'a dependency is missing.'}",
            f"`journalctl -u {self.unit}` shows it.",
        )

    async def _property(self, name: str) -> object:
        body = [f"{_SYSTEMD}.Service", name]
        path = unit_path(f"{self.unit}.service")
        [value] = await self.connection.call(_SYSTEMD, path, "org.freedesktop.DBus.Properties", "Get", "ss", body)
        return value.value
