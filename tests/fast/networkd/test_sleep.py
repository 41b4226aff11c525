"""When a task falls asleep, and what becomes of it where nftables or PID 1 fails.

tests/contract/test_network_sleep.py shows the same with the kernel's packets.
"""

import asyncio
import math
import os
import signal
import threading
import time
from collections.abc import Collection, Coroutine, Iterable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.fast.network.test_nft_rules import JOINED, RESERVATION, network
from tests.support.fakes.background import yields

from solo5_systemd.base.concurrency import KeyedLocks
from solo5_systemd.base.errors import HostError, InvalidRequestError, NotFoundError
from solo5_systemd.base.names import TaskName
from solo5_systemd.network.kernel_events import Packets
from solo5_systemd.network.model import LeaseRecord, LeaseState
from solo5_systemd.network.neighbours import Neighbours
from solo5_systemd.network.nft_objects import Element
from solo5_systemd.networkd import sleep
from solo5_systemd.networkd.bridges import Bridges
from solo5_systemd.networkd.leases import Leases
from solo5_systemd.networkd.namespaces import Namespaces
from solo5_systemd.networkd.sleep import Sleep
from solo5_systemd.networkd.sleepers import Sleepers
from solo5_systemd.networkd.watches import Watches

A = RESERVATION.task
(LEASE,) = RESERVATION.leases
STOP, CONT, HUP = (A, signal.SIGSTOP), (A, signal.SIGCONT), (A, signal.SIGHUP)


class Tables:
    """The elements of the tables, and the frames that they count."""

    def __init__(self) -> None:
        self.announces = True
        self.elements: set[Element] = set()
        self.counts: dict[str, int] = {}
        self.arriving = 0
        self.refuses: Collection[str] = ()

    def exchange(self, old: Iterable[Element], new: Iterable[Element] = ()) -> None:
        before, after = {*old}, {*new}
        what = "delete" if not after else "exchange" if before else "add"
        if what in self.refuses:
            raise HostError("nftables has refused it.")
        self.elements = self.elements - before | after
        if what != "delete":
            self.counts = {tap: 0 if before else count + self.arriving for tap, count in self.counts.items()}

    def replace(self, ruleset: object) -> None:
        raise HostError("nftables has refused it.")

    def active_of(self, tap: str) -> int:
        return self.counts[tap]

    def forget_taps(self, taps: Iterable[str], *names: str) -> None:
        """No router has sent anything."""

    def asleep(self) -> Sequence[str]:
        return sorted(each.name for each in self.elements if each.name.startswith("asleep"))


def bridges_of(tables: Tables) -> Bridges:
    """Return a network in use, whose leases are in memory alone."""
    store: Any = SimpleNamespace(save_lease_record=lambda record: None, sysctls=dict)
    bridges = Bridges(store, cast(Any, SimpleNamespace(neighbours=None)), cast(Any, tables), Leases(store))
    bridges.networks = {each.name: each for each in (network(),)}
    return bridges


class Units:
    """Tasks that run, with their processor time."""

    def __init__(self) -> None:
        self.signals: list[tuple[str, int]] = []
        self.runs = True
        self.updated = False
        self.heeds = True
        self.replies = True
        self.cpu: float | None = 0.0
        self.socket = False

    def is_read(self, task: TaskName) -> bool:
        return self.socket

    def has_run(self, task: TaskName) -> bool:
        return self.runs

    def is_updated(self, task: TaskName) -> bool:
        return self.updated

    async def signal(self, task: TaskName, number: int) -> bool:
        self.signals.append((task, number))
        if not self.replies:
            raise HostError("PID 1 has not replied.")
        return self.heeds

    async def forget_starts(self, task: TaskName) -> None:
        """They are of a test in a machine."""

    async def processor_time(self, task: TaskName) -> float | None:
        return self.cpu

    async def control_group(self, task: TaskName) -> str:
        return ""


class Writer:
    async def run(self, function: Any, *args: Any) -> Any:
        return function(*args)


