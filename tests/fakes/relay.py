"""The relay of consoles, in memory."""

import asyncio
import os
import stat
from collections.abc import AsyncGenerator, Iterator, Mapping

from tests.fakes.steps import Steps

from solo5_systemd.journal.lines import DroppedLines
from solo5_systemd.names import TaskName


class FakeRelay:
    """Fulfils `backends.Relay`.

    Attributes:
        held: the tasks whose consoles it forwards, each with its unit and since when.
        lost: those of which it has a record and no descriptors.
        silent: its records, and for how many seconds each has not changed.
        unread: the progress of full FIFOs, for each `drain` the next; None for FIFOs that are read.
        units: every unit that it was asked to forward, in order.
        namespaces: that of each.
        told: gaps to be told.
        drained: every task that it was told the end of, in order.
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
        self.told: asyncio.Queue[DroppedLines] = asyncio.Queue()

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
            yield await self.told.get()

    async def drain(self, task: TaskName) -> int | None:
        async with self._steps.step("drain"):
            if self.unread is not None:
                return next(self.unread)
            self.drained.append(task)
            self.lost.discard(task)
            self.held.pop(task, None)
            return None
