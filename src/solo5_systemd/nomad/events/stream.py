"""Events on their way to Nomad, which shows them among those of their task.

They are kept for a while where nobody listens: the agent opens its stream after the first tasks may have been
recovered, and opens another when it comes back.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass

from google.protobuf.timestamp_pb2 import Timestamp

from solo5_systemd.nomad.events.messages import Announcement
from solo5_systemd.nomad.events.throttle import Throttle
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.text import bounded

KEPT = 4096
"""Events for a listener to come; Nomad itself keeps 10 of each task."""

LONGEST = 2000
"""Characters of a message, and of an annotation."""

SETTLING = 0.05
"""Seconds after which what was sent counts as heard: a write into a connection that is just ending is accepted, too."""

PATIENCE = 0.5
"""Seconds that a task's end may wait until it was written to who listens."""


@dataclass(frozen=True, kw_only=True)
class _Kept:
    number: int
    event: wire.DriverTaskEvent


class Events:
    """The driver's one stream of task events."""

    def __init__(self) -> None:
        self._kept: deque[_Kept] = deque(maxlen=KEPT)
        self._number = 0
        self._written = 0
        self._arrived = asyncio.Event()
        self._wrote = asyncio.Event()
        self._listener: object = None
        self._throttles: dict[str, Throttle] = {}

    def publish(self, task: wire.TaskConfig, announcement: Announcement) -> None:
        """Tell what comes once in a task's life, or a few times."""
        now = Timestamp()
        now.GetCurrentTime()
        event = wire.DriverTaskEvent(
            task_id=task.id,
            alloc_id=task.alloc_id,
            task_name=task.name,
            timestamp=now,
            message=bounded(announcement.message, LONGEST),
            annotations={key: bounded(text, LONGEST) for key, text in announcement.annotations.items()},
        )
        self._number += 1
        self._kept.append(_Kept(number=self._number, event=event))
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

    async def conclude(self, task: wire.TaskConfig, announcement: Announcement) -> None:
        """Tell the last of a task, after all that was held back, and wait until it is written to who listens.

        Nomad takes no notice of an event that it hears after it has heard of the end otherwise, and is done with it.
        """
        self._release(task)
        self._throttles.pop(task.id, None)
        self.publish(task, announcement)
        last = self._number
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                while self._listener is not None and self._written < last:
                    self._wrote.clear()
                    await self._wrote.wait()

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
        me, loop = object(), asyncio.get_running_loop()
        self._listener = me
        self._written = 0
        self._arrived.set()
        settling: list[asyncio.TimerHandle] = []
        try:
            while True:
                await self._arrived.wait()
                if self._listener is not me:
                    await asyncio.Event().wait()  # a stream that ends is opened again at once
                self._arrived.clear()
                for kept in [each for each in self._kept if each.number > self._written]:
                    yield kept.event
                    if self._listener is not me:
                        break
                    self._written = kept.number
                    self._wrote.set()
                settling = [timer for timer in settling if timer.when() > loop.time()]
                settling.append(loop.call_later(SETTLING, self._heard, self._written))
        finally:
            for timer in settling:
                timer.cancel()
            if self._listener is me:
                self._listener = None
                self._wrote.set()

    def _heard(self, last: int) -> None:
        while self._kept and self._kept[0].number <= last:
            self._kept.popleft()
