"""systemd's jobs: dispatch one, and know how it ended.

A job may be finished, and its JobRemoved sent, before the reply that names it has been read. So the signal is
subscribed to before the call, and results that nobody waits for yet are kept as long as any call is under way.
Two calls may be answered with the same job, since systemd merges what asks for the same.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from dbus_next import Message, MessageType

from solo5_systemd.bus import checked_call
from solo5_systemd.bus.checked_call import SYSTEMD
from solo5_systemd.bus.connection import Connection, RemoteError
from solo5_systemd.errors import HostError

# Which connection to the bus is PID 1: a signal counts only where it comes from there.
#
# A match rule does not decide that: it selects among signals to all, and any rule of the connection may let one pass. A
# signal to one connection passes without any, and the policy of the system bus lets every user send one.

BUS = "org.freedesktop.DBus"
_CHANGED = "NameOwnerChanged"
_OWNER_RULE = f"type='signal',sender='{BUS}',interface='{BUS}',member='{_CHANGED}',arg0='{SYSTEMD}'"


class Owner:
    """The present unique owner of org.freedesktop.systemd1 on a connection, from `follow` on."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._generation = 0
        self._owner = ""
        self._changes = 0
        connection.listen(self._received)

    async def follow(self) -> None:
        """Find the owner on the present connection, and every later one there.

        Raises:
            HostError: the bus is gone.
        """
        generation, changes = self._connection.generation, self._changes
        await self._connection.match(_OWNER_RULE)
        try:
            [owner] = await self._connection.call(BUS, "/org/freedesktop/DBus", BUS, "GetNameOwner", "s", [SYSTEMD])
        except RemoteError:  # nothing has the name yet
            owner = ""
        if self._changes == changes:  # else a signal has named a later one
            self._owner = owner
        self._generation = generation

    def sent(self, message: Message) -> bool:
        """Return whether a message is a signal of PID 1's."""
        is_signal = message.message_type is MessageType.SIGNAL
        present = self._generation == self._connection.generation
        return is_signal and present and bool(self._owner) and message.sender == self._owner

    def _received(self, message: Message) -> None:
        named = (message.message_type, message.sender, message.member, message.signature)
        if named == (MessageType.SIGNAL, BUS, _CHANGED, "sss") and message.body[0] == SYSTEMD:
            self._owner = message.body[2]
            self._changes += 1


MANAGER_PATH = "/org/freedesktop/systemd1"
MANAGER = "org.freedesktop.systemd1.Manager"

JOB_TIMEOUT_S = 60.0
"""Seconds. Longer than TimeoutStartSec= (30) of a task and than that of its network unit, so that systemd gives up
first and says what was slow."""

_RULE = f"type='signal',sender='{SYSTEMD}',path='{MANAGER_PATH}',interface='{MANAGER}',member='JobRemoved'"


class Jobs:
    """Jobs dispatched over one connection.

    Attributes:
        owner: the source of signals that count.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.owner = Owner(connection)
        self._waiting: dict[str, asyncio.Future[str]] = {}
        self._early: dict[str, str] = {}
        self._dispatching = 0
        self._subscribing = asyncio.Lock()
        self._subscribed = 0
        connection.listen(self._received)

    async def run(self, member: str, signature: str, body: Sequence[Any], unix_fds: Sequence[int] = ()) -> str:
        """Call a Manager method that returns a job, and wait for the job's result (`done`, `failed`, …).

        Raises:
            RemoteError: systemd refused the call.
            HostError: the job did not end in time, or the bus is gone.
        """
        generation = await self.subscribe()
        self._dispatching += 1
        try:
            reply = await checked_call.call(self._connection, MANAGER_PATH, MANAGER, member, signature, body, unix_fds)
            if self._connection.generation != generation:
                raise _broken(member)
            job = str(reply[0])
            early = self._early.get(job)
        finally:
            self._dispatching -= 1
            if not self._dispatching:
                self._early.clear()
        return early or await self._result(job, member)

    async def _result(self, job: str, member: str) -> str:
        future = self._waiting.setdefault(job, asyncio.get_running_loop().create_future())
        lost = self._connection.lost
        await asyncio.wait((future, lost), timeout=JOB_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        if future.done():
            return future.result()
        if lost.done():
            raise _broken(member)
        raise HostError(
            f"systemd did not finish {member} within {JOB_TIMEOUT_S:.0f} seconds.", "See: systemctl list-jobs"
        )

    async def subscribe(self) -> int:
        """Have systemd send its signals to the present connection; once, however often it is called.

        Returns:
            The connection's generation.

        Raises:
            HostError: there is no systemd on this bus, or the bus is gone.
        """
        async with self._subscribing:
            await self._connection.connect()
            generation = self._connection.generation
            if self._subscribed == generation:
                return generation
            self._waiting.clear()  # what they wait for, the connection before has taken with it
            await self.owner.follow()
            await self._connection.match(_RULE)
            try:
                await checked_call.call(self._connection, MANAGER_PATH, MANAGER, "Subscribe")
            except RemoteError as error:
                # An earlier caller may have been cancelled between its call and the reply.
                if not error.name.endswith(".AlreadySubscribed"):
                    raise HostError(f"systemd returned the D-Bus error {error.name}: {error.text}") from error
            self._subscribed = generation
            return generation

    def _received(self, message: Message) -> None:
        named = (message.interface, message.member, message.signature)
        if named == (MANAGER, "JobRemoved", "uoss") and self.owner.sent(message):
            _, job, _, result = message.body
            if self._dispatching:
                self._early[job] = result
            if job in self._waiting:
                self._waiting.pop(job).set_result(result)


def _broken(member: str) -> HostError:
    return HostError(
        f"the connection to the system bus broke during {member}.", "Check that dbus is running: systemctl status dbus"
    )
