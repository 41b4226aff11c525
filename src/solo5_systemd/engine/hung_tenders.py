"""Wait until a task has ended; a hung tender, whose main thread has ended before others, never would: it is killed.

PID 1 reports the end of a main process once no thread of it is left, so that a hung one is looked for.
"""

from contextlib import suppress
from typing import TYPE_CHECKING

from solo5_systemd.base.errors import HostError

if TYPE_CHECKING:
    from solo5_systemd.cgroup.cgroupfs import CgroupFs
    from solo5_systemd.engine.backends import Backends
    from solo5_systemd.unit.state import UnitState

SIGKILL = 9
HUNG_CHECK_INTERVAL_S = 20.0
"""Interval of the check for a hung tender: no signal reports that a main thread has ended before the others.

With 500 tasks, a check every 5 seconds took a fifth of the processor time of an idle plugin."""

HUNG_LOOK_INTERVAL_S = 0.5
"""Between two looks at a tender that seems to hang: an ordinary end of its main thread may precede that of others."""


async def is_hung(state: "UnitState", usages: "CgroupFs") -> bool:
    """Return whether the tender hangs: its main thread is a zombie, and other threads live."""
    return bool(state.main_pid) and not state.over and await usages.stalled(state.main_pid)


async def wait_until_over(backends: "Backends", state: "UnitState") -> "UnitState | None":
    """Wait until a run is over; return its unit, or None if the unit was removed or has another run.

    While the bus or PID 1 restarts, the wait goes on. A hung tender is killed. There is no D-Bus call before the end of
    the run, which is given as it was last read.

    Raises:
        HostError: the kernel or PID 1 refused.
    """
    seen = False
    now: UnitState | None = state
    while now is not None and now.invocation == state.invocation:
        if now.over:
            return now
        before, seen = seen, await is_hung(now, backends.usages)
        if before and seen:
            with suppress(HostError):  # without the note, the outcome is `killed`
                await backends.console.log_hung(now)
            await backends.units.kill(now.unit, SIGKILL, everyone=True)
        timeout_s = HUNG_LOOK_INTERVAL_S if seen and not before else HUNG_CHECK_INTERVAL_S
        now = await backends.units.changed(now, timeout_s)
    return None
