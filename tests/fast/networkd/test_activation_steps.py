"""What begins and ends the steps of a start for a packet; test_activation.py has what they do."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.fast.network.test_nft_rules import RESERVATION

from solo5_systemd.base.concurrency import KeyedLocks
from solo5_systemd.base.names import TaskName
from solo5_systemd.network.model import IpAddress, Lease, LeaseRecord, LeaseState
from solo5_systemd.network.neighbours import Neighbours
from solo5_systemd.networkd import dormant_starts
from solo5_systemd.networkd.dormant_starts import Activation

LEASE = RESERVATION.leases[0]
A = RESERVATION.task
RUNS = LeaseRecord(
    reservation=replace(RESERVATION, leases=(LEASE,), idle_s=60, idle_stops=True),
    state=LeaseState.ATTACHED,
    expires=0,
)
WAITS = replace(RUNS, state=LeaseState.WAITING)


class Kernel:
    """The record of one task, the packets of the kernel for it, and its FIFO."""

    def __init__(self, record: LeaseRecord | None) -> None:
        self.record, self.ending = record, set[TaskName]()
        self.starts, self.done = 0, list[str]()
        self.on_hold: Callable[[], None] = lambda: None

    @property
    def records(self) -> Sequence[LeaseRecord]:
        return [self.record] if self.record else []

    def get(self, task: TaskName) -> LeaseRecord | None:
        return self.record

    def waiting(self) -> Sequence[LeaseRecord]:
        return [each for each in self.records if each.waits]

    @property
    def allocations(self) -> Any:
        return SimpleNamespace(addresses=dict.fromkeys(LEASE.addresses, A))

    def start(self, task: TaskName) -> bool:
        self.starts += 1
        return True

    def is_waiting(self, task: TaskName) -> bool:
        return bool(self.record and self.record.waits)

    is_expected = is_waiting

    def has_fifo(self, task: TaskName) -> bool:
        return True

    def is_read(self, task: TaskName) -> bool:
        return True

    def links(self, lease: Lease) -> Sequence[str]:
        return [lease.tap]

    def closed_link(self, links: Sequence[str]) -> str:
        return links[0]

    def packets(self, task: TaskName, do: Any) -> Sequence[bool]:
        self.done.append(do.__name__)
        if do is Neighbours.hold:
            self.on_hold()
        return [True]


class Writer:
    async def run(self, function: Any, *args: Any) -> Any:
        await asyncio.sleep(0)
        return function(*args)


class Lookups:
    def looked_up(self) -> Sequence[tuple[int, IpAddress]]:
        assert LEASE.address is not None
        return [(1, LEASE.address)]


@asynccontextmanager
async def subject(kernel: Kernel) -> AsyncIterator[Activation]:
    bridges = SimpleNamespace(networks={LEASE.network: SimpleNamespace(bridge=LEASE.bridge)})
    host = SimpleNamespace(leases=kernel, waiting=kernel, bridges=bridges)
    units = SimpleNamespace(over=lambda tasks: asyncio.sleep(0, [*tasks]))
    async with asyncio.TaskGroup() as group:
        state, locks = SimpleNamespace(host=host), KeyedLocks[TaskName]()
        core = SimpleNamespace(state=state, writer=Writer(), units=units, tasks=group, locks=locks)
        found = Activation(cast(Any, core))
        try:
            yield found
        finally:
            with found.releasing(A):
                pass


@pytest.fixture(autouse=True)
def steps_are_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dormant_starts, "CHECK_INTERVAL_S", 0)
    monkeypatch.setattr(dormant_starts, "link_index", lambda name: 1)
    monkeypatch.setattr(dormant_starts, "log_about", lambda *arguments, **options: None)


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_look_up_amid_a_release_begins_no_delivery_to_taps_that_go() -> None:
    kernel = Kernel(RUNS)
    async with subject(kernel) as found:
        with found.releasing(A):
            found._on_lookups(cast(Any, Lookups()))
            await settled()
            kernel.record = WAITS
        await found.hold(A)
        assert kernel.starts == 1


async def test_a_task_that_waits_by_the_time_its_held_packets_are_found_is_started_for_them() -> None:
    kernel = Kernel(RUNS)
    kernel.on_hold = lambda: setattr(kernel, "record", WAITS)
    async with subject(kernel) as found:
        await found._deliver_held()
        await settled()
        await found.hold(A)
        assert kernel.starts == 1
        assert "deliver" not in kernel.done


async def test_the_end_of_the_service_waits_for_no_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be begun last by a release, and itself wait for the next service."""
    monkeypatch.setattr(dormant_starts, "LookupWatch", lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    kernel = Kernel(WAITS)
    async with subject(kernel) as found:
        with found.watching():
            await settled()
        await found.hold(A)
        assert kernel.starts == 2, "PID 1 starts it"
        assert A not in found._started


async def test_a_start_that_left_no_lease_is_made_again() -> None:
    kernel = Kernel(WAITS)
    async with subject(kernel) as found:
        assert found.start(A, "it has not run before")
        kernel.record = None
        await settled()
        assert found.start(A, "it has not run before")
        assert kernel.starts == 2


@pytest.mark.parametrize(("idle_stops", "kept"), [(True, True), (False, False)])
async def test_of_a_task_that_is_not_to_wait_no_packet_is_kept(idle_stops: bool, kept: bool) -> None:
    kernel = Kernel(replace(RUNS, reservation=replace(RUNS.reservation, idle_stops=idle_stops)))
    async with subject(kernel) as found:
        for _ in range(2):  # the second, while its tap is waited for
            found._on_lookups(cast(Any, Lookups()))
            await settled()
        assert ("keep" in kernel.done) == kept
