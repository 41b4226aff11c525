"""systemd's jobs: dispatch one, and know how it ended.

A job may be finished, and its JobRemoved sent, before the reply that names it has been read. So the signal is
subscribed to before the call, and results that nobody waits for yet are kept as long as any call is under way.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from dbus_next import Message, MessageType

from solo5_systemd.bus.connection import Connection
from solo5_systemd.errors import HostError

SYSTEMD = "org.freedesktop.systemd1"
MANAGER_PATH = "/org/freedesktop/systemd1"
MANAGER = "org.freedesktop.systemd1.Manager"

JOB_TIMEOUT = 60.0
"""Seconds. Longer than TimeoutStartSec= (30) of a task and than that of its network unit, so that systemd gives up
first and says what was slow."""

_RULE = f"type='signal',sender='{SYSTEMD}',path='{MANAGER_PATH}',interface='{MANAGER}',member='JobRemoved'"


class Jobs:
    """Jobs dispatched over one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: dict[str, asyncio.Future[str]] = {}
        self._early: dict[str, str] = {}
        self._dispatching = 0
        self._subscribed: asyncio.Future[None] | None = None

    async def run(self, member: str, signature: str, body: Sequence[Any], unix_fds: Sequence[int] = ()) -> str:
        """Call a Manager method that returns a job, and wait for the job's result (`done`, `failed`, …).

        Raises:
            RemoteError: systemd refused the call.
            HostError: the job did not end in time.
        """
        await self.subscribe()
        self._dispatching += 1
        try:
            reply = await self._connection.call(SYSTEMD, MANAGER_PATH, MANAGER, member, signature, body, unix_fds)
            job = str(reply[0])
            early = self._early.pop(job, None)
        finally:
            self._dispatching -= 1
            if not self._dispatching:
                self._early.clear()
        return early or await self._result(job, member)

    async def _result(self, job: str, member: str) -> str:
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting[job] = future
        try:
            async with asyncio.timeout(JOB_TIMEOUT):
                return await future
        except TimeoutError as error:
            raise HostError(
                f"systemd did not finish {member} within {JOB_TIMEOUT:.0f} seconds.", "See: systemctl list-jobs"
            ) from error
        finally:
            del self._waiting[job]

    async def subscribe(self) -> None:
        """Have systemd send its signals to this connection; once, however often it is called."""
        if self._subscribed is None:
            self._subscribed = asyncio.get_running_loop().create_future()
            self._connection.bus.add_message_handler(self._received)
            await asyncio.gather(
                self._connection.match(_RULE),
                self._connection.call(SYSTEMD, MANAGER_PATH, MANAGER, "Subscribe"),
            )
            self._subscribed.set_result(None)
        await self._subscribed

    def _received(self, message: Message) -> bool:
        if message.message_type is MessageType.SIGNAL and message.member == "JobRemoved":
            _, job, _, result = message.body
            if job in self._waiting:
                if not self._waiting[job].done():
                    self._waiting[job].set_result(result)
            elif self._dispatching:
                self._early[job] = result
        return False
