"""Task events: the driver's stream to the agent (TaskEvents).

Events are buffered while no agent is connected: it opens the stream only after the first tasks may have been recovered,
and opens a new one after a restart.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import suppress

from google.protobuf.timestamp_pb2 import Timestamp

from solo5_systemd.base.sanitize import bounded
from solo5_systemd.nomad.event_messages import TaskEvent
from solo5_systemd.nomad.event_throttle import Throttle
from solo5_systemd.nomad.proto import driver_pb2 as wire

BUFFER_EVENTS = 4096
"""Events in the buffer; further ones replace the oldest. Nomad itself keeps 10 of each task."""

TEXT_MAX = 2000
"""Characters of a message, and of an annotation."""

SETTLE_TIMEOUT_S = 0.05
"""Seconds after which a written event counts as delivered: a write into a connection that is ending succeeds, too."""

DELIVERY_TIMEOUT_S = 0.5
"""Seconds that a task's end waits at most until its event is written to the agent."""


class EventStream:
    """The task events of all tasks: a bounded buffer with at most one reader."""

    def __init__(self) -> None:
        self._buffer: deque[tuple[int, wire.DriverTaskEvent]] = deque(maxlen=BUFFER_EVENTS)  # by their numbers
        self._number = 0
        self._written = 0
        self._arrived = asyncio.Event()
        self._wrote = asyncio.Event()
        self._reader: object = None
        self._throttles: dict[str, Throttle] = {}

    def publish(self, task: wire.TaskConfig, event: TaskEvent) -> None:
        """Publish an event that occurs at most a few times in a task's life."""
        now = Timestamp()
        now.GetCurrentTime()
        message = wire.DriverTaskEvent(
            task_id=task.id,
            alloc_id=task.alloc_id,
            task_name=task.name,
            timestamp=now,
            message=bounded(event.message, TEXT_MAX),
            annotations={key: bounded(text, TEXT_MAX) for key, text in event.annotations.items()},
        )
        self._number += 1
        self._buffer.append((self._number, message))
        self._arrived.set()

    def publish_throttled(self, task: wire.TaskConfig, event: TaskEvent) -> None:
        """Publish an event that may recur, as often as its `Throttle` permits."""
        loop = asyncio.get_running_loop()
        throttle = self._throttles.setdefault(task.id, Throttle(since=loop.time()))
        passed = throttle.offer(event, loop.time())
        if passed is not None:
            self.publish(task, passed)
        elif throttle.held == 1:
            loop.call_later(throttle.due(loop.time()), self._flush, task)

    async def publish_last(self, task: wire.TaskConfig, event: TaskEvent) -> None:
        """Publish a task's last event, after its throttled ones, and wait until it is written to a connected agent.

        Nomad discards events of a task that arrive after WaitTask has returned.
        """
        self._flush(task)
        self.publish(task, event)
        last = self._number
        with suppress(TimeoutError):
            async with asyncio.timeout(DELIVERY_TIMEOUT_S):
                while self._reader is not None and self._written < last:
                    self._wrote.clear()
                    await self._wrote.wait()
        self._throttles.pop(task.id, None)  # only now, since an event meanwhile would make another one

    def forget(self, task: wire.TaskConfig) -> None:
        """Publish the held events of a task whose start has failed, and forget it."""
        self._flush(task)
        self._throttles.pop(task.id, None)

    def _flush(self, task: wire.TaskConfig) -> None:
        throttle = self._throttles.get(task.id)
        held = throttle.release(asyncio.get_running_loop().time()) if throttle else None
        if held is not None:
            self.publish(task, held)

    async def stream(self) -> AsyncGenerator[wire.DriverTaskEvent, None]:
        """Yield the buffered events, then new ones as they occur. A new call replaces the earlier reader.

        An event stays in the buffer until the stream has survived its write by `SETTLE_TIMEOUT_S`. The events of a
        stream that breaks before that are sent to the next reader again.
        """
        me, loop = object(), asyncio.get_running_loop()
        self._reader = me
        self._written = 0  # all of the buffer is for this reader
        self._arrived.set()
        settling: list[asyncio.TimerHandle] = []
        try:
            while True:
                await self._arrived.wait()
                if self._reader is not me:
                    await asyncio.Event().wait()  # Nomad reopens an ended stream at once
                self._arrived.clear()
                # A list, since events may be published while gRPC writes.
                for number, event in [each for each in self._buffer if each[0] > self._written]:
                    yield event
                    if self._reader is not me:  # replaced during the write
                        break
                    self._written = number
                    self._wrote.set()
                settling = [timer for timer in settling if timer.when() > loop.time()]
                settling.append(loop.call_later(SETTLE_TIMEOUT_S, self._drop_delivered, self._written))
        finally:
            for timer in settling:
                timer.cancel()
            if self._reader is me:
                self._reader = None
                self._wrote.set()

    def _drop_delivered(self, last: int) -> None:
        while self._buffer and self._buffer[0][0] <= last:
            self._buffer.popleft()
