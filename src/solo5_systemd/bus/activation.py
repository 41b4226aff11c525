"""Calls to a service of ours, which the bus starts, and why one is not answered, as the bus and PID 1 have it."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from solo5_systemd.bus.connection import CALL_TIMEOUT_S, Connection, RemoteError
from solo5_systemd.bus.unit_watch import unit_path
from solo5_systemd.dependencies import LACKING
from solo5_systemd.errors import DependencyError, HostError

LATE = 1.0
"""Seconds without an answer after which the unit is read. The bus does not report a start that failed: a call waits for
all of its timeout then."""

ANSWER_TIMEOUT = CALL_TIMEOUT_S + 5.0
"""Seconds for one reply: longer than the bus waits for a start, so that its error comes first: the call was not
delivered."""

START_TIMEOUT = 60.0
"""Seconds after which a start is given up: `TimeoutStartSec=` of our units."""

_BUS, _BUS_PATH = "org.freedesktop.DBus", "/org/freedesktop/DBus"
_SYSTEMD = "org.freedesktop.systemd1"

_START_TIMED_OUT = "org.freedesktop.DBus.Error.TimedOut"
_ABSENT = "org.freedesktop.DBus.Error.ServiceUnknown"


@dataclass(frozen=True, kw_only=True)
class Service:
    """A service of ours.

    Attributes:
        unit: without its suffix.
        name: on the bus.
        connection: the system bus.
        timeout: seconds for one reply; the bus reports the end of a service at once.
    """

    unit: str
    name: str
    connection: Connection
    timeout: float = ANSWER_TIMEOUT

    async def answer(
        self, path: str, member: str, signature: str = "", body: Sequence[object] = (), fds: Sequence[int] = ()
    ) -> list[Any]:
        """Call a method of it and return the reply's body.

        The service may be started by this call. Where that takes longer than the bus waits, the bus has dropped the
        call undelivered, and it is made anew for as long as PID 1 allows the start.

        Raises:
            DependencyError: it lacks something, and gave no answer in a second.
            RemoteError: it answered with an error that has no class of ours, or could not be started.
            Solo5Error: it answered with an error of ours, or not at all.
        """
        until = time.monotonic() + START_TIMEOUT
        while True:
            try:
                return await self._reply(path, member, signature, body, fds)
            except RemoteError as error:
                if error.name != _START_TIMED_OUT or time.monotonic() > until:
                    raise

    async def _reply(
        self, path: str, member: str, signature: str, body: Sequence[object], fds: Sequence[int]
    ) -> list[Any]:
        calling = asyncio.ensure_future(
            self.connection.call(self.name, path, self.name, member, signature, body, fds, self.timeout)
        )
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
                f"{self.unit} is not installed: expected a service that the system bus can activate.",
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
