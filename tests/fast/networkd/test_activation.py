"""When a task without a process is started, and how long its packets are held."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.support.fakes.clock import passed

from solo5_systemd.base.concurrency import KeyedLocks
from solo5_systemd.base.names import TaskName
from solo5_systemd.networkd.activation import CHECK_INTERVAL_S, Activation

WEB = TaskName("web")


class Waiting:
    """One task that waits, and what is done with its packets."""

    def __init__(self) -> None:
        self.started = 0
        self.packets: list[str] = []

    def start(self, task: TaskName) -> bool:
        self.started += 1
        return True

    def is_waiting(self, task: TaskName) -> bool:
        return True

    def refuse_packets(self, task: TaskName) -> None:
        self.packets.append("refused")


class Writer:
    async def run(self, function: Callable[..., Any], *arguments: object) -> Any:
        return function(*arguments)


class Units:
    """A start job, while it is there."""

    def __init__(self) -> None:
        self.has_job = True

    async def over(self, tasks: list[TaskName]) -> frozenset[TaskName]:
        return frozenset() if self.has_job else frozenset(tasks)


@pytest.mark.leaps
async def test_a_start_that_fails_is_repeated_for_a_later_packet() -> None:
    waiting, units = Waiting(), Units()
    state: Any = SimpleNamespace(host=SimpleNamespace(waiting=waiting))
    async with asyncio.TaskGroup() as tasks:
        writer: Any = Writer()
        subject = Activation(state, writer, cast(Any, units), tasks, KeyedLocks(), lambda _: None)
        assert subject.start(WEB, "a packet")
        assert subject.start(WEB, "another")
        await passed(5 * CHECK_INTERVAL_S)
        assert (waiting.started, waiting.packets) == (1, [])
        units.has_job = False
        await passed(5 * CHECK_INTERVAL_S)
        assert waiting.packets == ["refused"]
        assert subject.start(WEB, "a packet")
        assert waiting.started == 2
        subject.released(WEB)
        await passed(5 * CHECK_INTERVAL_S)
    assert waiting.packets == ["refused"], "nothing is refused after a release"
