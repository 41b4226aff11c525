"""Sleep: a task without packets is stopped by SIGSTOP, and continued by SIGCONT for the first one.

That packet waits in the queue of the tap, and a rule announces it (docs/decisions/sleep.md).
"""

import asyncio
import logging
import math
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from solo5_systemd.base.concurrency import begin
from solo5_systemd.base.declared_units import service_of
from solo5_systemd.base.errors import HostError, InvalidRequestError, Solo5Error
from solo5_systemd.base.journal_entry import IDLE_END
from solo5_systemd.base.names import TaskName
from solo5_systemd.dbus.process import NOTICE, log_about
from solo5_systemd.network.kernel_events import Packets, is_question
from solo5_systemd.network.model import LeaseRecord
from solo5_systemd.networkd.namespaces import Core
from solo5_systemd.networkd.state import NetworkState

CHECKS = 10
"""The checks of a task within its idle time: it sleeps a tenth of that later at most."""

CHECK_INTERVAL_MAX_S = 60.0
QUESTION_TIMEOUT_S = 0.2
"""How long after a question for its address (ARP) a packet for a guest is named as the one that woke it."""

SHARE_MAX = 0.01
"""The processor time of an idle task, in processors. Without packets, a guest has timers, and nothing to do."""

IDLE = "no packet for its idle time"

CGROUPS = "/sys/fs/cgroup"
RECLAIM_MAX = 4 << 20
"""Bytes of one request. A task that is woken meanwhile waits for no more."""

WRITING_INTERVAL_S = 0.2
"""Between two requests while pages are written to the swap: the kernel frees them at the first one afterwards."""

