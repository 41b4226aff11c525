"""The wait for the end of a unit's run, without a D-Bus message.

PID 1 removes a symbolic link when a unit becomes inactive or failed, and replies with the outcome from then on; a unit
without one is read at an interval (docs/decisions/unit-end.md).
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from solo5_systemd.base.errors import HostError
from solo5_systemd.base.inotify import Removals
from solo5_systemd.bus.peers import WATCH_INTERVAL_S
from solo5_systemd.bus.unit_states import UnitStates
from solo5_systemd.unit.state import UnitState


async def changed(
    run: UnitState,
    states: UnitStates,
    removals: Removals,
    read: Callable[[UnitState], Awaitable[UnitState | None]],
    timeout_s: float | None,
) -> UnitState | None:
    """Wait until a run may be over, and `read` it; see `Manager.changed`."""
    try:
        async with asyncio.timeout(timeout_s):
            while await _is_watched_until_removed(run, states, removals):
                pass
    except TimeoutError:
        return run
    now: UnitState | None = run
    with suppress(HostError):
        now = await read(run)
    if now is not None and not now.over:  # a unit without its link, or an outage
        await asyncio.sleep(WATCH_INTERVAL_S)
    return now


async def _is_watched_until_removed(run: UnitState, states: UnitStates, removals: Removals) -> bool:
    """Wait until the link of a run is removed, perhaps to be made again; return False at once if it is not there."""
    removed, watch = asyncio.Event(), None
    with suppress(OSError):  # there is none, or inotify has reached a limit
        watch = removals.watch(states.link(run.unit), removed.set)
    try:
        if not states.has_run(run):
            return False
        await (asyncio.sleep(WATCH_INTERVAL_S) if watch is None else removed.wait())
    finally:
        if watch is not None:
            removals.unwatch(watch, removed.set)
    return True
