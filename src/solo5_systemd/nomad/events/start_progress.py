"""The progress of a start, as task events."""

import asyncio
from collections.abc import Sequence

from solo5_systemd.engine.task import Preflight
from solo5_systemd.network.model import Lease
from solo5_systemd.nomad.config.ready import Rule, check_manifest
from solo5_systemd.nomad.events import messages
from solo5_systemd.nomad.events.messages import TaskEvent
from solo5_systemd.nomad.events.stream import EventStream
from solo5_systemd.nomad.proto import driver_pb2 as wire

SLOW_START_S = (5.0, 30.0)
"""Seconds after which an event names the current step of an unfinished start."""


class StartEvents:
    """The task events of one start; implements `engine.task.StartCallbacks`. Warns of a slow start while it is entered.

    Args:
        events: the driver's event stream.
        task: the task that starts.
        rule: the job's `ready` rule; `on_preflight` raises if the image cannot satisfy it.
    """

    def __init__(self, events: EventStream, task: wire.TaskConfig, rule: Rule | None) -> None:
        self._events = events
        self._task = task
        self._rule = rule
        self._step = "connecting to the system bus"
        self._timers: list[asyncio.TimerHandle] = []

    def __enter__(self) -> "StartEvents":
        loop = asyncio.get_running_loop()
        self._timers = [loop.call_later(seconds, self._warn, seconds) for seconds in SLOW_START_S]
        return self

    def __exit__(self, *_: object) -> None:
        for timer in self._timers:
            timer.cancel()

    def _warn(self, seconds: float) -> None:
        self.publish(messages.slow_start(self._step, seconds))

    def on_step(self, doing: str) -> None:
        """Set the current step."""
        self._step = doing

    def on_preflight(self, preflight: Preflight) -> None:
        """Publish the passed preflight.

        Raises:
            InvalidRequestError: the `ready` rule names a port, and the image has no NIC.
        """
        check_manifest(self._rule, preflight)
        self.publish(messages.preflight_passed(preflight))

    def on_leases(self, leases: Sequence[Lease]) -> None:
        """Publish the task's leases, if it has NICs."""
        if leases:
            self.publish(messages.leases_attached(leases))

    def publish(self, event: TaskEvent) -> None:
        """Publish an event of the task."""
        self._events.publish(self._task, event)