class Service:
    """What of solo5-networkd puts one task to sleep, with a clock."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, idle_s: int, others: int = 0, *, idle_stops: bool = False
    ) -> None:
        self.tables, self.units, self.now = Tables(), Units(), 1000.0
        bridges = bridges_of(self.tables)
        self.leases, self.sleepers = bridges.leases, Sleepers(bridges)
        for number in range(others + 1):
            tap = LEASE.tap if number == others else f"s5-{number}"
            lease = replace(LEASE, tap=tap)
            task = A if number == others else TaskName(f"other-{number}")
            held = replace(RESERVATION, task=task, leases=(lease,), idle_s=idle_s, idle_stops=idle_stops)
            record = LeaseRecord(reservation=held, state=LeaseState.ATTACHED, expires=0)
            self.leases.save(record)
            self.tables.elements |= {*bridges.elements_of([record])}
            self.tables.counts[tap] = 0
        self.reasons: list[str] = []
        self.held, self.delivered = False, 0
        monkeypatch.setattr(Neighbours, "hold", lambda *_: self.held)
        monkeypatch.setattr(Neighbours, "deliver", self.deliver)
        self.begun: list[asyncio.Task[None]] = []
        host, none = SimpleNamespace(sleepers=self.sleepers, leases=self.leases, within=None, is_restored=True), None
        self.watches = Watches(cast(Any, none))
        core = SimpleNamespace(
            state=Namespaces(cast(Any, host), cast(Any, none), self.watches), writer=Writer(), units=self.units,
            locks=KeyedLocks[TaskName](), tasks=SimpleNamespace(create_task=self.begin), watches=self.watches,
        )  # fmt: skip
        self.sleep = Sleep(cast(Any, core), self.emit)
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def begin(self, what: Coroutine[Any, Any, None]) -> None:
        self.begun.append(asyncio.get_running_loop().create_task(what))

    def hear(self, what: str) -> None:
        self.sleep.on_packets(Packets({LEASE.tap: what}, frozenset(), frozenset()), cast(Any, self))

    def emit(self, signal: str, body: Sequence[object]) -> None:
        task, asleep, reason = body
        assert signal == "SleepChanged"
        if task == A and not asleep:
            self.reasons.append(str(reason))

    def deliver(self, *_: object) -> None:
        self.delivered += 1

    @property
    def asleep(self) -> int:
        record = self.leases.get(A)
        assert record is not None
        return record.asleep

    @property
    def ends(self) -> bool:
        record = self.leases.get(A)
        assert record is not None
        return record.ends

    async def after(self, seconds: float) -> Sequence[tuple[str, int]]:
        """Check after a time; return the signals to the task so far."""
        self.now += seconds
        await self.sleep.check()
        await asyncio.gather(*self.begun)
        return [each for each in self.units.signals if each[0] == A]


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    return Service(monkeypatch, idle_s=60)


async def test_a_slow_swap_takes_one_thread_of_those_that_attaches_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop has four more than the host has processors."""
    service, go_on, begun = Service(monkeypatch, idle_s=60, others=40), threading.Event(), list[str]()

    async def group(_: TaskName) -> str:
        return "/web.service"

    def slow(group: str, _: object) -> None:
        begun.append(group)
        go_on.wait(5)

    monkeypatch.setattr(service.units, "control_group", group)
    monkeypatch.setattr(sleep, "reclaim", slow)
    for seconds in (0, 70):
        service.now += seconds
        await service.sleep.check()
    for _ in range(10):
        await asyncio.to_thread(time.sleep, 0)
    assert len(begun) == 1
    go_on.set()
    await asyncio.gather(*service.begun)
    assert len(begun) == 41


async def test_a_task_falls_asleep_after_its_time_without_frames(service: Service) -> None:
    assert service.sleep.awake_because(A) == "", "nothing has looked at it"
    assert await service.after(0) == []
    service.tables.counts[LEASE.tap] = 7
    assert await service.after(59) == []
    service.now += 3
    assert service.sleep.awake_because(A) == "its last packet was seen 3 s ago"
    service.now -= 3
    assert await service.after(59) == []
    assert await service.after(1) == [STOP]
    assert service.tables.asleep() == ["asleep", "asleep4"]
    assert service.asleep
    service.tables.counts[LEASE.tap] = 1  # while no service ran, or of a lost message
    assert await service.after(1) == [STOP, CONT]
    assert (service.tables.asleep(), service.asleep) == ([], 0)


async def test_a_task_that_is_updated_is_not_idle(service: Service) -> None:
    """Its packets are those of the guest beside it by then."""
    await service.after(0)
    service.units.updated = True
    assert await service.after(60) == []
    assert service.sleep.awake_because(A) == "it is being updated"
    with pytest.raises(InvalidRequestError, match="task a is being updated"):
        await service.sleep.sleep(A)
    service.units.updated = False
    assert await service.after(59) == []
    assert await service.after(1) == [STOP]


