"""When a task without a process is started, and how long its packets are held."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from solo5_systemd import networkd
from solo5_systemd.base.concurrency import KeyedLocks
from solo5_systemd.base.names import TaskName
from solo5_systemd.network.neighbours import Neighbours
from solo5_systemd.networkd.dormant_starts import CHECK_INTERVAL_S, STARTS_INTERVAL_S, STARTS_MAX, Activation
from solo5_systemd.networkd.releases import Releases

WEB = TaskName("web")


class Waiting:
    """One task that waits, and what is done with its packets."""

    def __init__(self) -> None:
        self.ending: set[TaskName] = set()
        self.reads = True
        self.has_file = True
        self.started = 0
        self.done: list[str] = []

    def start(self, task: TaskName) -> bool:
        self.started += self.reads
        return self.reads

    def is_read(self, task: TaskName) -> bool:
        return self.reads

    def has_fifo(self, task: TaskName) -> bool:
        return self.has_file

    is_expected = has_fifo

    def remove_fifo(self, task: TaskName) -> None:
        self.has_file = False

    def is_waiting(self, task: TaskName) -> bool:
        return True

    def packets(self, task: TaskName, do: object) -> None:
        assert do is Neighbours.refuse
        self.done.append("refused")


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


async def later(intervals: float = 5) -> None:
    await asyncio.sleep(intervals * CHECK_INTERVAL_S)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is logged about units."""
    lines: list[str] = []
    for module in (networkd.dormant_starts, networkd.releases):
        monkeypatch.setattr(module, "log_about", lambda unit, text, **_: lines.append(text))
    return lines


def core(state: object, writer: object, units: object, tasks: asyncio.TaskGroup) -> Any:
    return SimpleNamespace(state=state, writer=writer, units=units, tasks=tasks, locks=KeyedLocks[TaskName]())


def released(subject: Activation) -> None:
    with subject.releasing(WEB):
        pass


@asynccontextmanager
async def activation() -> AsyncIterator[tuple[Activation, Waiting]]:
    """Of a task whose starts are over at once."""
    waiting, units = Waiting(), Units()
    units.has_job = False
    state: Any = SimpleNamespace(host=SimpleNamespace(waiting=waiting))
    async with asyncio.TaskGroup() as tasks:
        yield Activation(core(state, Writer(), units, tasks)), waiting


@pytest.mark.leaps
async def test_a_start_that_fails_is_repeated_for_a_later_packet() -> None:
    waiting, units = Waiting(), Units()
    state: Any = SimpleNamespace(host=SimpleNamespace(waiting=waiting))
    async with asyncio.TaskGroup() as tasks:
        writer: Any = Writer()
        subject = Activation(core(state, writer, units, tasks))
        assert subject.start(WEB, "a packet")
        assert subject.start(WEB, "another")
        await later()
        assert (waiting.started, waiting.done) == (1, [])
        units.has_job = False
        await later()
        assert waiting.done == ["refused"]
        assert subject.start(WEB, "a packet")
        assert waiting.started == 2
        released(subject)
        await later()
    assert waiting.done == ["refused"], "nothing is refused after a release"


@pytest.mark.leaps
async def test_a_start_that_pid_1_has_not_begun_yet_has_not_failed() -> None:
    async with activation() as (subject, waiting):
        assert subject.start(WEB, "a packet")
        await later(1.5)
        assert waiting.done == []
        released(subject)


@pytest.mark.leaps
async def test_a_task_that_ends_by_itself_is_not_started_more_often_than_it_may_be(log: list[str]) -> None:
    """So that a client which makes it crash cannot have PID 1 give it up."""
    async with activation() as (subject, waiting):
        begun = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() < begun + STARTS_INTERVAL_S:
            assert subject.start(WEB, "a packet")
            await later()
        assert waiting.started == STARTS_MAX < len(waiting.done)
        assert {*waiting.done} == {"refused"}, "at once"
        assert len([line for line in log if "is not started for packets until later" in line]) == 1
        assert subject.start(WEB, "a packet")
        assert waiting.started == STARTS_MAX + 1


@pytest.mark.leaps
async def test_a_task_that_is_ended_for_idleness_is_started_each_time() -> None:
    async with activation() as (subject, waiting):
        waiting.ending.add(WEB)
        for _ in range(3 * STARTS_MAX):
            assert subject.start(WEB, "a packet")
            released(subject)
        assert waiting.started == 3 * STARTS_MAX


@pytest.mark.leaps
async def test_a_task_whose_fifo_is_closed_waits_no_longer(log: list[str]) -> None:
    async with activation() as (subject, waiting):
        waiting.reads = False
        assert subject.start(WEB, "a packet"), "PID 1 may be about to open it"
        await later()
        assert (waiting.done, waiting.has_file) == (["refused"], False)
        assert [line for line in log if "PID 1 has closed its FIFO" in line]
        assert not subject.start(WEB, "a packet")


@pytest.mark.leaps
@pytest.mark.parametrize("idle_stops", [True, False])
async def test_a_task_without_its_fifo_is_released_and_its_socket_unit_stopped_first(
    log: list[str], monkeypatch: pytest.MonkeyPatch, idle_stops: bool
) -> None:
    """The file of that unit may be gone: PID 1 is asked again where it does not reply, such as during its reload."""
    waiting, units, released = Waiting(), Units(), list[tuple[list[TaskName], int]]()
    waiting.has_file = False
    record = SimpleNamespace(reservation=SimpleNamespace(task=WEB, idle_stops=idle_stops))
    leases = SimpleNamespace(get=lambda _: record)
    state: Any = SimpleNamespace(host=SimpleNamespace(waiting=waiting, leases=leases))
    none: Any = None
    async with asyncio.TaskGroup() as tasks:
        subject = Releases(core(state, Writer(), units, tasks), none, none, none)
        monkeypatch.setattr(subject, "release_without_run", lambda each: released.append(([*each], len(units.asked))))
        subject._on_fifos([WEB])
        await later()
    assert (released, len(log)) == (([([WEB], 2)], 1) if idle_stops else ([], 0))
