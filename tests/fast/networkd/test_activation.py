"""When a task without a process is started, and how long its packets are held."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

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

    def has_fifo(self, task: TaskName) -> bool:
        return False

    def refuse_packets(self, task: TaskName) -> None:
        self.packets.append("refused")


class Writer:
    async def run(self, function: Callable[..., Any], *arguments: object) -> Any:
        return function(*arguments)


class Units:
    """A start job, while it is there."""

    def __init__(self) -> None:
        self.has_job = True
        self.asked: list[TaskName] = []

    async def over(self, tasks: list[TaskName]) -> frozenset[TaskName]:
        return frozenset() if self.has_job else frozenset(tasks)

    async def stop_undeclared_socket(self, task: TaskName) -> bool:
        self.asked.append(task)
        return len(self.asked) > 1


async def later() -> None:
    await asyncio.sleep(5 * CHECK_INTERVAL_S)


@pytest.mark.leaps
async def test_a_start_that_fails_is_repeated_for_a_later_packet() -> None:
    waiting, units = Waiting(), Units()
    state: Any = SimpleNamespace(host=SimpleNamespace(waiting=waiting))
    async with asyncio.TaskGroup() as tasks:
        writer: Any = Writer()
        subject = Activation(state, writer, cast(Any, units), tasks, KeyedLocks(), lambda _: None)
        assert subject.start(WEB, "a packet")
        assert subject.start(WEB, "another")
        await later()
        assert (waiting.started, waiting.packets) == (1, [])
        units.has_job = False
        await later()
        assert waiting.packets == ["refused"]
        assert subject.start(WEB, "a packet")
        assert waiting.started == 2
        subject.released(WEB)
        await later()
    assert waiting.packets == ["refused"], "nothing is refused after a release"


@pytest.mark.leaps
@pytest.mark.parametrize("idle_stops", [True, False])
async def test_a_task_without_its_fifo_is_released_and_its_socket_unit_stopped_first(idle_stops: bool) -> None:
    """The file of that unit may be gone: PID 1 is asked again where it does not reply, such as during its reload."""
    waiting, units, released = Waiting(), Units(), list[tuple[list[TaskName], int]]()
    record = SimpleNamespace(reservation=SimpleNamespace(task=WEB, idle_stops=idle_stops))
    leases = SimpleNamespace(get=lambda _: record)
    state: Any = SimpleNamespace(host=SimpleNamespace(waiting=waiting, leases=leases))
    async with asyncio.TaskGroup() as tasks:
        subject = Activation(
            state, cast(Any, Writer()), cast(Any, units), tasks, KeyedLocks(),
            lambda each: released.append(([*each], len(units.asked))),
        )  # fmt: skip
        subject.on_fifos([WEB])
        await later()
    assert released == ([([WEB], 2)] if idle_stops else [])
