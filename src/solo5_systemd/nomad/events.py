"""Events on their way to Nomad, which shows them among those of their task.

They are kept for a while where nobody listens: the agent opens its stream after the first tasks may have been
recovered, and opens another when it comes back.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator

from google.protobuf.timestamp_pb2 import Timestamp

from solo5_systemd.nomad.announcements import Announcement
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.throttle import Throttle

KEPT = 4096
"""Events for a listener to come; Nomad itself keeps 10 of each task."""

SETTLING = 0.05
"""Seconds after which what was sent counts as heard: a write into a connection that is just ending is accepted, too."""


class Events:
    """The driver's one stream of task events."""

    def __init__(self) -> None:
        self._kept: deque[wire.DriverTaskEvent] = deque(maxlen=KEPT)
        self._arrived = asyncio.Event()
        self._listener: object = None
        self._throttles: dict[str, Throttle] = {}

    def publish(self, task: wire.TaskConfig, announcement: Announcement) -> None:
        """Tell what comes once in a task's life, or a few times."""
        now = Timestamp()
        now.GetCurrentTime()
        self._kept.append(
            wire.DriverTaskEvent(
                task_id=task.id,
                alloc_id=task.alloc_id,
                task_name=task.name,
                timestamp=now,
                message=announcement.message,
                annotations=announcement.annotations,
            )
        )
        self._arrived.set()

    def recur(self, task: wire.TaskConfig, announcement: Announcement) -> None:
        """Tell what may come any number of times: a few at once, then the last of each minute, with their number."""
        loop = asyncio.get_running_loop()
        throttle = self._throttles.setdefault(task.id, Throttle(since=loop.time()))
        passed = throttle.offer(announcement, loop.time())
        if passed is not None:
            self.publish(task, passed)
        elif throttle.held == 1:
            loop.call_later(throttle.due(loop.time()), self._release, task)

    def conclude(self, task: wire.TaskConfig, announcement: Announcement) -> None:
        """Tell the last of a task, after all that was held back."""
        self._release(task)
        self._throttles.pop(task.id, None)
        self.publish(task, announcement)

    def _release(self, task: wire.TaskConfig) -> None:
        throttle = self._throttles.get(task.id)
        held = throttle.release(asyncio.get_running_loop().time()) if throttle else None
        if held is not None:
            self.publish(task, held)

    async def stream(self) -> AsyncGenerator[wire.DriverTaskEvent, None]:
        """Events kept, and all from now on; a later listener takes over from an earlier one, who is gone or will be.

        An event is kept until the stream has outlived its being written: of one that breaks in between, the next
        listener hears again what this one may have missed.
        """
        me = self._listener = object()
        self._arrived.set()
        while True:
            await self._arrived.wait()
            if self._listener is not me:
                await asyncio.Event().wait()  # a stream that ends is opened again at once
            self._arrived.clear()
            sent = list(self._kept)
            for event in sent:
                yield event
            await asyncio.sleep(SETTLING)
            self._heard(sent)

    def _heard(self, sent: list[wire.DriverTaskEvent]) -> None:
        for event in sent:
            if self._kept and self._kept[0] is event:
                self._kept.popleft()
