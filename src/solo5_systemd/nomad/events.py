"""Events on their way to Nomad, which shows them among those of their task.

They are kept for a while where nobody listens: the agent opens its stream after the first tasks may have been
recovered, and opens another when it comes back.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping

from google.protobuf.timestamp_pb2 import Timestamp

from solo5_systemd.nomad.proto import driver_pb2 as wire

KEPT = 256
"""Events for a listener to come; Nomad itself keeps 10 of each task."""


class Events:
    """The driver's one stream of task events."""

    def __init__(self) -> None:
        self._kept: deque[wire.DriverTaskEvent] = deque(maxlen=KEPT)
        self._arrived = asyncio.Event()
        self._listener: object = None

    def publish(self, task: wire.TaskConfig, message: str, annotations: Mapping[str, str] | None = None) -> None:
        now = Timestamp()
        now.GetCurrentTime()
        self._kept.append(
            wire.DriverTaskEvent(
                task_id=task.id,
                alloc_id=task.alloc_id,
                task_name=task.name,
                timestamp=now,
                message=message,
                annotations=annotations or {},
            )
        )
        self._arrived.set()

    async def stream(self) -> AsyncIterator[wire.DriverTaskEvent]:
        """Events kept, and all from now on; a later listener takes over from an earlier one, who is gone or will be."""
        me = self._listener = object()
        self._arrived.set()
        while True:
            await self._arrived.wait()
            if self._listener is not me:
                await asyncio.Event().wait()  # a stream that ends is opened again at once
            self._arrived.clear()
            while self._kept and self._listener is me:
                yield self._kept.popleft()
