"""Activation: a task without a process is started for its first packet (docs/decisions/neighbour-activation.md).

Its socket unit has a FIFO, as a `.socket` unit has a socket: PID 1 starts the task's service once something is in it.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from solo5_systemd.base.concurrency import KeyedLocks, SerialThread
from solo5_systemd.base.declared_units import service_of
from solo5_systemd.base.errors import Solo5Error
from solo5_systemd.base.names import TaskName
from solo5_systemd.base.removals import RemovedEntries
from solo5_systemd.dbus.process import log_about
from solo5_systemd.network.guest_limits import NO_LIMITS
from solo5_systemd.network.link_watches import CarrierWatch, passes_frames
from solo5_systemd.network.model import IpAddress, LeaseRecord, LeaseState
from solo5_systemd.network.neighbours import LookupWatch
from solo5_systemd.network.raw_netlink import link_index
from solo5_systemd.networkd.namespaces import Namespaces
from solo5_systemd.networkd.task_units import TaskUnits

STARTS_MAX = 4
"""Starts for packets in `STARTS_INTERVAL_S`, of a task that ends by itself each time. The service's StartLimitBurst= is
not reached by them, which would fail it and its socket unit until an operator comes."""

STARTS_INTERVAL_S = 30.0

CHECK_INTERVAL_S = 1.0
"""Seconds between two looks at a start: one that has failed is repeated for a later packet."""

LOOKS = 2
"""How many find neither a run nor a job of a start that has failed: PID 1 reads no FIFO during a daemon-reload."""

ATTEMPTS = 10
"""How often a FIFO is opened, or PID 1 asked to stop a socket unit, in that time."""

ANSWER_TIMEOUT_S = 2.0
"""Seconds in which a guest that has opened its taps has to answer a question for its address, before it gets what the
kernel holds. MirageOS answers once its stack is complete, a second later where it has IPv6 (RFC 4862, 5.4)."""

ASK_INTERVAL_S = 0.05

SETTLE_S = 0.02
"""Seconds from its answer until then: MirageOS answers just before it listens to its ports, and refuses meanwhile."""

_NOTICE = 5  # priority of syslog(3)

_log = logging.getLogger(__name__)


@dataclass
class _Asking:
    """A guest that is asked for its addresses.

    Attributes:
        silent: those for which it has not answered.
        answered: set once there are none.
    """

    silent: set[IpAddress]
    answered: asyncio.Event = field(default_factory=asyncio.Event)


class Activation:
    """Starts tasks that wait, and has them get what the kernel holds for them.

    Args:
        state: of all networks; tasks of the host's own wait.
        writer: the thread of `state`.
        units: of tasks.
        tasks: the group in which packets are delivered.
        locks: of tasks; held during each change of one.
        release: called with tasks that may wait no longer.
    """

    def __init__(
        self,
        state: Namespaces,
        writer: SerialThread,
        units: TaskUnits,
        tasks: asyncio.TaskGroup,
        locks: KeyedLocks[TaskName],
        release: Callable[[Sequence[TaskName]], None],
    ) -> None:
        self._host = state.host
        self._waiting = state.host.waiting
        self._writer = writer
        self._units = units
        self._tasks = tasks
        self._locks = locks
        self._release = release
        self._started: dict[TaskName, asyncio.Task[None]] = {}
        self._starts: dict[TaskName, list[float]] = {}
        self._refused: set[TaskName] = set()
        self._opening: dict[str, set[TaskName]] = {}
        self._asking: dict[TaskName, _Asking] = {}
        self._carriers: CarrierWatch | None = None
        self._holding: asyncio.Task[None] | None = None
        self._lost = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Start tasks for their packets, for the block."""
        loop, lookups = asyncio.get_running_loop(), LookupWatch()
        loop.add_reader(lookups.fileno(), self._on_lookups, lookups)
        fifos = self._watch_fifos()
        try:
            self._hold_all()
            self._look_at_all()
            self._tasks.create_task(self._deliver_all())
            yield
        finally:
            if fifos is not None:
                loop.remove_reader(fifos.fileno())
                fifos.close()
            loop.remove_reader(lookups.fileno())
            lookups.close()
            self._opening.clear()
            self._close_carriers()
            for task in [*self._started]:
                self._forget_start(task)

    def _watch_fifos(self) -> RemovedEntries | None:
        try:
            fifos = RemovedEntries(self._waiting.fifos, added=True)
        except OSError as error:
            _log.warning("inotify: %s: %s; tasks do not wait at once", self._waiting.fifos, error.strerror)
            return None

        def on_change() -> None:
            names = fifos.read()
            if names is None:  # some are lost; this costs a look at each task
                self._look_at_all()
            else:
                self.on_fifos(map(TaskName, names))

        asyncio.get_running_loop().add_reader(fifos.fileno(), on_change)
        return fifos

    def _look_at_all(self) -> None:
        stopping = (each.reservation for each in self._host.leases.records if each.reservation.idle_stops)
        self.on_fifos(dict.fromkeys((*self._waiting.names(), *(each.task for each in stopping))))

    def on_fifos(self, tasks: Iterable[TaskName]) -> None:
        """Have tasks wait whose socket unit is active by now, and release those of which it is no longer."""
        for task in tasks:
            record = self._host.leases.get(task)
            if record is None and self._waiting.has_fifo(task):
                self._tasks.create_task(self._wait_again(task))
            elif record is not None and record.reservation.idle_stops and not self._waiting.has_fifo(task):
                self._tasks.create_task(self._end_waiting(task))

    async def _end_waiting(self, task: TaskName) -> None:
        """Release a task that waits without its socket unit; that unit is stopped, if its declaration was removed."""
        for _ in range(ATTEMPTS):
            if await self._units.stop_undeclared_socket(task):
                break
            await asyncio.sleep(CHECK_INTERVAL_S / ATTEMPTS)
        if self._waiting.is_waiting(task) and not self._waiting.has_fifo(task):
            text = f"its socket unit has ended (systemctl status {task}.socket)"
            log_about(service_of(task), f"task {task} is dormant no longer: {text}", priority=_NOTICE)
            self._release([task])

    async def _wait_again(self, task: TaskName) -> None:
        """Have a task wait that has no lease, as after a boot; one of which nothing is known is started, once."""
        async with self._locks[task]:
            if self._host.leases.get(task) is not None:  # it is being started
                return
            try:
                if await self._writer.run(self._host.wait_again, task):
                    await self.hold(task)  # a packet may have come while its bridge was made
                    return
                reason = "it has not run before"
            except Solo5Error as error:
                reason = f"{error}"
        for _ in range(ATTEMPTS):  # PID 1 opens a FIFO after it has made it
            if self.start(task, reason):
                return
            await asyncio.sleep(CHECK_INTERVAL_S / ATTEMPTS)

    def _hold_all(self) -> None:
        """Start the tasks for which the kernel holds packets already: at the start, and after lost look-ups.

        A sweep of many addresses loses them all the time: then one pass follows another, and never two at once.
        """
        self._lost = True
        if self._holding is None or self._holding.done():
            self._holding = self._tasks.create_task(self._hold_until_none_is_lost())

    async def _hold_until_none_is_lost(self) -> None:
        while self._lost:
            self._lost = False
            for record in self._host.leases.waiting():
                await self.hold(record.reservation.task)

    async def hold(self, task: TaskName) -> None:
        """Have the kernel hold packets for a task that waits, and start it for one that it holds already."""
        record = self._host.leases.get(task)
        if record is None or not record.waits:
            return
        try:
            if await self._writer.run(self._waiting.hold_packets, record):
                self.start(task, "a packet")
                await self._writer.run(self._waiting.keep_packets, task)
        except Solo5Error as error:
            _log.error("packets for task %s are not held: %s", task, error)

    def _on_lookups(self, lookups: LookupWatch) -> None:
        found = lookups.looked_up()
        if found is None:  # some are lost: the kernel repeats none, but their senders do
            self._hold_all()
            return
        for link, address in found:
            task = self._waiting.task_at(address)
            record = self._host.leases.get(task) if task is not None else None
            if task is None or record is None or not self._is_of(record, link, address):
                continue
            if record.waits:
                self.start(task, f"a packet for {address}")
                self._tasks.create_task(self._have(self._waiting.keep_packets, task))
            elif record.state is LeaseState.ATTACHED and task not in (*self._started, *self._waiting.ending):
                self._deliver(task)

    def _is_of(self, record: LeaseRecord, link: int, address: IpAddress) -> bool:
        """Return whether a link is that by which the host reaches a leased address."""
        names = [lease.network for lease in record.reservation.leases if address in lease.addresses]
        networks = (self._host.bridges.networks.get(name) for name in names)
        return any(network is not None and link_index(network.bridge) == link for network in networks)

    def asked_for(self, tap: str, address: IpAddress) -> None:
        """Start the task of an address for which a neighbour asks that may reach it."""
        task, asker = self._waiting.task_at(address), self._host.leases.allocations.taps.get(tap)
        record, of_asker = (self._host.leases.get(each) if each is not None else None for each in (task, asker))
        if task is None or record is None or of_asker is None or not record.waits:
            return
        name = next(lease.network for lease in record.reservation.leases if address in lease.addresses)
        policy = self._host.bridges.networks[name].policy
        for lease in of_asker.reservation.leases:
            if lease.tap == tap and lease.network == name and not policy.isolated:
                egress = of_asker.reservation.limits.get(lease.nic, NO_LIMITS).under(policy).egress
                if egress is None or any(address in destination.network for destination in egress):
                    self.start(task, f"a question for {address}")

    def start(self, task: TaskName, reason: str) -> bool:
        """Have PID 1 start a task that waits, unless it does, and return whether it does."""
        if task in self._started:
            return True
        if not self._may_start(task):
            if task not in self._refused:  # one line, and not each second
                text = f"it has ended by itself, or not started, {STARTS_MAX} times in {STARTS_INTERVAL_S:.0f} s"
                log_about(service_of(task), f"task {task} is not started for packets until later: {text}")
            self._refused.add(task)
        elif self._waiting.start(task):
            self._refused.discard(task)
            self._starts[task].append(asyncio.get_running_loop().time())
            log_about(service_of(task), f"task {task} is started for its first packet: {reason}", priority=_NOTICE)
        elif not self._waiting.is_expected(task):
            return False
        self._started[task] = self._tasks.create_task(self._watch(task))
        return True

    def _may_start(self, task: TaskName) -> bool:
        """Return whether a task has not been started too often, but to be ended for idleness or by an operator."""
        since = asyncio.get_running_loop().time() - STARTS_INTERVAL_S
        self._starts[task] = [begun for begun in self._starts.get(task, ()) if begun > since]
        return len(self._starts[task]) < STARTS_MAX

    async def _watch(self, task: TaskName) -> None:
        """Look until a task is started; after a start that has failed, its packets are refused, and the next starts it.

        Packets for a task that waits are kept for as long as PID 1 has a job for it.
        """
        looks = 0
        while looks < LOOKS:
            await asyncio.sleep(CHECK_INTERVAL_S)
            if not self._waiting.is_waiting(task):  # it is attached, or released
                return
            looks = looks + 1 if await self._units.over([task]) else 0
        self._started.pop(task, None)
        await self._have(self._waiting.refuse_packets, task)
        if self._waiting.is_expected(task) and not self._waiting.is_read(task):
            text = "PID 1 has closed its FIFO, as for a changed declaration at a daemon-reload"
            log_about(service_of(task), f"task {task} cannot be started for packets: {text}")
            self._waiting.remove_fifo(task)

    def _forget_start(self, task: TaskName) -> None:
        if watching := self._started.pop(task, None):
            watching.cancel()

    # -- after the start -------------------------------------------------------------------------------------------

    def attached(self, task: TaskName) -> None:
        """Deliver what the kernel holds for a task that has waited."""
        if task in self._started:
            self._deliver(task)

    async def _deliver_all(self) -> None:
        """Deliver what an earlier process of the service has left in the kernel for attached tasks."""
        for record in [*self._host.leases.records]:
            if record.state is LeaseState.ATTACHED and record.reservation.idle_stops:
                with suppress(Solo5Error):
                    if await self._writer.run(self._waiting.hold_packets, record):
                        self._deliver(record.reservation.task, boots=True)

    def _deliver(self, task: TaskName, boots: bool = False) -> None:
        """Deliver what the kernel holds for an attached task, once its tender has its taps open, and its guest answers.

        Before, frames would be lost; also before the kernel has seen that a bridge has a carrier again.
        """
        if task in self._asking:  # not by the kernel's own question, either
            self._tasks.create_task(self._have(self._waiting.keep_packets, task))
            return
        record = self._host.leases.get(task)
        leases = record.reservation.leases if record else ()
        bridges = self._host.bridges.networks
        links = {link for each in leases for link in (each.tap, each.bridge, bridges[each.network].bridge)}
        if not boots and all(map(passes_frames, links)):  # it has run for a while
            self._tasks.create_task(self._have(self._waiting.deliver_packets, task))
            return
        for link in links:
            self._opening.setdefault(link, set()).add(task)
        if self._carriers is None:
            self._carriers = CarrierWatch()
            asyncio.get_running_loop().add_reader(self._carriers.fileno(), self._on_carriers, self._carriers)
        self._on_links(links)

    def released(self, task: TaskName) -> None:
        """Forget a start: the task waits again, or is over."""
        if task in self._waiting.ending or not self._waiting.has_fifo(task):
            self._starts.pop(task, None)
        self._forget_start(task)
        self._forget(task)

    def _on_carriers(self, watch: CarrierWatch) -> None:
        found = watch.up()
        self._on_links(self._opening.keys() if found is None else found & self._opening.keys())

    def _on_links(self, links: Iterable[str]) -> None:
        """Deliver to the tasks for which these links were the last ones that did not pass frames."""
        tasks = {task for link in [*links] if passes_frames(link) for task in self._opening.pop(link)}
        for task in tasks.difference(*self._opening.values()):
            self._forget_start(task)
            self._ask(task)
        self._close_carriers()

    def _ask(self, task: TaskName) -> None:
        """Ask a guest until it answers, and deliver then."""
        record = self._host.leases.get(task)
        addresses = {each.address for each in record.reservation.leases if each.address} if record else set()
        self._asking[task] = _Asking({*addresses})
        self._tasks.create_task(self._deliver_to_answering(task, self._asking[task]))

    async def _deliver_to_answering(self, task: TaskName, asking: "_Asking") -> None:
        await self._have(self._waiting.keep_packets, task)
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                while asking.silent and self._asking.get(task) is asking:
                    if not await self._have(self._waiting.ask_guest, task):
                        break
                    with suppress(TimeoutError):
                        await asyncio.wait_for(asking.answered.wait(), ASK_INTERVAL_S)
                await asyncio.sleep(SETTLE_S)
        if self._asking.get(task) is asking:  # it has not ended meanwhile
            del self._asking[task]
            await self._have(self._waiting.deliver_packets, task)

    def answered(self, address: IpAddress) -> None:
        """Note that a guest has answered."""
        task = self._waiting.task_at(address)
        if task is not None and (asking := self._asking.get(task)) is not None:
            asking.silent.discard(address)
            if not asking.silent:
                asking.answered.set()

    def _forget(self, task: TaskName) -> None:
        self._asking.pop(task, None)
        self._opening = {link: left for link, tasks in self._opening.items() if (left := tasks - {task})}
        self._close_carriers()

    def _close_carriers(self) -> None:
        """Close the watch, unless a link is awaited."""
        if self._carriers is not None and not self._opening:
            asyncio.get_running_loop().remove_reader(self._carriers.fileno())
            self._carriers.close()
            self._carriers = None

    async def _have(self, packets: Callable[[TaskName], None], task: TaskName) -> bool:
        """Have the kernel do something with the packets that it holds for a task; return whether it does."""
        try:
            await self._writer.run(packets, task)
        except Solo5Error as error:  # released meanwhile; otherwise the kernel asks the guest in a second
            _log.info("%s", error)
            return False
        return True
