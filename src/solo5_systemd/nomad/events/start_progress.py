"""How a start is told to Nomad's users, step by step."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from solo5_systemd.engine.task import Preflight
from solo5_systemd.network.model import Lease
from solo5_systemd.nomad.config.ready import Rule, refuse
from solo5_systemd.nomad.events import messages
from solo5_systemd.nomad.events.messages import Announcement
from solo5_systemd.nomad.events.stream import Events
from solo5_systemd.nomad.proto import driver_pb2 as wire

# The steps of a start as events tell them: in the same words, whichever process takes them.


class Audience(Protocol):
    """Who hears of a start; each call returns at once."""

    def on_step(self, doing: str) -> None:
        """The next step, which is told of if it is slow."""

    def tell(self, announcement: Announcement) -> None:
        """What has been done."""


class Steps:
    """One start; fulfils `task.StartCallbacks`.

    Args:
        audience: who hears of it.
        rule: by which the task is to be ready; it ends the start where the image cannot follow it.
    """

    def __init__(self, audience: Audience, rule: Rule | None) -> None:
        self._audience = audience
        self._rule = rule

    def on_step(self, doing: str) -> None:
        self._audience.on_step(doing)

    def on_preflight(self, preflight: Preflight) -> None:
        refuse(self._rule, preflight)
        self._audience.tell(messages.checked(preflight))

    def on_leases(self, leases: Sequence[Lease]) -> None:
        if leases:
            self._audience.tell(messages.leased(leases))


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
        self.tell(messages.slow(self._doing, seconds))

    def on_step(self, doing: str) -> None:
        self._doing = doing

    def tell(self, announcement: Announcement) -> None:
        self._events.publish(self._task, announcement)
