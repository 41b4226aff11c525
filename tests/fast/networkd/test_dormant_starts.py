"""When a task without a process is started, how long its packets are held, and what begins and ends these steps.

tests/contract/test_network_activation.py shows what they do, with the kernel's packets.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.fast.network.test_nft_rules import RESERVATION
from tests.support.fakes.background import yields

from solo5_systemd.base.concurrency import KeyedLocks
from solo5_systemd.base.names import TaskName
from solo5_systemd.network.model import IpAddress, Lease, LeaseRecord, LeaseState
from solo5_systemd.network.neighbours import Neighbours
from solo5_systemd.networkd import dormant_starts, releases
from solo5_systemd.networkd.dormant_starts import CHECK_INTERVAL_S, STARTS_INTERVAL_S, STARTS_MAX, Activation
from solo5_systemd.networkd.releases import Releases

LEASE = RESERVATION.leases[0]
A = RESERVATION.task
RUNS = LeaseRecord(reservation=replace(RESERVATION, idle_s=60, idle_stops=True), state=LeaseState.ATTACHED, expires=0)
WAITS = replace(RUNS, state=LeaseState.WAITING)


class Host:
    """The record of one task, the packets of the kernel for it, its FIFO, and PID 1, which has no job of its start."""

    def __init__(self, record: LeaseRecord | None = WAITS) -> None:
        self.record = record
        self.reads = self.has_file = self.is_emptied = True
        self.starts, self.done = 0, list[str]()
        self.meanwhile: LeaseRecord | None = None
        self.on_hold: Callable[[], None] = lambda: None
        self.asked: list[TaskName] = []
        self.networks = {LEASE.network: SimpleNamespace(bridge=LEASE.bridge)}

    @property
    def records(self) -> Sequence[LeaseRecord]:
        return [self.record] if self.record else []

    def get(self, task: TaskName) -> LeaseRecord | None:
        return self.record

    def of(self, address: IpAddress) -> LeaseRecord | None:
        return self.record if address in LEASE.addresses else None

    def waiting(self) -> Sequence[LeaseRecord]:
        return [each for each in self.records if each.waits]

    def start(self, task: TaskName) -> bool:
        self.starts += self.reads and self.is_emptied
        return self.reads

    def is_read(self, task: TaskName) -> bool:
        return self.reads

    def has_fifo(self, task: TaskName) -> bool:
        return self.has_file

    def remove_fifo(self, task: TaskName) -> None:
        self.has_file = False

    def waits(self, task: TaskName) -> bool:
        return bool(self.record and self.record.waits)

    def packets(self, task: TaskName, do: Any, only: Lease | None = None) -> Sequence[bool]:
        self.done.append(do.__name__)
        if do is Neighbours.hold:
            self.on_hold()
        return [True]

    async def over(self, tasks: Sequence[TaskName]) -> Sequence[TaskName]:
        self.record = self.record or self.meanwhile
        self.is_emptied = True  # PID 1 empties a FIFO that it has just opened, before it handles the next call
        return tasks

    async def stop_undeclared_socket(self, task: TaskName) -> bool:
        self.asked.append(task)
        return len(self.asked) > 1

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        await asyncio.sleep(0)
        return function(*arguments)

    def looked_up(self) -> Sequence[tuple[int, IpAddress]]:
        return [(1, LEASE.addresses[0])]


def core(host: Any, tasks: asyncio.TaskGroup) -> Any:
    links = SimpleNamespace(neighbours=SimpleNamespace(passes_frames=lambda link: False))
    of_host = SimpleNamespace(leases=host, sleepers=host, bridges=host, links=links)
    state = SimpleNamespace(host=of_host, waits=host.waits)
    return SimpleNamespace(state=state, writer=host, units=host, tasks=tasks, locks=KeyedLocks[TaskName]())


@asynccontextmanager
async def activation(host: Host) -> AsyncIterator[Activation]:
    async with asyncio.TaskGroup() as tasks:
        found = Activation(core(host, tasks))
        try:
            yield found
        finally:
            released(found)


def released(subject: Activation) -> None:
    with subject.releasing(A):
        pass


async def later(intervals: float = 5) -> None:
    await asyncio.sleep(intervals * CHECK_INTERVAL_S)


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is logged about units."""
    lines: list[str] = []
    monkeypatch.setattr(dormant_starts, "link_index", lambda name: 1)
    for module in (dormant_starts, releases):
        monkeypatch.setattr(module, "log_about", lambda unit, text, **_: lines.append(text))
    return lines


@pytest.mark.leaps
async def test_a_start_that_pid_1_has_not_begun_yet_has_not_failed() -> None:
    host = Host()
    async with activation(host) as subject:
        subject.start(A, "a packet")
        await later(1.5)
        assert host.done == []


@pytest.mark.leaps
async def test_a_task_that_ends_by_itself_is_not_started_more_often_than_it_may_be(log: list[str]) -> None:
    """So that a client which makes it crash cannot have PID 1 give it up."""
    host = Host()
    async with activation(host) as subject:
        begun = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() < begun + STARTS_INTERVAL_S:
            subject.start(A, "a packet")
            await later()
        assert host.starts == STARTS_MAX < len(host.done)
        assert {*host.done} == {"refuse"}, "at once"
        assert len([line for line in log if "is not started for packets until later" in line]) == 1
        subject.start(A, "a packet")
        assert host.starts == STARTS_MAX + 1


