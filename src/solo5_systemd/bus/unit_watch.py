"""The wait for the end of a unit's run, without a D-Bus message.

PID 1 keeps a symbolic link below /run/systemd/units for each active unit, whose target is the invocation ID
(`unit_export_state_files` in systemd's unit.c). It removes the link when the unit becomes inactive or failed, and keeps
it over daemon-reload and daemon-reexec: inotify on the link reports an end once, at the moment from which PID 1 replies
with the outcome. A signal on the bus may be lost with its connection, may be forged, and is sent for every unit of the
host. The link is not a documented interface: a unit without one is read from PID 1 at an interval.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from solo5_systemd.base.errors import HostError
from solo5_systemd.base.inotify import Removals
from solo5_systemd.bus.peers import WATCH_INTERVAL_S
from solo5_systemd.bus.unit_states import UnitStates
from solo5_systemd.unit.state import UnitState

Read = Callable[[UnitState], Awaitable[UnitState | None]]
"""Reads the state of a unit again, given the last one."""


class WatchedUnit:
    """A unit during a watch.

    Attributes:
        state: as it was last read; None: it is not loaded, or has another run.
    """

    def __init__(self, state: UnitState, states: UnitStates, removals: Removals, read: Read) -> None:
        self._last = state
        self._states = states
        self._removals = removals
        self._read = read
        self._removed = asyncio.Event()
        self._watch: int | None = None
        self._is_unclear = False
        self.state: UnitState | None = state

    async def changed(self, timeout_s: float | None = None) -> None:
        """Wait until the run may be over, and read the state; after `timeout_s` return anyway.

        A failed read leaves the state as it was: an outage of the bus or of PID 1 is not an end.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await (asyncio.sleep(WATCH_INTERVAL_S) if self._is_unclear else self._link_removed())
        except TimeoutError:
            return
        self._is_unclear = True
        with suppress(HostError):
            await self._update()

    async def begin(self) -> None:
        """Read the state, unless the unit's link has this run."""
        if not self._last.over and not self._has_link():
            await self._update()

    def end(self) -> None:
        """Remove the watch."""
        if self._watch is not None:
            self._removals.unwatch(self._watch, self._on_removal)
            self._watch = None

    async def _update(self) -> None:
        self.state = await self._read(self._last)
        self._last = self.state or self._last
        self._is_unclear = not self._has_link()

    async def _link_removed(self) -> None:
        while self._has_link():
            if self._watch is None:
                await asyncio.sleep(WATCH_INTERVAL_S)  # inotify has reached a limit
            else:
                await self._removed.wait()

    def _has_link(self) -> bool:
        """Return whether the link has this run, and watch the link."""
        if self._watch is None:
            self._removed.clear()
            with suppress(OSError):
                self._watch = self._removals.watch(self._states.link(self._last.unit), self._on_removal)
        return self._states.has_run(self._last)

    def _on_removal(self) -> None:
        self._watch = None
        self._removed.set()