FRUITLESS_MAX = 10
"""Requests one after the other that free nothing: the swap is slower than that, or the pages stay."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """A task at a check.

    Attributes:
        since: the time of the first check with this count, in seconds.
        cpu: processor time at that time, in seconds; None: unknown.
        busy: it has used too much processor time until then.
    """

    frames: int
    since: float
    cpu: float | None
    busy: bool


class Sleep:
    """Puts tasks to sleep, and wakes them.

    Attributes:
        next_check: the time of `check`, by `time.monotonic`; infinite: no task may sleep.
    """

    def __init__(self, core: Core, emit: Callable[[str, Sequence[object]], None]) -> None:
        self._core = core
        self._emit = emit
        self._seen: dict[TaskName, _Seen] = {}
        self._busy = set[TaskName]()  # logged in this run
        self._waking: dict[TaskName, asyncio.Future[str]] = {}  # with the first packet that is no question
        self._reclaiming = asyncio.Lock()
        self.next_check = math.inf

    # -- falling asleep ------------------------------------------------------------------------------------------

    def expect(self, task: TaskName) -> None:
        """Check a task that was attached in time: its counts begin anew."""
        self._seen.pop(task, None)
        self._busy.discard(task)
        record = self._core.state.record(task)
        if record is not None and record.reservation.idle_s:
            self._check_at(time.monotonic() + _interval(record))

    def _check_at(self, due: float) -> None:
        if due < self.next_check:
            self.next_check = due
            self._core.watches.wake.set()

    async def check(self) -> None:
        """Put the tasks to sleep that have been idle for their time."""
        found = self._core.state.sleepers()
        tasks = {record.reservation.task for _, record in found}
        self._seen = {task: seen for task, seen in self._seen.items() if task in tasks}
        self._busy &= tasks
        self.next_check = time.monotonic() + min((_interval(record) for _, record in found), default=math.inf)
        if not found:
            return
        counts = await self._core.writer.run(self._core.state.frames)
        for sleepers, record in found:
            task = record.reservation.task
            try:
                await self._check(record, counts.get(task, 0), announces=sleepers.announces)
            except (Solo5Error, OSError) as error:  # repeated at the next check
                _log.error("task %s cannot be put to sleep or woken: %s", task, error)

    async def _check(self, record: LeaseRecord, frames: int, *, announces: bool) -> None:
        task = record.reservation.task
        if record.sleeps:
            if frames or not announces:  # while this service did not run, or of a lost message
                for _ in range(2):  # an announcement that can be read by now is handled, and names the packet
                    await asyncio.sleep(0)
                if task not in self._waking:
                    await self.wake(task, "a packet" if frames else "packets are not announced")
        elif announces and await self._is_idle(record, frames):
            await self._sleep(task, IDLE, frames)

    async def _is_idle(self, record: LeaseRecord, frames: int) -> bool:
        task, now = record.reservation.task, time.monotonic()
        seen = self._seen.get(task)
        # During an update, packets are another guest's.
        if seen is None or seen.frames != frames or self._core.units.is_updated(task):
            self._note(task, frames, await self._core.units.processor_time(task))
            return False
        if now - seen.since < record.reservation.idle_s:
            return False
        cpu = await self._core.units.processor_time(task)
        if cpu is not None and seen.cpu is not None and cpu - seen.cpu > SHARE_MAX * (now - seen.since):
            if task not in self._busy:
                self._busy.add(task)
                share = (cpu - seen.cpu) / (now - seen.since)
                text = f"task {task} stays awake: it has no packets, and uses {share:.1%} of a processor"
                log_about(service_of(task), f"{text} (at most {SHARE_MAX:.0%} to sleep)", priority=NOTICE)
            self._note(task, frames, cpu, busy=True)
            return False
        return True

    def awake_because(self, task: TaskName) -> str:
        """Return what keeps a task awake; empty: it never sleeps, or does, or has not been looked at."""
        record, seen = self._core.state.record(task), self._seen.get(task)
        if record is None or record.asleep or seen is None:
            return ""
        if self._core.units.is_updated(task):
            return "it is being updated"
        if seen.busy:
            return f"it uses more than {SHARE_MAX:.0%} of a processor"
        return f"its last packet was seen {time.monotonic() - seen.since:.0f} s ago"

    def _note(self, task: TaskName, frames: int, cpu: float | None, *, busy: bool = False) -> None:
        self._seen[task] = _Seen(frames=frames, since=time.monotonic(), cpu=cpu, busy=busy)

    async def sleep(self, task: TaskName) -> None:
        """Put a task to sleep now, unless it sleeps.

        Raises:
            NotFoundError, InvalidRequestError, HostError: as `Sleepers.begin`; it does not run, nothing would start it
                again after its end, or PID 1 refused.
        """
        if not self._core.units.has_run(task):
            raise InvalidRequestError(f"task {task} does not run.", "Tasks that run: solo5ctl ps")
        if self._core.units.is_updated(task):
            raise InvalidRequestError(f"task {task} is being updated.", f"See: solo5ctl logs --follow {task}")
        record = self._core.state.record(task)
        if record is not None and record.reservation.idle_stops and not self._core.units.is_read(task):
            raise InvalidRequestError(
                f"task {task} would not be started again: expected its socket unit to be active.",
                f"systemctl restart {task}",
            )
        await self._sleep(task, "a request")

    async def _sleep(self, task: TaskName, reason: str, frames: int | None = None) -> None:
        """Put a task to sleep: packets are announced first, so that one of them wakes it whenever it comes.

        One that waits without a process is ended instead, if its socket unit is active: packets are held first.
        """
        async with self._core.locks[task]:
            record = self._core.state.record(task)
            ends = record is not None and record.reservation.idle_stops
            if not self._core.units.has_run(task) or (ends and not self._core.units.is_read(task)):
                return  # it has ended since the check
            again = record is not None and record.asleep != 0  # perhaps of a service that was killed before its signal
            begin = partial(self._core.state.at, task, lambda state: state.sleepers.begin(task, frames))
            if not again and not await self._core.writer.run(begin):
                return
            # SIGHUP as KillSignal= of hvt: a clean end of both tenders, which Restart=on-failure does not undo.
            sent, cause = False, None
            try:
                sent = await self._core.units.signal(task, signal.SIGHUP if ends else signal.SIGSTOP)
            except HostError as error:
                if not ends:  # without a reply, it may be stopped: the record stays, so that a packet wakes it
                    raise
                cause = error
            if not sent:
                await self._core.writer.run(self._core.state.at, task, lambda state: state.sleepers.end(task))
                raise HostError(f"task {task} cannot be put to sleep: PID 1 did not stop its tender.") from cause
            self._seen.pop(task, None)
            if ends:
                await self._core.units.forget_starts(task)
        if ends:
            text = f"task {task} ends until its next packet"
            log_about(service_of(task), text, priority=NOTICE, message_id=IDLE_END)
        elif not again:
            log_about(service_of(task), f"task {task} sleeps until its next packet", priority=NOTICE)
            self._emit("SleepChanged", [task, True, reason])
            self._core.tasks.create_task(self._reclaim(task))

    async def _reclaim(self, task: TaskName) -> None:
        # One at a time: a swap may be slow, and attaches and releases need threads of the few that the loop has.
        async with self._reclaiming:
            group = await self._core.units.control_group(task) if self._is_asleep(task) else ""
            if group:
                await asyncio.to_thread(reclaim, group, lambda: self._is_asleep(task))

    # -- waking --------------------------------------------------------------------------------------------------

    def on_packets(self, found: Packets | None, state: NetworkState) -> None:
        """Wake the tasks for which packets are announced."""
        if found is None:  # some are lost, which are counted
            self._check_at(time.monotonic())
            return
        for tap, what in found.by_tap.items():
            record = state.leases.of(tap)
            if record is None or not record.sleeps:
                continue
            task = record.reservation.task
            if task not in self._waking:
                self._waking[task] = asyncio.get_running_loop().create_future()
                begin(self._core.tasks, self._wake_for(task, what))  # or the next service does: it is counted
            if not is_question(what) and not self._waking[task].done():
                self._waking[task].set_result(what)

    def _is_asleep(self, task: TaskName) -> bool:
        record = self._core.state.record(task)
        return record is not None and record.sleeps

    async def _wake_for(self, task: TaskName, reason: str) -> None:
        try:
            await self.wake(task, reason)
        except Solo5Error as error:  # nftables, PID 1; the counter remains, so that the next check repeats it
            _log.error("task %s cannot be woken: %s", task, error)
        finally:
            self._waking.pop(task, None)

    async def wake(self, task: TaskName, reason: str) -> None:
        """Wake a task; also one that another program has stopped, or whose record was lost.

        Raises:
            HostError: nftables refused it, or PID 1 has not replied; it sleeps on, and its next packet wakes it.
        """
        async with self._core.locks[task]:
            await self._wake(task, reason)

    async def wake_for_attach(self, task: TaskName) -> None:
        """Wake a task, under its lock, whose network is attached again while it runs; raises as `wake`."""
        if self._is_asleep(task):
            await self._wake(task, "its network is attached again")

    async def _wake(self, task: TaskName, reason: str) -> None:
        """Wake a task, under its lock.

        After a question for the guest's address, the packet for which it was asked is the reason, if it comes.
        """
        begun = time.monotonic()
        await self._core.units.signal(task, signal.SIGCONT)
        record = self._core.state.record(task)
        if record is None or not record.sleeps:
            return
        took, slept = (time.monotonic() - begun) * 1000, time.time() - record.asleep / 1e6
        if (packet := self._waking.get(task)) is not None:
            await asyncio.wait([packet], timeout=QUESTION_TIMEOUT_S)
            reason = packet.result() if packet.done() else reason
        await self._core.writer.run(self._core.state.at, task, lambda state: state.sleepers.end(task))
        self.expect(task)
        text = f"task {task} is awake after {max(0, slept):.0f} s asleep ({took:.1f} ms): {reason}"
        log_about(service_of(task), text, priority=NOTICE)
        self._emit("SleepChanged", [task, False, reason])

    async def wake_all(self) -> None:
        """Wake all tasks, since no packet could do so from here on.

        One without a run is being released, which may take longer than a stop of the service.
        """
        for _, record in self._core.state.sleepers():
            task = record.reservation.task
            if record.sleeps and self._core.units.has_run(task):
                await self._wake_for(task, "the end of solo5-networkd")


def _interval(record: LeaseRecord) -> float:
    return min(CHECK_INTERVAL_MAX_S, record.reservation.idle_s / CHECKS or CHECK_INTERVAL_MAX_S)


def reclaim(control_group: str, wanted: Callable[[], bool]) -> None:
    """Have the kernel reclaim the memory of a cgroup (memory.reclaim of cgroup v2, Linux 5.19) where it may be swapped.

    `wanted`: returns whether the task sleeps still.
    """
    directory = Path(f"{CGROUPS}{control_group}")
    with suppress(OSError):  # cgroup v1; the unit is over
        if (directory / "memory.swap.max").read_text().strip() == "0":
            return
        left = int((directory / "memory.current").read_text())
        descriptor = os.open(directory / "memory.reclaim", os.O_WRONLY | os.O_CLOEXEC)
        try:
            fruitless = 0
            while wanted() and left > 0 and fruitless < FRUITLESS_MAX:
                try:
                    os.write(descriptor, f"{min(left, RECLAIM_MAX)}".encode())
                except BlockingIOError:  # EAGAIN: no more can be reclaimed now
                    # Of pages that are in the swap, or are written to it, and in memory as well.
                    if not re.search(r"^swapcached [1-9]", (directory / "memory.stat").read_text(), re.MULTILINE):
                        break
                    time.sleep(WRITING_INTERVAL_S)
                last, left = left, int((directory / "memory.current").read_text())
                fruitless = 0 if left < last else fruitless + 1
        finally:
            os.close(descriptor)
