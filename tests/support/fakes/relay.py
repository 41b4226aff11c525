"""An in-memory relay."""

import asyncio
import os
import stat
from collections.abc import AsyncGenerator, Iterator

from tests.support.fakes.steps import Steps, step

from solo5_systemd.base.names import TaskName
from solo5_systemd.bus.relay_client import Relay


class FakeRelay(Relay):
    """A relay."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self.held: dict[TaskName, tuple[str, int]] = {}  # forwarded tasks, each with its unit and start time
        self.lost: set[TaskName] = set()  # tasks with a record and without open FIFOs
        self.silent: dict[TaskName, float] = {}  # result of `records`
        self.units: list[str] = []  # units of all `forward` calls, in order
        self.namespaces: list[str] = []  # namespaces of all `forward` calls, in order
        self.drained: list[TaskName] = []  # tasks of all `drain` calls, in order
        self.unread: Iterator[int] | None = None  # progress of full FIFOs, the next one for each `drain`
        self.dropped: asyncio.Queue[tuple[TaskName, int]] = asyncio.Queue()  # dropped lines to yield

    async def forward(
        self, task: TaskName, unit: str, since: int, stdout: int, stderr: int, *, namespace: str = ""
    ) -> None:
        async with self._steps.step("forward"):
            assert [stat.S_ISFIFO(os.fstat(end).st_mode) for end in (stdout, stderr)] == [True, True]
            self.held[task] = (unit, since)
            self.units.append(unit)
            self.namespaces.append(namespace)

    async def has_record(self, task: TaskName) -> bool:
        async with self._steps.step("has_record"):
            return task in self.held or task in self.lost

    records = step("records", "silent")

    async def open_tasks(self) -> frozenset[TaskName]:
        async with self._steps.step("open_tasks"):
            return frozenset(self.held)

    async def gaps(self) -> AsyncGenerator[tuple[TaskName, int], None]:
        while True:
            yield await self.dropped.get()

    async def drain(self, task: TaskName) -> int | None:
        async with self._steps.step("drain"):
            if self.unread is not None:
                return next(self.unread)
            self.drained.append(task)
            self.lost.discard(task)
            self.held.pop(task, None)
            return None
