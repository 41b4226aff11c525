"""Sleep: a task without packets is stopped by SIGSTOP, and continued by SIGCONT for the first one.

The kernel holds that packet, since the guest has no neighbour entry, and announces that it looks for the address
(docs/decisions/neighbour-activation.md).
"""

import asyncio
import logging
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from solo5_systemd.base.concurrency import KeyedLocks, SerialThread
from solo5_systemd.base.declared_units import service_of
from solo5_systemd.base.errors import HostError, InvalidRequestError, NotFoundError, Solo5Error
from solo5_systemd.base.names import TaskName
from solo5_systemd.dbus.process import log_about
from solo5_systemd.network.model import IpAddress, LeaseRecord
from solo5_systemd.network.neighbours import LookupWatch
from solo5_systemd.network.raw_netlink import link_index
from solo5_systemd.networkd.namespaces import Namespaces
from solo5_systemd.networkd.task_units import TaskUnits
from solo5_systemd.networkd.watches import Watches

CHECKS = 10
"""The checks of a task within its idle time: it sleeps a tenth of that later at most."""

CHECK_INTERVAL_MAX_S = 60.0
SHARE_MAX = 0.01
"""The processor time of an idle task, in processors. Without packets, a guest has timers, and nothing to do."""

_NOTICE = 5  # priority of syslog(3)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """A task at a check.

    Attributes:
        frames: that were counted.
        since: the time of the first check with this count, in seconds.
        cpu: processor time at that time, in seconds; None: unknown.
        run: what tells one attach from another.
    """

    frames: int
    since: float
    cpu: float | None
    run: int


class Sleep:
    """Puts tasks to sleep, and wakes them.

    Args:
        state: of all networks; tasks of the host's own sleep.
        writer: the thread of `state`.
        units: of tasks.
        locks: of tasks; held during each change of one.
        tasks: the group in which sleepers are woken.
        watches: of the maintenance loop, which calls `check`.
    """

    def __init__(
        self,
        state: Namespaces,
        writer: SerialThread,
        units: TaskUnits,
        locks: KeyedLocks[TaskName],
        tasks: asyncio.TaskGroup,
        watches: Watches,
    ) -> None:
        self._leases = state.host.leases
        self._bridges = state.host.bridges
        self._sleepers = state.host.sleepers
        self._writer = writer
        self._units = units
        self._locks = locks
        self._tasks = tasks
        self._watches = watches
        self._seen: dict[TaskName, _Seen] = {}
        self._next_check: float | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Wake tasks for their packets, for the block."""
        loop, watch = asyncio.get_running_loop(), LookupWatch()
        loop.add_reader(watch.fileno(), self._on_lookups, watch)
        try:
            yield
        finally:
            loop.remove_reader(watch.fileno())
            watch.close()

    async def recover(self) -> None:
        """Have packets for sleeping tasks held again, and wake those for which one is held; at start-up."""
        for record in self._sleepers.records():
            if record.asleep and await self._writer.run(self._sleepers.hold_packets, record.reservation.task):
                await self.wake(record.reservation.task, "a packet")
        await self.check()

    # -- falling asleep ------------------------------------------------------------------------------------------

    def expect(self, task: TaskName) -> None:
        """Check a task that was attached in time."""
        record = self._leases.get(task)
        if record is not None and record.idle_s:
            due = time.monotonic() + _interval(record)
            if self._next_check is None or due < self._next_check:
                self._next_check = due
                self._watches.wake.set()

    def seconds_until_check(self) -> float | None:
        """Return the seconds until the next check; None: no task may sleep."""
        return None if self._next_check is None else max(0.0, self._next_check - time.monotonic())

    async def check(self) -> None:
        """Put the tasks to sleep that have been idle for their time."""
        records = [record for record in self._sleepers.records() if record.idle_s]
        tasks = {record.reservation.task for record in records}
        self._seen = {task: seen for task, seen in self._seen.items() if task in tasks}
        if not records:
            self._next_check = None
            return
        self._next_check = time.monotonic() + min(map(_interval, records))
        counts = await self._writer.run(self._sleepers.frames)
        for record in records:
            task = record.reservation.task
            frames = counts.get(task, 0)
            if record.asleep:
                if self._is_new(record, frames):  # such as by an operator's SIGCONT
                    await self.wake(task, "its own packet")
            elif await self._is_idle(record, frames):
                await self._sleep(task, frames)

    async def _is_idle(self, record: LeaseRecord, frames: int) -> bool:
        task, now = record.reservation.task, time.monotonic()
        if self._is_new(record, frames):
            self._note(record, frames, await self._units.processor_time(task))
            return False
        seen = self._seen[task]
        if now - seen.since < record.idle_s:
            return False
        cpu = await self._units.processor_time(task)
        if cpu is not None and seen.cpu is not None and cpu - seen.cpu > SHARE_MAX * (now - seen.since):
            self._note(record, frames, cpu)
            return False
        return True

    def _is_new(self, record: LeaseRecord, frames: int) -> bool:
        seen = self._seen.get(record.reservation.task)
        return seen is None or (seen.frames, seen.run) != (frames, record.expires)

    def _note(self, record: LeaseRecord, frames: int, cpu: float | None) -> None:
        seen = _Seen(frames=frames, since=time.monotonic(), cpu=cpu, run=record.expires)
        self._seen[record.reservation.task] = seen

    async def sleep(self, task: TaskName) -> None:
        """Put a task to sleep now, unless it sleeps.

        Raises:
            NotFoundError: it has no NIC on a network of the host.
            InvalidRequestError: its guest is on a joined bridge, or does not run.
            HostError: the kernel or PID 1 refused.
        """
        record = self._leases.get(task)
        if record is None:
            raise NotFoundError(
                f"task {task} has no network: expected a guest with a NIC, for whose packets it is woken."
            )
        if any(map(self._bridges.joins, record.reservation.leases)):
            raise InvalidRequestError(
                f"task {task} is on a joined bridge: expected a network of this host alone, since machines of a LAN "
                "look for the guest themselves."
            )
        if not self._units.has_run(task):
            raise InvalidRequestError(f"task {task} does not run: expected one that does.")
        await self._sleep(task, await self._writer.run(self._sleepers.frames_of, task))

    async def _sleep(self, task: TaskName, frames: int) -> None:
        """Put a task to sleep, unless there was a frame after `frames`.

        A packet for it that comes before its neighbour entry is deleted has been counted after that; any later one is
        announced.
        """
        async with self._locks[task]:
            if not self._units.has_run(task) or not await self._writer.run(self._sleepers.mark, task):
                return
            try:
                if not await self._units.signal(task, signal.SIGSTOP):
                    raise HostError(f"task {task} cannot be put to sleep: PID 1 did not stop its tender.")
                held = await self._writer.run(self._sleepers.hold_packets, task)
                missed = held or await self._writer.run(self._sleepers.frames_of, task) != frames
            except Solo5Error:
                await self._wake(task)
                raise
            if missed:
                await self._wake(task)
                return
        log_about(service_of(task), f"task {task} sleeps until the next packet for it", priority=_NOTICE)

    # -- waking --------------------------------------------------------------------------------------------------

    def _on_lookups(self, watch: LookupWatch) -> None:
        found = watch.looked_up()
        if found is None:  # some are lost: the kernel repeats none
            for each in self._sleepers.records():
                if each.asleep:
                    self._tasks.create_task(self._wake_for_held(each.reservation.task))
            return
        for link, address in found:
            task = self._leases.allocations.addresses.get(address)
            record = self._leases.get(task) if task is not None else None
            if task is not None and record is not None and self._is_of(record, link, address):
                if record.asleep:
                    self._tasks.create_task(self.wake(task, f"a packet for {address}"))
                else:
                    self._tasks.create_task(self._deliver(task))

    def _is_of(self, record: LeaseRecord, link: int, address: IpAddress) -> bool:
        """Return whether a link is that by which the host reaches a leased address."""
        names = [lease.network for lease in record.reservation.leases if address in lease.addresses]
        networks = (self._bridges.networks.get(name) for name in names)
        return any(network is not None and link_index(network.bridge) == link for network in networks)

    async def _deliver(self, task: TaskName) -> None:
        try:
            await self._writer.run(self._sleepers.deliver_packets, task)
        except Solo5Error as error:  # released meanwhile; otherwise the kernel asks the guest in a second
            _log.info("%s", error)

    async def _wake_for_held(self, task: TaskName) -> None:
        if await self._writer.run(self._sleepers.hold_packets, task):
            await self.wake(task, "a packet")

    async def wake(self, task: TaskName, reason: str) -> None:
        """Wake a task, unless it is awake."""
        async with self._locks[task]:
            record = self._leases.get(task)
            if record is None or not record.asleep:
                return
            begun = time.monotonic()
            await self._wake(task)
            took, slept = (time.monotonic() - begun) * 1000, time.time() - record.asleep / 1e6
        text = f"task {task} is woken by {reason} after {max(0, slept):.0f} s, in {took:.1f} ms"
        log_about(service_of(task), text, priority=_NOTICE)

    async def _wake(self, task: TaskName) -> None:
        await asyncio.gather(self._units.signal(task, signal.SIGCONT), self._deliver(task))
        self._seen.pop(task, None)
        await self._writer.run(self._sleepers.unmark, task)
        self.expect(task)


def _interval(record: LeaseRecord) -> float:
    return min(CHECK_INTERVAL_MAX_S, record.idle_s / CHECKS)
