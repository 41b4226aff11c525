"""How often a task without a process is started for packets: one that ends by itself each time rests a while."""

import asyncio
from collections import deque
from dataclasses import dataclass, field

from solo5_systemd.base.declared_units import service_of
from solo5_systemd.base.names import TaskName
from solo5_systemd.dbus.process import log_about

STARTS_MAX = 4
"""Starts for packets in `STARTS_INTERVAL_S`, of a task that ends by itself each time. PID 1's default of
StartLimitBurst= is not reached by them, which would fail it and its socket unit until an operator comes."""

STARTS_INTERVAL_S = 30.0


@dataclass
class _Starts:
    """The starts of a task.

    Attributes:
        times: of the last ones, in seconds of the event loop's clock.
        refused: another one was refused since, with a line in the log.
    """

    times: deque[float] = field(default_factory=lambda: deque(maxlen=STARTS_MAX))
    refused: bool = False


class StartLimit:
    """The starts of tasks for packets, of which each may have `STARTS_MAX` in `STARTS_INTERVAL_S`."""

    def __init__(self) -> None:
        self._tasks: dict[TaskName, _Starts] = {}

    def admits(self, task: TaskName) -> bool:
        """Return whether a task may be started; the first refusal after a start is logged, and not one each second."""
        starts = self._tasks.get(task)
        if starts is None or len(starts.times) < STARTS_MAX or starts.times[0] <= _now() - STARTS_INTERVAL_S:
            return True
        if not starts.refused:
            text = f"it has ended by itself, or not started, {STARTS_MAX} times in {STARTS_INTERVAL_S:.0f} s"
            log_about(service_of(task), f"task {task} is not started for packets until later: {text}")
        starts.refused = True
        return False

    def count(self, task: TaskName) -> None:
        """Count a start from now on."""
        starts = self._tasks.setdefault(task, _Starts())
        starts.times.append(_now())
        starts.refused = False

    def forget(self, task: TaskName) -> None:
        """Forget the starts of a task: it is ended for idleness or by an operator, not by itself."""
        self._tasks.pop(task, None)


def _now() -> float:
    return asyncio.get_running_loop().time()