@pytest.mark.leaps
async def test_a_task_that_is_ended_for_idleness_is_started_each_time() -> None:
    host = Host()
    async with activation(host) as subject:
        for _ in range(3 * STARTS_MAX):
            subject.start(A, "a packet")
            host.record = replace(RUNS, asleep=1)
            released(subject)
            host.record = WAITS
        assert host.starts == 3 * STARTS_MAX


@pytest.mark.leaps
async def test_a_task_whose_fifo_is_closed_waits_no_longer(log: list[str]) -> None:
    host = Host()
    async with activation(host) as subject:
        host.reads = False
        subject.start(A, "a packet")
        await later()
        assert (host.done, host.has_file) == (["refuse"], False)
        assert [line for line in log if "PID 1 has closed its FIFO" in line]


@pytest.mark.leaps
@pytest.mark.parametrize("idle_stops", [True, False])
async def test_a_task_without_its_fifo_is_released_and_its_socket_unit_stopped_first(
    log: list[str], monkeypatch: pytest.MonkeyPatch, idle_stops: bool
) -> None:
    """The file of that unit may be gone: PID 1 is asked again where it does not reply, such as during its reload."""
    host, over = Host(replace(WAITS, reservation=replace(RESERVATION, idle_stops=idle_stops))), list[tuple[Any, int]]()
    host.has_file = False
    none: Any = None
    async with asyncio.TaskGroup() as tasks:
        subject = Releases(core(host, tasks), none, none)
        monkeypatch.setattr(subject, "release_without_run", lambda each: over.append(([*each], len(host.asked))))
        subject._on_fifos([A])
        await later()
    assert (over, len(log)) == (([([A], 2)], 1) if idle_stops else ([], 0))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dormant_starts, "CHECK_INTERVAL_S", 0)


@pytest.mark.usefixtures("quick")
async def test_a_look_up_amid_a_release_begins_no_delivery_to_taps_that_go() -> None:
    host = Host(RUNS)
    async with activation(host) as found:
        with found.releasing(A):
            found._on_lookups(cast(Any, host))
            await yields()
            host.record = WAITS
        await found.hold(A)
        assert host.starts == 1


@pytest.mark.usefixtures("quick")
async def test_a_task_that_waits_by_the_time_its_held_packets_are_found_is_started_for_them() -> None:
    host = Host(RUNS)
    host.on_hold = lambda: setattr(host, "record", WAITS)
    async with activation(host) as found:
        await found._deliver_held()
        await yields()
        await found.hold(A)
        assert host.starts == 1
        assert "deliver" not in host.done


@pytest.mark.usefixtures("quick")
async def test_the_end_of_the_service_waits_for_no_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be begun last by a release, and itself wait for the next service."""
    monkeypatch.setattr(dormant_starts, "LookupWatch", lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    host = Host()
    async with activation(host) as found:
        with found.watching():
            await yields()
        await found.hold(A)
        assert host.starts == 2, "PID 1 starts it"
        assert A not in found._started


@pytest.mark.parametrize("meanwhile", [None, RUNS])
async def test_the_first_start_is_neither_lost_nor_made_twice(meanwhile: LeaseRecord | None) -> None:
    """PID 1 has not emptied the FIFO yet, and starts the task for another reason meanwhile, or not."""
    host = Host(record=None)
    host.is_emptied, host.meanwhile = False, meanwhile
    async with activation(host) as found:
        await found._start_once_read(A, "it has not run before")
        assert host.starts == (meanwhile is None)


@pytest.mark.usefixtures("quick")
async def test_a_start_that_left_no_lease_is_made_again() -> None:
    host = Host()
    async with activation(host) as found:
        found.start(A, "it has not run before")
        host.record = None
        await yields()
        found.start(A, "it has not run before")
        assert host.starts == 2


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("kept", [True, False])
async def test_of_a_task_that_is_not_to_wait_no_packet_is_kept(kept: bool) -> None:
    host = Host(replace(RUNS, reservation=replace(RUNS.reservation, idle_stops=kept)))
    async with activation(host) as found:
        for _ in range(2):  # the second, while its tap is waited for
            found._on_lookups(cast(Any, host))
            await yields()
        assert ("keep" in host.done) == kept


# -- when the network of a task without a run is looked at again -----------------------------------------------------


B = TaskName("a")


async def test_what_happens_during_a_release_is_looked_at_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the end of a socket unit while its task begins to wait."""
    releases, news = Releases.__new__(Releases), asyncio.Event()
    releases._without_run, releases._stopping = {B: news}, False
    looks: list[bool] = []

    async def is_settled(task: TaskName) -> bool:
        looks.append(news.is_set())
        if len(looks) == 1:
            releases._release_after_run(task)
        return True

    monkeypatch.setattr(releases, "_is_settled", is_settled)
    await releases._wait_and_release(B, news)
    assert looks == [False, False]
    assert releases._without_run == {}
