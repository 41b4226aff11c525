"""A task's end: waited for, and brought about."""

import asyncio
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING

from solo5_systemd.errors import HostError
from solo5_systemd.unit.state import ActiveState, UnitState
from solo5_systemd.workload import STOP_TIMEOUT_S, StopSignal, UnitKind

if TYPE_CHECKING:
    from solo5_systemd.engine.backends import Backends

SIGNALS = {StopSignal.INT: 2, StopSignal.TERM: 15}
SIGKILL = 9
STOP_JOB_TIMEOUT_S = 5.0
"""Seconds that PID 1 has to begin a stop before its unit is killed. It takes it some milliseconds; where it is busy,
reading its units anew, nobody is killed sooner by asking it for both at once, and the end would be told as a kill."""


class Stopper:
    """The engine's part that ends tasks, on the backends that it is given."""

    def __init__(self, backends: "Backends") -> None:
        self._backends = backends
        self._units = backends.units

    async def wait_until_over(self, state: UnitState, *, seen: bool = False) -> UnitState | None:
        """The unit when it is over; None where it was removed, be there another of its name or not.

        A tender that hangs for good, and would never be over, is killed.

        Args:
            state: the run that is meant.
            seen: it was read just now.
        """
        async with aclosing(self._units.changes(state, seen=seen)) as states:
            async for now in states:
                if now.invocation != state.invocation:
                    return None
                if now.over:
                    return now
                if await self.is_hung(now):
                    with suppress(HostError):  # an end is worth more than its reason
                        await self._backends.console.log_hung(now)
                    await self._units.kill(now.unit, SIGKILL, everyone=True)
        return None

    async def is_hung(self, state: UnitState) -> bool:
        """Its tender is dead to everyone, with threads still alive."""
        return bool(state.main_pid) and not state.over and await self._backends.usages.stalled(state.main_pid)

    async def stop(self, state: UnitState, signal: StopSignal, timeout_s: float) -> None:
        """Send the stop signal, wait at most `timeout_s` seconds, then kill the whole cgroup."""
        if state.frozen:
            await self._units.thaw(state.unit)
        try:
            async with asyncio.timeout(0 if await self.is_hung(state) else timeout_s):
                await self._request_stop(state, signal, timeout_s)
        except TimeoutError:
            await self._kill(state)

    async def _request_stop(self, state: UnitState, signal: StopSignal, timeout_s: float) -> None:
        """By PID 1 where it can: it carries on if we die. It knows one signal and one timeout, the unit's."""
        if signal is StopSignal.TERM and timeout_s <= STOP_TIMEOUT_S:
            await self._units.stop(state.unit)
        else:
            await self.signal(state, SIGNALS[signal])
            await self.wait_until_over(state)

    async def _kill(self, state: UnitState) -> None:
        """Kill what does not listen. PID 1 is asked first, so that the stop is on its record before the end."""
        stopping = asyncio.ensure_future(self._units.stop(state.unit))
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_JOB_TIMEOUT_S), aclosing(self._units.changes(state)) as states:
                    async for now in states:
                        if now.active is not ActiveState.ACTIVE:
                            break
            await self._units.kill(state.unit, SIGKILL, everyone=True)
            await stopping
        finally:
            stopping.cancel()
            await asyncio.gather(stopping, return_exceptions=True)

    async def signal(self, state: UnitState, number: int) -> None:
        """A scope has no main process, and nothing in it but its tender."""
        await self._units.kill(state.unit, number, everyone=number == SIGKILL or state.kind is UnitKind.SCOPE)
