"""Releases: the network of a task whose run has ended is released, what the kernel is slow to delete in batches."""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial

from solo5_systemd.base.concurrency import begin
from solo5_systemd.base.declared_units import service_of
from solo5_systemd.base.errors import Solo5Error
from solo5_systemd.base.inotify import RemovedEntries
from solo5_systemd.base.names import TaskName
from solo5_systemd.dbus.process import NOTICE, log_about
from solo5_systemd.network import links
from solo5_systemd.network.conntrack import delete_flows_of
from solo5_systemd.network.netlink import link_index
from solo5_systemd.networkd import task_units
from solo5_systemd.networkd.dhcp import DhcpServers
from solo5_systemd.networkd.dormant_starts import ATTEMPTS, CHECK_INTERVAL_S, Activation
from solo5_systemd.networkd.held_ports import wait_until_free
from solo5_systemd.networkd.leases import Remains
from solo5_systemd.networkd.namespaces import Core
from solo5_systemd.networkd.state import NetworkState

UNIT_CHECK_INTERVAL_S = 20
END_CHECK_INTERVAL_S = 0.1
"""Interval of the first looks at a task whose run has ended, and whose unit is starting again; it doubles each time."""

_log = logging.getLogger(__name__)


def _delete(batch: Sequence[Remains]) -> None:
    """Delete flows, then taps, of releases in one network namespace."""
    namespace = batch[0].namespace
    with namespace.entered() if namespace else nullcontext():
        clients = [address for each in batch for address in each.addresses]
        servers = [address for each in batch for address in each.servers]
        behind = [network for each in batch for network in each.behind]
        if clients or servers or behind:
            try:
                delete_flows_of(clients, servers, behind)
            except OSError as error:
                shown = ", ".join(map(str, dict.fromkeys((*clients, *servers, *behind))))
                _log.warning("deleting conntrack entries of %s failed: %s", shown, error.strerror)
        if taps := [tap for each in batch for tap in each.taps]:
            links.delete_links(taps)


@contextmanager
def failure_logged(task: TaskName) -> Iterator[None]:
    """Log an error of a release, which the check of units repeats: it would end the service, and all its calls."""
    try:
        yield
    except (Solo5Error, OSError) as error:
        _log.error("releasing the network of task %s failed: %s", task, error)


