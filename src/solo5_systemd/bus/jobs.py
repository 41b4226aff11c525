"""Jobs of systemd: enqueue one, and wait for its result.

systemd may send JobRemoved of a job before the reply with the job's path. So the signal is matched before the call, and
results are stored while any call is in progress. Two calls may return the same job: systemd merges jobs.

PID 1 sends JobRemoved to the bus for each job with a client on it, and for all jobs while any client of the bus has
called Subscribe (logind does). This package does not call it, as it would have PID 1 send every change of every unit.
The match rule lasts while there are jobs, and some seconds longer: jobs of other programs wake an idle process for
nothing.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from solo5_systemd.base.errors import HostError
from solo5_systemd.bus import unit_file_text
from solo5_systemd.bus.connection import Connection
from solo5_systemd.bus.peers import MANAGER, MANAGER_PATH, SYSTEMD, RemoteError
from solo5_systemd.dbus.message_bus import BUS, BUS_PATH
from solo5_systemd.dbus.messages import Message, MessageType

_CHANGED = "NameOwnerChanged"
_OWNER_RULE = f"type='signal',sender='{BUS}',interface='{BUS}',member='{_CHANGED}',arg0='{SYSTEMD}'"


class NameOwner:
    """The unique bus name of PID 1, the owner of org.freedesktop.systemd1, once `follow` has returned.

    Only signals of this sender count. A match rule does not ensure that: any rule of the connection may let a signal
    pass, and a unicast signal passes without one; the policy of the system bus lets every user send these.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._generation = 0
        self._owner = ""
        self._changes = 0
        connection.listen(self._received)

    async def follow(self) -> None:
        """Read the owner on the current connection, and follow its changes there.

        Raises:
            HostError: the connection was lost.
        """
        generation, changes = self._connection.generation, self._changes
        await self._connection.match(_OWNER_RULE)
        try:
            [owner] = await self._connection.call(BUS, BUS_PATH, BUS, "GetNameOwner", "s", [SYSTEMD])
        except RemoteError:  # no owner yet
            owner = ""
        if self._changes == changes:  # else NameOwnerChanged came first, with a later owner
            self._owner = owner
        self._generation = generation

    def sent(self, message: Message) -> bool:
        """Return whether a message is a signal from PID 1."""
        is_signal = message.message_type is MessageType.SIGNAL
        present = self._generation == self._connection.generation
        return is_signal and present and bool(self._owner) and message.sender == self._owner

    def _received(self, message: Message) -> None:
        named = (message.message_type, message.sender, message.member, message.signature)
        if named == (MessageType.SIGNAL, BUS, _CHANGED, "sss") and message.body[0] == SYSTEMD:
            self._owner = message.body[2]
            self._changes += 1


JOB_TIMEOUT_S = 60.0
"""Longer than TimeoutStartSec= of a task (30 s) and of its network unit: systemd's own timeout, with its reason, comes
first."""

LINGER_S = 5.0
"""Time that the match rule is kept after a job: a busy process does not remove and add it for each."""

_RULE = f"type='signal',sender='{SYSTEMD}',path='{MANAGER_PATH}',interface='{MANAGER}',member='JobRemoved'"


class Jobs:
    """The jobs that are enqueued over one connection.

    Attributes:
        owner: the sender whose signals count.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.owner = NameOwner(connection)
        self._waiting: dict[str, asyncio.Future[str]] = {}
        self._early: dict[str, str] = {}
        self._dispatching = 0
        self._running = 0
        self._matching = asyncio.Lock()
        self._matched = 0
        self._followed = 0
        self._linger: asyncio.TimerHandle | None = None
        self._unmatching: asyncio.Future[None] | None = None
        connection.listen(self._received)

    async def run(self, member: str, signature: str, body: Sequence[Any], unix_fds: Sequence[int] = ()) -> str:
        """Call a Manager method that returns a job, and wait for the job's result (`done`, `failed`, …).

        Raises:
            RemoteError: systemd refused the call.
            HostError: the job timed out, or the connection was lost.
        """
        with self._keeping_rule():
            return await self._run(member, signature, body, unix_fds)

    async def _run(self, member: str, signature: str, body: Sequence[Any], unix_fds: Sequence[int]) -> str:
        generation = await self._match()
        self._dispatching += 1
        try:
            reply = await unit_file_text.call(
                self._connection, MANAGER_PATH, MANAGER, member, signature, body, unix_fds
            )
            # The call went over a new connection, on which nothing is subscribed to JobRemoved yet.
            if self._connection.generation != generation:
                raise _broken(member)
            job = str(reply[0])
            early = self._early.get(job)
        finally:
            self._dispatching -= 1
            # No reply is outstanding, so no stored result can be needed.
            if not self._dispatching:
                self._early.clear()
        return early or await self._result(job, member)

    async def _result(self, job: str, member: str) -> str:
        # One future per job: systemd merges jobs, so two calls can wait for the same one.
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

    async def _match(self) -> int:
        """Match JobRemoved on the current connection, and follow its sender. Idempotent.

        Returns:
            The connection's generation.

        Raises:
            HostError: the connection was lost.
        """
        async with self._matching:
            await self._connection.connect()
            generation = self._connection.generation
            if self._followed != generation:
                self._waiting.clear()  # their signals were lost with the previous connection
                await self.owner.follow()
                self._followed = generation
            if self._matched != generation:
                await self._connection.match(_RULE)
                self._matched = generation
            return generation

    @contextmanager
    def _keeping_rule(self) -> Iterator[None]:
        """Keep the match rule for the block, and `LINGER_S` seconds longer."""
        self._running += 1
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._linger = asyncio.get_running_loop().call_later(LINGER_S, self._begin_unmatch)

    def _begin_unmatch(self) -> None:
        self._linger = None
        self._unmatching = asyncio.ensure_future(self._unmatch())

    async def _unmatch(self) -> None:
        async with self._matching:
            if self._running or self._matched != self._connection.generation or self._connection.lost.done():
                return  # a new job, or the rule was lost with its connection
            self._matched = 0
            with suppress(HostError):
                await self._connection.unmatch(_RULE)

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
