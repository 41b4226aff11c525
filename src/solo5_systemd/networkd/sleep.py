"""Sleep: a task without packets is stopped by SIGSTOP, and continued by SIGCONT for the first one.

That packet waits in the queue of the tap, and a rule announces it (docs/decisions/sleep.md).
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
from solo5_systemd.base.errors import HostError, InvalidRequestError, Solo5Error
from solo5_systemd.base.names import TaskName
from solo5_systemd.dbus.process import log_about
from solo5_systemd.network.announcements import AnnouncedPackets
from solo5_systemd.network.model import LeaseRecord
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
        self._sleepers = state.host.sleepers
        self._writer = writer
        self._units = units
        self._locks = locks
        self._tasks = tasks
        self._watches = watches
        self._seen: dict[TaskName, _Seen] = {}
        self._waking: set[TaskName] = set()
        self._next_check: float | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Wake tasks for their packets, for the block."""
        try:
            packets = AnnouncedPackets()
        except OSError as error:
            _log.info("no task sleeps, since no packets are announced: %s", error.strerror)
            self._sleepers.announces = False
            yield
            return
        loop = asyncio.get_running_loop()
        loop.add_reader(packets.fileno(), self._on_packets, packets)
        try:
            yield
        finally:
            loop.remove_reader(packets.fileno())
            packets.close()

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
        records = self._sleepers.records()
        tasks = {record.reservation.task for record in records}
        self._seen = {task: seen for task, seen in self._seen.items() if task in tasks}
        if not records:
            self._next_check = None
            return
        self._next_check = time.monotonic() + min(map(_interval, records))
        counts = await self._writer.run(self._sleepers.frames)
        for record in records:
            task = record.reservation.task
            try:
                await self._check(record, counts.get(task, 0))
            except (Solo5Error, OSError) as error:  # repeated at the next check
                _log.error("task %s cannot be put to sleep or woken: %s", task, error)

    async def _check(self, record: LeaseRecord, frames: int) -> None:
        task = record.reservation.task
        if record.asleep:
            if frames or not self._sleepers.announces:  # while this service did not run, or of a lost message
                await self.wake(task, "a packet" if frames else "packets are not announced")
        elif self._sleepers.announces and await self._is_idle(record, frames):
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
            InvalidRequestError: it does not run; otherwise as `Sleepers.held` and `Sleepers.check`.
            HostError: nftables or PID 1 refused.
        """
        self._sleepers.check(self._sleepers.held(task))
        if not self._units.has_run(task):
            raise InvalidRequestError(f"task {task} does not run: expected one that does.")
        await self._sleep(task)

    async def _sleep(self, task: TaskName, frames: int | None = None) -> None:
        """Put a task to sleep: packets are announced first, so that one of them wakes it whenever it comes."""
        async with self._locks[task]:
            if not self._units.has_run(task) or not await self._writer.run(self._sleepers.begin, task, frames):
                return
            if not await self._units.signal(task, signal.SIGSTOP):
                await self._writer.run(self._sleepers.end, task)
                raise HostError(f"task {task} cannot be put to sleep: PID 1 did not stop its tender.")
        self._seen.pop(task, None)
        log_about(service_of(task), f"task {task} sleeps until its next packet", priority=_NOTICE)

    # -- waking --------------------------------------------------------------------------------------------------

    def _on_packets(self, announced: AnnouncedPackets) -> None:
        packets = announced.packets()
        if packets is None:  # some are lost, which are counted
            self._next_check = time.monotonic()
            self._watches.wake.set()
            return
        for tap, what in packets.items():
            task = self._sleepers.task(tap)
            if task is not None and self._sleepers.is_asleep(task) and task not in self._waking:
                self._waking.add(task)
                self._tasks.create_task(self._wake_for(task, what))

    async def _wake_for(self, task: TaskName, what: str) -> None:
        try:
            await self.wake(task, what)
        except Solo5Error as error:  # nftables; the counter remains, so that the next check repeats it
            _log.error("task %s cannot be woken: %s", task, error)
        finally:
            self._waking.discard(task)

    async def wake(self, task: TaskName, reason: str) -> None:
        """Wake a task; also one that another program has stopped, or whose record was lost.

        Raises:
            HostError: nftables refused it.
        """
        async with self._locks[task]:
            begun = time.monotonic()
            await self._units.signal(task, signal.SIGCONT)
            record = self._leases.get(task)
            if record is None or not record.asleep:
                return
            took, slept = (time.monotonic() - begun) * 1000, time.time() - record.asleep / 1e6
            await self._writer.run(self._sleepers.end, task)
        self._seen.pop(task, None)
        self.expect(task)
        text = f"task {task} is awake after {max(0, slept):.0f} s asleep ({took:.1f} ms): {reason}"
        log_about(service_of(task), text, priority=_NOTICE)


def _interval(record: LeaseRecord) -> float:
    return min(CHECK_INTERVAL_MAX_S, record.idle_s / CHECKS) if record.idle_s else CHECK_INTERVAL_MAX_S
