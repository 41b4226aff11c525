"""How a start is told to Nomad's users, step by step."""

import asyncio
from collections.abc import Callable, Sequence

from solo5_systemd.network.plan import Lease
from solo5_systemd.nomad import announcements
from solo5_systemd.nomad.events import Events
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.task import Preflight

SLOW = (5.0, 30.0)
"""Seconds after which a start that is not done says which step it is at."""


class Announcer:
    """One start; fulfils `task.Progress`. Slow steps are told while it is entered.

    Args:
        events: where it is told.
        task: whose start.
        refuse: raises an error where the task cannot be what its job wants, now that its image is known.
    """

    def __init__(self, events: Events, task: wire.TaskConfig, refuse: Callable[[Preflight], None]) -> None:
        self._events = events
        self._task = task
        self._refuse = refuse
        self._doing = "connecting to the machine"
        self._timers: list[asyncio.TimerHandle] = []

    def __enter__(self) -> "Announcer":
        loop = asyncio.get_running_loop()
        self._timers = [loop.call_later(seconds, self._slow, seconds) for seconds in SLOW]
        return self

    def __exit__(self, *_: object) -> None:
        for timer in self._timers:
            timer.cancel()

    def _slow(self, seconds: float) -> None:
        self._events.publish(self._task, announcements.slow(self._doing, seconds))

    def begins(self, doing: str) -> None:
        self._doing = doing

    def checked(self, preflight: Preflight) -> None:
        self._refuse(preflight)
        self._events.publish(self._task, announcements.checked(preflight))

    def leased(self, leases: Sequence[Lease]) -> None:
        if leases:
            self._events.publish(self._task, announcements.leased(leases))

    def started(self, unit: str, invocation: str) -> None:
        """The unit runs."""
        self._events.publish(self._task, announcements.started(unit, invocation))