@pytest.mark.parametrize(("cpu", "signals"), [(60 * 0.009, [STOP]), (60 * 0.011, []), (None, [STOP])])
async def test_a_task_that_computes_does_not_sleep(
    service: Service, cpu: float | None, signals: list[tuple[str, int]]
) -> None:
    """Without accounting, frames decide alone."""
    await service.after(0)
    service.units.cpu = cpu
    assert await service.after(60) == signals
    assert service.sleep.awake_because(A) == ("" if signals else "it uses more than 1% of a processor")


async def test_checks_are_a_tenth_of_the_time_apart_and_a_minute_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    for idle_s, interval in ((60, 6), (5, 0.5), (86400, 60), (0, math.inf)):
        service = Service(monkeypatch, idle_s=idle_s)
        assert service.sleep.next_check == math.inf
        service.sleep.expect(A)
        assert service.watches.wake.is_set() == (interval < math.inf)
        assert service.sleep.next_check - service.now == interval
        await service.after(min(interval, 60))
        assert service.sleep.next_check - service.now == interval


async def test_a_frame_between_the_check_and_the_signal_keeps_a_task_awake(service: Service) -> None:
    """Its guest may be about to answer, and would wait for the next one."""
    await service.after(0)
    service.tables.arriving = 1
    assert await service.after(60) == []
    assert (service.tables.asleep(), service.asleep) == ([], 0)
    service.tables.arriving = 0
    assert await service.after(1) == []
    assert await service.after(60) == [STOP]


async def test_a_packet_that_a_check_counts_before_its_announcement_is_read_has_its_name(service: Service) -> None:
    await service.sleep.sleep(A)
    service.tables.counts[LEASE.tap] += 1
    reads, writes = os.pipe()
    loop = asyncio.get_running_loop()

    def announced() -> None:
        loop.remove_reader(reads)
        service.hear("TCP 192.0.2.9:1 to 10.89.0.2:80")

    loop.add_reader(reads, announced)
    os.write(writes, b"x")
    await service.after(1)
    for descriptor in (reads, writes):
        os.close(descriptor)
    assert service.reasons == ["TCP 192.0.2.9:1 to 10.89.0.2:80"]


async def test_after_a_question_the_packet_for_which_it_was_asked_is_the_reason(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sleep, "QUESTION_TIMEOUT_S", 0)
    await service.sleep.sleep(A)
    for what in ("ARP of 10.89.0.1 for 10.89.0.2", "TCP 192.0.2.9:1 to 10.89.0.2:80", "UDP 192.0.2.9:1 to 10.89.0.2:7"):
        service.hear(what)
    await asyncio.gather(*service.begun)
    assert service.reasons == ["TCP 192.0.2.9:1 to 10.89.0.2:80"]


async def test_where_no_packets_are_announced_no_task_sleeps(service: Service) -> None:
    """As where another program has taken the group, which the service notices at its start."""
    await service.after(0)
    assert await service.after(60) == [STOP]
    service.sleepers.announces = False
    assert await service.after(0) == [STOP, CONT]
    assert await service.after(600) == [STOP, CONT]


@pytest.mark.parametrize("refuses", [("add", "delete"), ("exchange",)])
async def test_where_nftables_refuses_a_task_stays_awake(service: Service, refuses: Collection[str]) -> None:
    await service.after(0)
    service.tables.refuses = refuses
    assert await service.after(60) == []
    assert (service.tables.asleep(), service.asleep) == ([], 0)
    service.tables.refuses = ()
    assert await service.after(1) == [STOP]


async def test_a_tender_that_pid_1_does_not_stop_is_recorded_as_awake(service: Service) -> None:
    service.units.heeds = False
    with pytest.raises(HostError, match="task a cannot be put to sleep: PID 1 did not stop its tender"):
        await service.sleep.sleep(A)
    assert (service.tables.asleep(), service.asleep) == ([], 0)


async def test_a_service_that_dies_amid_a_signal_leaves_a_task_that_packets_wake(service: Service) -> None:
    """Whether PID 1 has sent it is unknown: a tender that is stopped, and recorded as awake, would be so for ever."""
    service.units.replies = False
    with pytest.raises(HostError, match="PID 1 has not replied"):
        await service.sleep.sleep(A)
    assert service.asleep
    service.units.replies = True
    await service.sleep.sleep(A)
    assert service.units.signals == [STOP, STOP], "the first one may have been lost"
    service.units.replies = False
    with pytest.raises(HostError, match="PID 1 has not replied"):
        await service.sleep.wake(A, "a request")
    service.tables.counts[LEASE.tap] = 1
    assert await service.after(1) == [STOP, STOP, CONT, CONT]
    assert (service.tables.asleep() != [], service.asleep != 0) == (True, True)
    service.units.replies = True
    assert await service.after(1) == [STOP, STOP, CONT, CONT, CONT]
    assert (service.tables.asleep(), service.asleep) == ([], 0)


