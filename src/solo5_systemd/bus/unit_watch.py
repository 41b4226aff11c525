"""Changes of units, for all subscribers on one connection.

A signal only triggers a read of the unit's state. One pair of match rules serves all units (dbus-daemon allows 512 per
connection); a signal finds its subscribers by the unit's object path. A poll, one ListUnits call for all, finds changes
whose signal was lost; only units that differ are read again. An outage of the bus is not a change: the last state stays
until PID 1 replies again, then every unit is read once.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from solo5_systemd.bus.checked_call import SYSTEMD
from solo5_systemd.bus.connection import Connection
from solo5_systemd.bus.jobs import MANAGER, MANAGER_PATH, Jobs
from solo5_systemd.concurrency.retry import retry
from solo5_systemd.dbus_api.messages import Message
from solo5_systemd.errors import HostError
from solo5_systemd.unit.state import OVER, ActiveState, UnitState

POLL_INTERVAL_S = 10.0
"""Interval between two polls: the longest delay that a lost signal causes."""

FIRST_POLL_DELAY_S = 1.0
"""Delay of the poll after a subscription that began with a known state; one poll serves all of that time."""

RETRY_INTERVAL_S = 1.0
"""Interval between two polls while PID 1 does not reply."""

UNIT = "org.freedesktop.systemd1.Unit"
_ALNUM = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
_SIGNAL = f"type='signal',sender='{SYSTEMD}'"
_RULES = (
    # This interface has every change of a state; the interfaces of the unit types would double the signals to parse.
    f"{_SIGNAL},path_namespace='{MANAGER_PATH}/unit',interface='org.freedesktop.DBus.Properties',arg0='{UNIT}'",
    f"{_SIGNAL},path='{MANAGER_PATH}',interface='{MANAGER}',member='UnitRemoved'",
)

_NEWS = ("ActiveState", "ActiveEnterTimestampMonotonic")
"""The properties of a signal that differ in another state, or in another run."""

ListedState = tuple[ActiveState, str]
"""A unit's active state and sub-state in ListUnits."""


def unit_path(unit: str) -> str:
    """Return a unit's D-Bus object path: all but letters and digits escaped as `_` and two hexadecimal digits."""
    escaped = "".join(
        c if c in _ALNUM and not (i == 0 and c.isdigit()) else f"_{ord(c):02x}" for i, c in enumerate(unit)
    )
    return f"{MANAGER_PATH}/unit/{escaped}"


@dataclass(eq=False)
class _Subscriber:
    """A subscriber to one unit.

    Attributes:
        unit: name of the unit.
        changed: set when the unit has to be read again.
        seen: the last state that it was given; None after a failed read.
        signalled: the values of `_NEWS` in the last signal.
    """

    unit: str
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    seen: ListedState | None = None
    signalled: Sequence[object] = ()

    def is_changed_by(self, signal: Message) -> bool:
        """Return whether a PropertiesChanged is news: it has another active state or activation than the one before.

        PID 1 sends several for each step of a start or stop, with all properties that may have changed.
        """
        values = signal.body[1] if signal.signature == "sa{sv}as" else {}
        before = self.signalled
        self.signalled = [values[name].value for name in _NEWS if name in values]
        is_over = bool(self.signalled) and self.signalled[0] in OVER
        return is_over or len(self.signalled) < len(_NEWS) or self.signalled != before


