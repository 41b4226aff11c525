"""The methods of org.solo5.Relay1, on a forwarder."""

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from weakref import WeakValueDictionary

from solo5_systemd.daemon.service import Handler
from solo5_systemd.errors import InvalidRequestError
from solo5_systemd.journal.export import Stream
from solo5_systemd.names import TaskName, log_namespace, task_name
from solo5_systemd.relay.forward import Forwarder


class Methods:
    """Wire values in, wire values out; one call at a time for one task."""

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder
        self._turns: WeakValueDictionary[TaskName, asyncio.Lock] = WeakValueDictionary()

    @property
    def handlers(self) -> Mapping[str, Handler]:
        return {
            "Forward": partial(self._forward, ""),
            "ForwardFrom": self._forward,
            "Drain": self._drain,
            "List": self._list,
        }

    async def _forward(
        self, namespace: str, name: str, unit: str, since: int, stdout: int, stderr: int
    ) -> Sequence[object]:
        task = task_name(name)
        if namespace:
            log_namespace(namespace)
        for fd in (stdout, stderr):
            if not stat.S_ISFIFO(os.fstat(fd).st_mode):
                raise InvalidRequestError(f"what the console of task {task} is to be written to is not a FIFO.")
        async with self._turn(task):
            self._forwarder.forward(task, unit, since, {Stream.STDOUT: stdout, Stream.STDERR: stderr}, namespace)
        return []

    async def _drain(self, name: str) -> Sequence[object]:
        task = task_name(name)
        async with self._turn(task):
            return [await self._forwarder.drain(task)]

    async def _list(self) -> Sequence[object]:
        return [list(self._forwarder.tasks)]

    @asynccontextmanager
    async def _turn(self, task: TaskName) -> AsyncIterator[None]:
        lock = self._turns.setdefault(task, asyncio.Lock())
        async with lock:
            yield
