"""Activation: a task without a process is started for its first packet (docs/decisions/activation.md).

Its socket unit has a FIFO, as a `.socket` unit has a socket: PID 1 starts the task's service once something is in it.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from solo5_systemd.base.concurrency import KeyedLocks, SerialThread
from solo5_systemd.base.declared_units import service_of
from solo5_systemd.base.errors import Solo5Error
from solo5_systemd.base.names import TaskName
from solo5_systemd.base.removals import RemovedEntries
from solo5_systemd.dbus.process import log_about
from solo5_systemd.network.guest_limits import NO_LIMITS
from solo5_systemd.network.link_watches import CarrierWatch
from solo5_systemd.network.model import IpAddress, LeaseRecord, LeaseState
from solo5_systemd.network.neighbours import LookupWatch
from solo5_systemd.network.raw_netlink import link_index
from solo5_systemd.networkd.namespaces import Namespaces

REPEAT_S = 1.0
"""Seconds between two starts of a task for its packets, as between two look-ups of an address by the kernel."""

ATTEMPTS = 10
"""How often a FIFO is opened, in that time."""

_NOTICE = 5  # priority of syslog(3)

_log = logging.getLogger(__name__)


class Activation:
    """Starts tasks that wait, and has them get what the kernel holds for them.

    Args:
        state: of all networks; tasks of the host's own wait.
        writer: the thread of `state`.
        tasks: the group in which packets are delivered.
        locks: of tasks; held during each change of one.
        release: called with tasks that may wait no longer.
    """

    def __init__(
        self,
        state: Namespaces,
        writer: SerialThread,
        tasks: asyncio.TaskGroup,
        locks: KeyedLocks[TaskName],
        release: Callable[[Sequence[TaskName]], None],
    ) -> None:
        self._host = state.host
        self._waiting = state.host.waiting
        self._writer = writer
        self._tasks = tasks
        self._locks = locks
        self._release = release
        self._started: dict[TaskName, float] = {}
        self._opening: dict[str, TaskName] = {}
        self._carriers: CarrierWatch | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Start tasks for their packets, for the block."""
        loop, lookups = asyncio.get_running_loop(), LookupWatch()
        loop.add_reader(lookups.fileno(), self._on_lookups, lookups)
        fifos = self._watch_fifos()
        try:
            for record in self._host.leases.waiting():
                self._tasks.create_task(self.hold(record.reservation.task))
            self.on_fifos(self._waiting.names())
            yield
        finally:
            if fifos is not None:
                loop.remove_reader(fifos.fileno())
                fifos.close()
            loop.remove_reader(lookups.fileno())
            lookups.close()
            self._close_carriers()

    def _watch_fifos(self) -> RemovedEntries | None:
        try:
            fifos = RemovedEntries(self._waiting.fifos, added=True)
        except OSError as error:
            _log.warning("inotify: %s: %s; tasks do not wait at once", self._waiting.fifos, error.strerror)
            return None

        def on_change() -> None:
            names = fifos.read()
            waiting = [record.reservation.task for record in self._host.leases.waiting()]
            self.on_fifos(map(TaskName, names) if names is not None else (*self._waiting.names(), *waiting))

        asyncio.get_running_loop().add_reader(fifos.fileno(), on_change)
        return fifos

    def on_fifos(self, tasks: Iterable[TaskName]) -> None:
        """Have tasks wait whose socket unit is active by now, and release those of which it is no longer."""
        for task in tasks:
            record = self._host.leases.get(task)
            if record is None and self._waiting.has_fifo(task):
                self._tasks.create_task(self._wait_again(task))
            elif self._waiting.is_waiting(task) and not self._waiting.has_fifo(task):
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
            await asyncio.sleep(REPEAT_S / ATTEMPTS)

    async def hold(self, task: TaskName) -> None:
        """Hold packets for a task that waits, and start it if there is one already."""
        record = self._host.leases.get(task)
        if record is None or not record.waits:
            return
        try:
            if await self._writer.run(self._waiting.hold_packets, record):
                self.start(task, "a packet")
        except Solo5Error as error:
            _log.error("packets for task %s are not held: %s", task, error)

    def _on_lookups(self, lookups: LookupWatch) -> None:
        found = lookups.looked_up()
        if found is None:  # some are lost: the kernel repeats none, but their senders do
            for each in self._host.leases.waiting():
                self._tasks.create_task(self.hold(each.reservation.task))
            return
        for link, address in found:
            task = self._waiting.task_at(address)
            record = self._host.leases.get(task) if task is not None else None
            if task is None or record is None or not self._is_of(record, link, address):
                continue
            if record.waits:
                self.start(task, f"a packet for {address}")
            elif record.state is LeaseState.ATTACHED and task not in self._opening.values():
                self._tasks.create_task(self._deliver(task))

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
        """Have PID 1 start a task that waits, and return whether it does.

        A start that has failed is repeated for a later packet.
        """
        now = time.monotonic()
        if now - self._started.get(task, -REPEAT_S) < REPEAT_S:
            return True
        if not self._waiting.start(task):
            return False
        self._started[task] = now
        log_about(service_of(task), f"task {task} is started for its first packet: {reason}", priority=_NOTICE)
        return True

    # -- after the start -------------------------------------------------------------------------------------------

    def attached(self, task: TaskName) -> None:
        """Deliver what the kernel holds for a task that has waited, once its tender has its taps open."""
        if task not in self._started:
            return
        record = self._host.leases.get(task)
        taps = [lease.tap for lease in record.reservation.leases] if record else []
        self._opening |= dict.fromkeys(taps, task)
        if self._carriers is None:
            self._carriers = CarrierWatch()
            asyncio.get_running_loop().add_reader(self._carriers.fileno(), self._on_carriers, self._carriers)

    def released(self, task: TaskName) -> None:
        """Forget a start: the task waits again, or is over."""
        self._started.pop(task, None)
        self._forget([tap for tap, each in self._opening.items() if each == task])

    def _on_carriers(self, watch: CarrierWatch) -> None:
        found = watch.up()
        opened = [tap for tap in self._opening if found is None or tap in found]
        for task in {self._opening[tap] for tap in opened}:
            self._started.pop(task, None)
            self._tasks.create_task(self._deliver(task))
        self._forget(opened)

    def _forget(self, taps: Sequence[str]) -> None:
        for tap in taps:
            self._opening.pop(tap, None)
        if not self._opening:
            self._close_carriers()

    def _close_carriers(self) -> None:
        if self._carriers is not None:
            asyncio.get_running_loop().remove_reader(self._carriers.fileno())
            self._carriers.close()
            self._carriers = None

    async def _deliver(self, task: TaskName) -> None:
        try:
            await self._writer.run(self._waiting.deliver_packets, task)
        except Solo5Error as error:  # released meanwhile; otherwise the kernel asks the guest in a second
            _log.info("%s", error)