async def test_a_task_that_cannot_sleep_keeps_no_other_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(monkeypatch, idle_s=60, others=1)

    async def signal_to(task: TaskName, number: int) -> bool:
        service.units.signals.append((task, number))
        return task == A

    monkeypatch.setattr(service.units, "signal", signal_to)
    await service.after(0)
    assert await service.after(60) == [STOP]


async def test_a_task_is_put_to_sleep_by_hand_and_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(monkeypatch, idle_s=0)
    await service.sleep.sleep(A)
    assert service.units.signals == [STOP]
    assert service.tables.counts == {LEASE.tap: 0}
    await service.sleep.wake(A, "a request")
    assert (service.units.signals, service.asleep) == ([STOP, CONT], 0)
    await service.sleep.wake(A, "a request")
    assert service.units.signals == [STOP, CONT, CONT], "also one that another program has stopped"
    service.units.runs = False
    with pytest.raises(InvalidRequestError, match="task a does not run"):
        await service.sleep.sleep(A)


async def test_the_end_of_the_service_wakes_a_task_and_waits_for_no_release(service: Service) -> None:
    await service.after(0)
    assert await service.after(60) == [STOP]
    service.units.runs = False
    async with service.sleep._core.locks[A]:
        waking = asyncio.ensure_future(service.sleep.wake_all())
        await yields()
        assert waking.done()
    service.units.runs = True
    await service.sleep.wake_all()
    assert service.units.signals == [STOP, CONT]


async def test_what_nothing_could_wake_is_refused(service: Service) -> None:
    with pytest.raises(NotFoundError, match="task b has no NIC on a network of this host"):
        await service.sleep.sleep(TaskName("b"))
    unaddressed = replace(RESERVATION, leases=(replace(LEASE, ipv4=None, gateway4=None),))
    service.sleepers.check(unaddressed)
    with pytest.raises(InvalidRequestError, match="task a is on a joined bridge without a leased address"):
        service.sleepers.check(unaddressed, [JOINED])
    service.sleepers.check(RESERVATION, [JOINED])
    service.sleepers.announces = False
    with pytest.raises(HostError, match="task a cannot be woken by packets: expected a kernel with the module"):
        service.sleepers.check(RESERVATION)


async def test_a_task_that_is_to_end_gets_a_signal_once_it_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(monkeypatch, idle_s=60, idle_stops=True)
    await service.after(0)
    assert await service.after(60) == [], "its socket unit is not active: nothing would start it again"
    with pytest.raises(InvalidRequestError, match="task a would not be started again: expected its socket unit"):
        await service.sleep.sleep(A)
    service.units.socket = True
    service.held = True
    assert await service.after(0) == [], "a packet is held"
    assert (service.ends, service.delivered) == (False, 1)
    service.held = False
    assert await service.after(0) == [HUP]
    assert service.tables.asleep() == [], "no packet wakes it"
    assert await service.after(6) == [HUP], "it may take a while"
    assert service.ends
    await service.sleep.sleep(A)
    assert service.units.signals == [HUP] * 2, "by hand"


@pytest.mark.parametrize("replies", [True, False])
async def test_packets_are_not_held_for_a_task_that_pid_1_does_not_end(
    monkeypatch: pytest.MonkeyPatch, replies: bool
) -> None:
    service = Service(monkeypatch, idle_s=60, idle_stops=True)
    service.units.socket, service.units.heeds, service.units.replies = True, False, replies
    with pytest.raises(HostError, match="task a cannot be put to sleep: PID 1 did not stop its tender"):
        await service.sleep.sleep(A)
    assert not service.ends


async def test_a_frame_between_the_check_and_the_end_keeps_a_task_running(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(monkeypatch, idle_s=60, idle_stops=True)
    service.units.socket = True
    await service.after(0)

    def hold(*_: object) -> bool:
        service.tables.counts[LEASE.tap] += 1
        return False

    monkeypatch.setattr(Neighbours, "hold", hold)
    assert await service.after(60) == []
    assert (service.ends, service.delivered) == (False, 1)