class Releases:
    """Releases networks."""

    def __init__(self, core: Core, servers: DhcpServers, activation: Activation) -> None:
        self._core = core
        self._servers = servers
        self._activation = activation
        self._remains: list[Remains] = []
        self._deleting = asyncio.Lock()
        self._ended: set[TaskName] = set()
        self._without_run: dict[TaskName, asyncio.Event] = {}
        self._stopping = False

    # -- ends of runs --------------------------------------------------------------------------------------------

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Release the networks of tasks that have no run, or whose run ends, for the block."""
        loop = asyncio.get_running_loop()
        if (ends := self._core.units.fileno()) is not None:
            loop.add_reader(ends, self._on_ends)
        fifos = self._watch_fifos()
        try:
            self.release_without_run(self._core.state.held())  # after the watch has begun: no end is missed in between
            self._look_at_all_fifos()
            yield
        finally:
            if fifos is not None:
                loop.remove_reader(fifos.fileno())
                fifos.close()
            if ends is not None:
                loop.remove_reader(ends)
            self._stopping = True
            for each in self._without_run.values():  # the task group waits for them, perhaps for hours
                each.set()

    def _on_ends(self) -> None:
        ended = self._core.units.ended()
        if ended is None:  # unknown, after lost events
            self.release_without_run(self._core.state.held())
        else:
            for task in filter(self._core.state.is_held, ended):
                self._ended.add(task)
                self._release_after_run(task)

    def forget_end(self, task: TaskName) -> None:
        """Forget that a run of a task has ended: an end from here on is that of the start which begins."""
        self._on_ends()
        self._ended.discard(task)

    def release_without_run(self, held: Sequence[TaskName]) -> None:
        """Release the networks of those tasks that have no run, once these have had the time of a start."""
        for task in self._core.units.without_run(held):
            if not self._is_expected(task):  # most of many tasks may wait
                self._release_after_run(task)

    def _release_after_run(self, task: TaskName) -> None:
        if task in self._without_run:
            self._without_run[task].set()
        else:
            self._without_run[task] = asyncio.Event()
            begin(self._core.tasks, self._wait_and_release(task, self._without_run[task]))

    async def _wait_and_release(self, task: TaskName, news: asyncio.Event) -> None:
        interval = END_CHECK_INTERVAL_S
        try:
            with failure_logged(task):
                while not (await self._is_settled(task) and not news.is_set()) and not self._stopping:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(interval):
                            await news.wait()
                    news.clear()
                    interval = min(2 * interval, UNIT_CHECK_INTERVAL_S)  # RestartSec= may be hours
        finally:
            del self._without_run[task]

    async def _is_settled(self, task: TaskName) -> bool:
        """Release the network of a task whose unit is over; return whether the task has a run or no network.

        A unit without a run may have a job: `systemctl restart`, Restart=. Without a unit, a start may be in progress,
        unless a run has ended since the last Attach.
        """
        async with self._core.locks[task]:
            state, units = self._core.state, self._core.units
            if not state.is_held(task) or units.has_run(task):
                self._ended.discard(task)
                return True
            if self._is_expected(task):
                return True
            over = task in self._ended or state.is_due(task) or state.waits(task)
            if over and await units.over([task]):
                self._ended.discard(task)
                record = state.record(task)
                waits = record is not None and record.reservation.idle_stops and units.is_read(task)
                await self.release_now(task, waits=waits)
                return True
            return False

    def _is_expected(self, task: TaskName) -> bool:
        """Return whether a task waits, and its socket unit is active."""
        return self._core.state.waits(task) and self._core.units.has_fifo(task)

    # -- socket units --------------------------------------------------------------------------------------------

    def _watch_fifos(self) -> RemovedEntries | None:
        try:
            fifos = RemovedEntries(task_units.FIFOS, added=True)
        except OSError as error:
            _log.warning("inotify: %s: %s; changes of socket units are noticed later", task_units.FIFOS, error.strerror)
            return None

        def on_change() -> None:
            names = fifos.read()
            if names is None:  # some are lost; this costs a look at each task
                self._look_at_all_fifos()
            else:
                self._on_fifos(map(TaskName, names), changed=True)

        asyncio.get_running_loop().add_reader(fifos.fileno(), on_change)
        return fifos

    def _look_at_all_fifos(self) -> None:
        host = self._core.state.host
        stopping = (each.reservation for each in host.leases.records if each.reservation.idle_stops)
        self._on_fifos(dict.fromkeys((*self._core.units.with_fifo(), *(each.task for each in stopping))))

    def _on_fifos(self, tasks: Iterable[TaskName], *, changed: bool = False) -> None:
        """Have tasks wait whose socket unit is active by now, and release those of which it is no longer.

        `changed`: their FIFOs were added or removed, perhaps both.
        """
        host = self._core.state.host
        for task in tasks:
            record, has_fifo = host.leases.get(task), self._core.units.has_fifo(task)
            if record is None and has_fifo:
                self._activation.wait_again(task)
            elif record is not None and record.reservation.idle_stops and (changed or not has_fifo):
                begin(self._core.tasks, self._end_waiting(task))

    async def _end_waiting(self, task: TaskName) -> None:
        """Release a task whose socket unit has ended while it waits; that unit is stopped without its declaration.

        If it was started again at once, the task stays, unless it has another declaration by now.
        """
        for _ in range(ATTEMPTS):
            if await self._core.units.stop_undeclared_socket(task):
                break
            await asyncio.sleep(CHECK_INTERVAL_S / ATTEMPTS)
        state = self._core.state
        if self._is_expected(task):
            async with self._core.locks[task]:
                if state.waits(task) and not await self._core.writer.run(state.host.last_request, task):
                    with failure_logged(task):
                        await self.release_ended(task)
        elif state.waits(task):
            if task not in self._without_run:  # else its run has just ended, or this was logged already
                text = f"its socket unit has ended (systemctl status {task}.socket)"
                log_about(service_of(task), f"task {task} is dormant no longer: {text}", priority=NOTICE)
            self.release_without_run([task])

    # -- one task ------------------------------------------------------------------------------------------------

    async def release(self, task: TaskName) -> None:
        """Release the taps, firewall elements, ports and flows of a task; idempotent."""
        async with self._core.locks[task]:
            await self.release_now(task)

    async def release_ended(self, task: TaskName) -> None:
        """Release the network of a run that has just ended, under the task's lock."""
        units = self._core.units
        if self._core.state.is_held(task) and not units.has_run(task) and await units.over([task]):
            await self.release_now(task)

    async def release_if_due(self, task: TaskName, reason: str) -> None:
        """Release an expired lease, unless a start has attached or reserved it again before the lock is taken."""
        async with self._core.locks[task]:
            if self._core.state.is_due(task):
                _log.info("releasing lease of task %s: %s", task, reason)
                await self.release_now(task)

    async def release_now(self, task: TaskName, *, waits: bool = False) -> None:
        """Release a task under its lock; with `waits`, what it does not need while it waits for its first packet."""
        with self._activation.releasing(task):
            begin_release = partial(NetworkState.begin_release, task=task, waits=waits)
            remains = await self._core.writer.run(self._core.state.at, task, begin_release)
            if self._core.state.host.dhcp.in_use:
                await self._servers.stop_idle()  # before the bridge is deleted, on which the server's socket is
            waiting = [asyncio.to_thread(wait_until_free, remains.ports)] if remains.ports else []
            await asyncio.gather(self._delete(remains), *waiting)
            await self._core.writer.run(self._core.state.end_release, task)
        await self._activation.hold(task)  # last: flows that are deleted later would be those of held packets
        self._on_fifos([task])  # its socket unit may have been started meanwhile

    async def _delete(self, remains: Remains) -> None:
        """Delete flows, then taps; in a thread, since no order between tasks is needed.

        For a tap the kernel waits for an RCU grace period, and flows take a dump of the conntrack table. What waits
        for the same lock is deleted by one call.

        Raises:
            HostError: a tap cannot be deleted, perhaps another task's, whose own call tries again.
        """
        if remains.namespace is not None:  # by itself: a thread enters one namespace at a time
            await asyncio.to_thread(_delete, [remains])
            return
        self._remains.append(remains)
        async with self._deleting:
            batch, self._remains = self._remains, []
            # Otherwise deleted with another task's, unless that failed.
            if batch or any(map(link_index, remains.taps)):
                await asyncio.to_thread(_delete, batch or [remains])
