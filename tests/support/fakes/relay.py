"""An in-memory relay."""

import asyncio
import os
import stat
from collections.abc import AsyncGenerator, Iterator, Mapping

from tests.support.fakes.steps import Steps

from solo5_systemd.base.names import TaskName
from solo5_systemd.bus.relay_client import Relay
from solo5_systemd.journal.lines import DroppedLines


class FakeRelay(Relay):
    """A relay.

    Attributes:
        held: forwarded tasks, each with its unit and start time.
        lost: tasks with a record and without open FIFOs.
        silent: result of `records`.
        unread: progress of full FIFOs, the next one for each `drain`; None: FIFOs are read.
        units: units of all `forward` calls, in order.
        namespaces: namespaces of all `forward` calls, in order.
        dropped: dropped lines to yield.
        drained: tasks of all `drain` calls, in order.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self.held: dict[TaskName, tuple[str, int]] = {}
        self.lost: set[TaskName] = set()
        self.silent: dict[TaskName, float] = {}
        self.units: list[str] = []
        self.namespaces: list[str] = []
        self.drained: list[TaskName] = []
        self.unread: Iterator[int] | None = None
        self.dropped: asyncio.Queue[DroppedLines] = asyncio.Queue()

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

    async def records(self) -> Mapping[TaskName, float]:
        async with self._steps.step("records"):
            return self.silent

    async def open_tasks(self) -> frozenset[TaskName]:
        async with self._steps.step("open_tasks"):
            return frozenset(self.held)

    async def gaps(self) -> AsyncGenerator[DroppedLines, None]:
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
