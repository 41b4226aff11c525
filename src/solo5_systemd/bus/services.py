"""Calls to the D-Bus-activated services of this package, the reason for a missing reply, and their signals."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from solo5_systemd.base.concurrency import retry
from solo5_systemd.base.dependencies import EXIT_CONFIG
from solo5_systemd.base.errors import DependencyError, HostError
from solo5_systemd.base.names import unit_path
from solo5_systemd.bus.connection import Connection
from solo5_systemd.bus.peers import (
    MANAGER,
    MANAGER_PATH,
    PROPERTIES,
    RETRY_INTERVAL_S,
    SYSTEMD,
    WATCH_INTERVAL_S,
    RemoteError,
)
from solo5_systemd.dbus.interfaces import Interface
from solo5_systemd.dbus.message_bus import BUS, BUS_PATH, CALL_TIMEOUT_S
from solo5_systemd.dbus.messages import SignatureTree, from_wire, to_wire

T = TypeVar("T")

STATUS_INTERVAL_S = 1.0
"""Interval at which the service's unit is read while there is no reply. The bus does not report a failed activation:
without the read, the call would wait for its full timeout."""

REPLY_TIMEOUT_S = CALL_TIMEOUT_S + 5.0
"""Timeout of one call: longer than that of an activation, whose error (the call was undelivered) has to come first."""

ACTIVATION_TIMEOUT_S = 60.0
"""Timeout of an activation: `TimeoutStartSec=` of the services' units."""

_START_TIMED_OUT = "org.freedesktop.DBus.Error.TimedOut"
_LIMIT = "org.freedesktop.DBus.Error.LimitsExceeded"
_ABSENT = "org.freedesktop.DBus.Error.ServiceUnknown"
_DIED = "org.freedesktop.DBus.Error.NoReply"
"""The bus's errors: an activation takes too long, too many wait, there is no such service, it exits during a call."""


@dataclass(frozen=True, kw_only=True)
class Service:
    """A D-Bus-activated service of this package.

    Attributes:
        unit: unit name without suffix.
        timeout: seconds for one reply; a service that exits is reported by the bus at once.
        attempts: of a call during which the service exits; of several, the methods are idempotent.
    """

    unit: str
    interface: Interface
    connection: Connection
    timeout: float = REPLY_TIMEOUT_S
    attempts: int = 1

    async def call(self, member: str, *body: object, fds: Sequence[int] = ()) -> list[Any]:
        """Call a method with plain values and return the reply's body, in plain values as well.

        The call may activate the service. If that takes longer than the bus waits, the bus drops the call undelivered,
        and the call is retried within ACTIVATION_TIMEOUT_S. If the bus is at a limit, such as that of activations (512
        of all users together: any user can use them up), `StartUnit` of PID 1 starts the service, and the call is
        retried.

        Raises:
            DependencyError: a dependency of the service is missing.
            HostError: the service is not installed, or has not started.
            Solo5Error: an error of the service, or no reply.
        """
        try:
            return await retry(
                lambda: retry(
                    lambda: self._reply(member, body, fds),
                    RemoteError,
                    interval_s=RETRY_INTERVAL_S,
                    timeout_s=ACTIVATION_TIMEOUT_S,
                    transient=lambda error: error.name in (_START_TIMED_OUT, _LIMIT),
                ),
                RemoteError,
                interval_s=0,  # the next call activates it again
                attempts=self.attempts,
                transient=lambda error: error.name == _DIED,
            )
        except RemoteError as error:
            raise await self._explained(error) from error

    async def _reply(self, member: str, body: Sequence[object], fds: Sequence[int]) -> list[Any]:
        name, signature = self.interface.name, self.interface.methods[member].in_signature
        kinds = SignatureTree(signature).types
        sent = [to_wire(kind.signature, value) for kind, value in zip(kinds, body, strict=True)]
        calling = asyncio.ensure_future(
            self.connection.call(name, self.interface.path, name, member, signature, sent, fds, self.timeout)
        )
        try:
            while not (await asyncio.wait({calling}, timeout=STATUS_INTERVAL_S))[0]:
                missing = await self._missing_dependency()
                if missing is not None:
                    raise missing
            return [*map(from_wire, await calling)]
        except RemoteError as error:
            if error.name == _LIMIT:
                start = [f"{self.unit}.service", "replace"]
                await self.connection.call(SYSTEMD, MANAGER_PATH, MANAGER, "StartUnit", "ss", start)
            raise
        finally:
            calling.cancel()

    async def signals(self, member: str, make: Callable[..., T]) -> AsyncGenerator[T, None]:
        """Yield what is made of each signal from now on, without an end. Does not activate the service.

        Signals during an outage of the bus are missed.
        """
        signal = self.interface.name, self.interface.name, member
        arrived: asyncio.Queue[list[Any] | None] = asyncio.Queue()
        self.connection.listen(signal, arrived.put_nowait)
        try:
            while True:
                await retry(self.connection.connect, HostError, interval_s=WATCH_INTERVAL_S)
                while (body := await arrived.get()) is not None:
                    yield make(*body)
        finally:
            self.connection.ignore(signal, arrived.put_nowait)

    async def _explained(self, error: RemoteError) -> HostError:
        """Return the cause of a failed call: service not installed, dependency missing, or the text of the error."""
        if error.name == _ABSENT:
            return HostError(
                f"{self.unit} is not installed: expected a service that the system bus can activate.",
                "The package installs it; `solo5ctl doctor` shows what else is missing.",
            )
        return await self._missing_dependency() or HostError(
            f"{self.unit} did not start or did not answer: {error.text.rstrip('.')}.",
            f"`systemctl status {self.unit}` and `journalctl -u {self.unit}` show why.",
        )

    async def _missing_dependency(self) -> DependencyError | None:
        """Return the missing dependency that the service's last process reported as STATUS=, or None."""
        try:
            [owned] = await self.connection.call(BUS, BUS_PATH, BUS, "NameHasOwner", "s", [self.interface.name])
            if owned:
                return None  # it runs, and is only slow
            status = await self._property("ExecMainStatus")
            sentence = await self._property("StatusText") if status == EXIT_CONFIG else ""
        except (HostError, RemoteError):
            return None  # the pending call reports the failure of the bus or PID 1
        if status != EXIT_CONFIG:
            return None
        return DependencyError(
            f"{self.unit} cannot start: {sentence or 'a dependency is missing.'}",
            f"`journalctl -u {self.unit}` shows it.",
        )

    async def _property(self, name: str) -> object:
        body = [f"{SYSTEMD}.Service", name]
        path = unit_path(f"{self.unit}.service")
        [value] = await self.connection.call(SYSTEMD, path, PROPERTIES, "Get", "ss", body)
        return value.value