class WatchedUnit:
    """A unit during a subscription.

    Attributes:
        state: as it was last read; None: it is not loaded.
    """

    def __init__(
        self, subscriber: _Subscriber, read: Callable[[], Awaitable[UnitState | None]], state: UnitState | None
    ) -> None:
        self._subscriber = subscriber
        self._read = read
        self._update(state)

    async def changed(self, timeout_s: float | None = None) -> None:
        """Wait for a signal, or a poll that found a difference, and read the state; after `timeout_s` return anyway.

        A failed read leaves the state as it was: an outage of the bus or of PID 1 is not a change.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._subscriber.changed.wait()
        except TimeoutError:
            return
        self._subscriber.changed.clear()
        try:
            self._update(await self._read())
        except HostError:
            # So that the next signal, or the poll when PID 1 replies again, sets `changed`.
            self._subscriber.seen, self._subscriber.signalled = None, ()

    def _update(self, state: UnitState | None) -> None:
        self.state = state
        self._subscriber.seen = None if state is None else (state.active, state.sub)


class UnitWatch:
    """All subscriptions to units over one connection.

    Args:
        connection: to the system bus.
        jobs: subscribes to systemd's signals.
        list_states: lists the units of all tasks.
    """

    def __init__(
        self, connection: Connection, jobs: Jobs, list_states: Callable[[], Awaitable[Mapping[str, ListedState]]]
    ) -> None:
        self._connection = connection
        self._jobs = jobs
        self._list_states = list_states
        self._subscribers: defaultdict[str, set[_Subscriber]] = defaultdict(set)
        self._subscribing = asyncio.Lock()
        self._generation = 0
        self._polled_generation = 0
        self._unpolled = asyncio.Event()
        self._polling: asyncio.Future[None] | None = None
        connection.listen(self._received)
        connection.filter(self._is_wanted)

    @asynccontextmanager
    async def subscribed(
        self, unit: str, read: Callable[[], Awaitable[UnitState | None]], seen: UnitState | None = None
    ) -> AsyncGenerator[WatchedUnit, None]:
        """Subscribe to a unit for the block.

        Args:
            unit: name of the unit.
            read: reads its state.
            seen: its state a moment ago, which is not read again; the next poll finds changes since.

        Raises:
            HostError: the bus or PID 1 did not reply at the beginning.
        """
        subscriber = _Subscriber(unit)
        await self._subscribe()
        self._add(subscriber)
        try:
            # A change between `seen` and the subscription has sent its signal already: poll for it soon.
            if seen is not None:
                self._unpolled.set()
            yield WatchedUnit(subscriber, read, seen or await read())
        finally:
            await self._remove(subscriber)

    def _add(self, subscriber: _Subscriber) -> None:
        self._subscribers[unit_path(subscriber.unit)].add(subscriber)
        # One poll for all subscribers, from the first to the last one.
        if self._polling is None:
            self._polled_generation = self._generation
            self._polling = asyncio.ensure_future(self._poll_loop())

    async def _remove(self, subscriber: _Subscriber) -> None:
        path = unit_path(subscriber.unit)
        self._subscribers[path].discard(subscriber)
        if not self._subscribers[path]:
            del self._subscribers[path]
        if not self._subscribers and self._polling is not None:
            polling, self._polling = self._polling, None
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)
            await self._unsubscribe()

    def _is_wanted(self, path: str, member: str) -> bool:
        """Return False for a change of a unit without a subscriber: most of them, with other units on the host."""
        return member != "PropertiesChanged" or path in self._subscribers

    def _received(self, message: Message) -> None:
        if not self._jobs.owner.sent(message):
            return
        removed = message.member == "UnitRemoved" and message.signature == "so"
        for subscriber in self._subscribers.get(message.body[1] if removed else message.path, ()):
            if removed or subscriber.is_changed_by(message):
                subscriber.changed.set()

    async def _subscribe(self) -> None:
        """Subscribe to the signals on the current connection. Idempotent."""
        generation = await self._jobs.subscribe()
        async with self._subscribing:
            if self._generation != generation:
                for rule in _RULES:
                    await self._connection.match(rule)
                self._generation = generation

    async def _unsubscribe(self) -> None:
        async with self._subscribing:
            if self._subscribers or self._generation != self._connection.generation or self._connection.lost.done():
                return  # a new subscriber, or the rules were lost with their connection
            self._generation = 0
            for rule in _RULES:
                with suppress(HostError):
                    await self._connection.unmatch(rule)

    async def _poll_loop(self) -> None:
        while True:
            await self._wait_for_poll()
            await retry(self._poll, HostError, interval_s=RETRY_INTERVAL_S)

    async def _wait_for_poll(self) -> None:
        """Wait until the next poll is due."""
        unpolled = asyncio.ensure_future(self._unpolled.wait())
        try:
            await asyncio.wait(
                (self._connection.lost, unpolled), timeout=POLL_INTERVAL_S, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            unpolled.cancel()
        if self._unpolled.is_set() and not self._connection.lost.done():
            await asyncio.sleep(FIRST_POLL_DELAY_S)
        self._unpolled.clear()

    async def _poll(self) -> None:
        """Notify subscribers whose unit differs from the listing, or all after an outage.

        Raises:
            HostError: the outage goes on.
        """
        await self._subscribe()
        listed = await self._list_states()
        outage, self._polled_generation = self._polled_generation != self._generation, self._generation
        for subscriber in [each for subscribers in self._subscribers.values() for each in subscribers]:
            if outage or subscriber.seen is None or subscriber.seen != listed.get(subscriber.unit):
                subscriber.changed.set()
