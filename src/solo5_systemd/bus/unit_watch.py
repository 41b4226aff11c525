"""Units' changes, for everybody who watches over one connection.

A signal is only a hint: what counts is the state that is read after it. The hints of all units come by one pair of
match rules (dbus-daemon allows a connection 512), and each finds its watchers by its path. A hint that was lost is
found out by a listing, one for all, of which nothing but what differs is read again. An outage of the bus is no
change: what was seen last stands until PID 1 answers again, and then everything is read once.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from dbus_next import Message

from solo5_systemd.bus.checked_call import SYSTEMD
from solo5_systemd.bus.connection import Connection
from solo5_systemd.bus.jobs import MANAGER, MANAGER_PATH, Jobs
from solo5_systemd.errors import HostError
from solo5_systemd.unit.state import ActiveState, UnitState

LISTING = 10.0
"""Seconds between two listings: a lost signal delays for so long, and never hangs."""

SOON = 1.0
"""The same where somebody has come who does not look by himself; one listing serves all who come meanwhile."""

AWAY = 1.0
"""Seconds between two attempts while PID 1 does not answer."""

AGAIN = 5.0
"""Seconds after which a state is given again although it has not changed: see `Watches.changes`."""

UNIT = "org.freedesktop.systemd1.Unit"
_ALNUM = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
_SIGNAL = f"type='signal',sender='{SYSTEMD}'"
_RULES = (
    # Every change of a state is one of this interface: those of the units' types would double what is to be parsed.
    f"{_SIGNAL},path_namespace='{MANAGER_PATH}/unit',interface='org.freedesktop.DBus.Properties',arg0='{UNIT}'",
    f"{_SIGNAL},path='{MANAGER_PATH}',interface='{MANAGER}',member='UnitRemoved'",
)

Glance = tuple[ActiveState, str]
"""What a listing tells of a unit's state: active state and sub-state."""


def unit_path(unit: str) -> str:
    """A unit's D-Bus object path: all but letters and digits as `_` and two hexadecimal digits."""
    escaped = "".join(
        c if c in _ALNUM and not (i == 0 and c.isdigit()) else f"_{ord(c):02x}" for i, c in enumerate(unit)
    )
    return f"{MANAGER_PATH}/unit/{escaped}"


@dataclass(eq=False)
class _Watcher:
    """One who watches; `seen` is the last state that it was given, None while that is in doubt."""

    unit: str
    stirred: asyncio.Event = field(default_factory=asyncio.Event)
    seen: Glance | None = None


class Watches:
    """All watches over one connection.

    Args:
        connection: whose signals they are.
        jobs: that subscribe to them at systemd's.
        glances: lists all tasks' units.
    """

    def __init__(
        self, connection: Connection, jobs: Jobs, glances: Callable[[], Awaitable[Mapping[str, Glance]]]
    ) -> None:
        self._connection = connection
        self._jobs = jobs
        self._glances = glances
        self._watchers: defaultdict[str, set[_Watcher]] = defaultdict(set)
        self._arming = asyncio.Lock()
        self._armed = 0
        self._looked = 0
        self._newcomers = asyncio.Event()
        self._patrol: asyncio.Future[None] | None = None
        connection.listen(self._received)

    async def changes(
        self, unit: str, read: Callable[[], Awaitable[UnitState | None]], seen: UnitState | None = None
    ) -> AsyncGenerator[UnitState, None]:
        """The unit's state now and after each change; ends when it is unloaded.

        Every few seconds the last one is given again, read or not: for those who look at what PID 1 does not.

        Args:
            unit: whose.
            read: its state.
            seen: its state a moment ago, to begin with; what has changed since is found out by the next listing.

        Raises:
            HostError: the bus or PID 1 was away from the beginning.
        """
        watcher = _Watcher(unit)
        await self._arm()
        self._enter(watcher)
        try:
            if seen is not None:
                self._newcomers.set()
            state = seen or await read()
            while state is not None:
                watcher.seen = (state.active, state.sub)
                yield state
                state = await self._next(watcher, state, read)
        finally:
            await self._leave(watcher)

    async def _next(
        self, watcher: _Watcher, last: UnitState, read: Callable[[], Awaitable[UnitState | None]]
    ) -> UnitState | None:
        try:
            async with asyncio.timeout(AGAIN):
                await watcher.stirred.wait()
        except TimeoutError:
            return last
        watcher.stirred.clear()
        try:
            return await read()
        except HostError:
            watcher.seen = None  # the patrol stirs it again when PID 1 answers
            return last

    def _enter(self, watcher: _Watcher) -> None:
        self._watchers[unit_path(watcher.unit)].add(watcher)
        if self._patrol is None:
            self._looked = self._armed
            self._patrol = asyncio.ensure_future(self._patrolling())

    async def _leave(self, watcher: _Watcher) -> None:
        path = unit_path(watcher.unit)
        self._watchers[path].discard(watcher)
        if not self._watchers[path]:
            del self._watchers[path]
        if not self._watchers and self._patrol is not None:
            patrol, self._patrol = self._patrol, None
            patrol.cancel()
            await asyncio.gather(patrol, return_exceptions=True)
            await self._disarm()

    def _received(self, message: Message) -> None:
        if not self._jobs.owner.sent(message):
            return
        removed = message.member == "UnitRemoved" and message.signature == "so"
        for watcher in self._watchers.get(message.body[1] if removed else message.path, ()):
            watcher.stirred.set()

    async def _arm(self) -> None:
        """Have the signals sent over the present connection."""
        generation = await self._jobs.subscribe()
        async with self._arming:
            if self._armed != generation:
                for rule in _RULES:
                    await self._connection.match(rule)
                self._armed = generation

    async def _disarm(self) -> None:
        async with self._arming:
            if self._watchers or self._armed != self._connection.generation or self._connection.lost.done():
                return  # somebody came, or the rules are gone with their connection
            self._armed = 0
            for rule in _RULES:
                with suppress(HostError):
                    await self._connection.unmatch(rule)

    async def _patrolling(self) -> None:
        while True:
            await self._due()
            while not await self._look_round():  # noqa: ASYNC110 - what another process does is looked at, not told
                await asyncio.sleep(AWAY)

    async def _due(self) -> None:
        """Wait until all are to be looked at."""
        newcomer = asyncio.ensure_future(self._newcomers.wait())
        try:
            await asyncio.wait((self._connection.lost, newcomer), timeout=LISTING, return_when=asyncio.FIRST_COMPLETED)
        finally:
            newcomer.cancel()
        if self._newcomers.is_set() and not self._connection.lost.done():
            await asyncio.sleep(SOON)
        self._newcomers.clear()

    async def _look_round(self) -> bool:
        """Stir those whose unit is not as they have seen it, and all of them after an outage; False during one."""
        try:
            await self._arm()
            glances = await self._glances()
        except HostError:
            return False
        outage, self._looked = self._looked != self._armed, self._armed
        for watcher in [each for watchers in self._watchers.values() for each in watchers]:
            if outage or watcher.seen is None or watcher.seen != glances.get(watcher.unit):
                watcher.stirred.set()
        return True
