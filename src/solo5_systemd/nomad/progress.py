"""How a start is told to Nomad's users, step by step."""

import asyncio

from solo5_systemd.nomad import announcements
from solo5_systemd.nomad.announcements import Announcement
from solo5_systemd.nomad.events import Events
from solo5_systemd.nomad.proto import driver_pb2 as wire

SLOW = (5.0, 30.0)
"""Seconds after which a start that is not done says which step it is at."""


class Announcer:
    """Of one start; fulfils `steps.Audience`. Slow steps are told while it is entered.

    Args:
        events: where it is told.
        task: whose start.
    """

    def __init__(self, events: Events, task: wire.TaskConfig) -> None:
        self._events = events
        self._task = task
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
        self.tell(announcements.slow(self._doing, seconds))

    def begins(self, doing: str) -> None:
        self._doing = doing

    def tell(self, announcement: Announcement) -> None:
        self._events.publish(self._task, announcement)
