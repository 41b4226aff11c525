"""The D-Bus service org.solo5.Network1: its methods."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager

from solo5_systemd.base.concurrency import SerialThread
from solo5_systemd.base.declared_units import service_of
from solo5_systemd.base.decode import Fields
from solo5_systemd.base.errors import InvalidRequestError, Solo5Error
from solo5_systemd.base.names import TaskName, task_name
from solo5_systemd.dbus.message_bus import MessageBus
from solo5_systemd.dbus.network1 import INTERFACE
from solo5_systemd.dbus.process import log_about
from solo5_systemd.dbus.service import Handler, Service
from solo5_systemd.network import nft_rules
from solo5_systemd.network.model import LeaseState, Repair, Request, SleepChange
from solo5_systemd.network.port_conflicts import show_port
from solo5_systemd.networkd.core import Core
from solo5_systemd.networkd.dhcp_servers import DhcpServers
from solo5_systemd.networkd.dormant_starts import Activation
from solo5_systemd.networkd.flow_and_tap_deletions import FLOW_BATCH_INTERVAL_S, Deletions
from solo5_systemd.networkd.leases import now
from solo5_systemd.networkd.maintenance import Maintenance
from solo5_systemd.networkd.namespaces import Namespaces
from solo5_systemd.networkd.releases import END_CHECK_INTERVAL_S, UNIT_CHECK_INTERVAL_S, Releases
from solo5_systemd.networkd.sleep import Sleep
from solo5_systemd.networkd.state import NetworkState
from solo5_systemd.networkd.task_units import TaskUnits
from solo5_systemd.networkd.watches import Watches
from solo5_systemd.settings.records import document, record


class Networkd:
    """The network service: D-Bus methods, releases, and a maintenance loop.

    Short system calls run one after the other in the writer thread, the only user of `Namespaces`. Deletions that the
    kernel is slow to make run in other threads (`Deletions`).

    Args:
        make_state: called in the writer thread, the only user of its sockets.
        idle: seconds without a call and a lease record after which the service exits.
    """

    def __init__(
        self,
        bus: MessageBus,
        make_state: Callable[[Watches], Namespaces],
        units: TaskUnits,
        servers: DhcpServers,
        *,
        idle: float,
    ) -> None:
        self._bus = bus
        self._make_state = make_state
        self._idle = idle
        self._writer = SerialThread("writer")
        self._units = units
        self._servers = servers

    async def serve(self) -> bool:
        """Recover the state, answer calls, and return after `idle` seconds; see `dbus.service.Service.serve`."""
        self._watches = Watches(asyncio.get_running_loop())
        self._state = await self._writer.run(self._make_state, self._watches)
        unfinished = await self._writer.run(self._state.recover)
        self._deletions = Deletions()
        self._service = Service(self._bus, INTERFACE, self._handlers(), self._is_needed)
        with closing(self._units):
            async with asyncio.TaskGroup() as self._tasks:
                needed = await self._serve(self._state, unfinished)
        return needed

    async def _serve(self, state: Namespaces, unfinished: Sequence[TaskName]) -> bool:
        core = Core(state=state, writer=self._writer, units=self._units, watches=self._watches, tasks=self._tasks)
        self._locks = core.locks
        self._activation = Activation(core)
        self._releases = Releases(core, self._servers, self._deletions, self._activation)
        self._sleep = Sleep(core, self._report_sleep)
        interval = END_CHECK_INTERVAL_S if self._units.fileno() is None else UNIT_CHECK_INTERVAL_S
        maintenance = Maintenance(core, self._releases, self._sleep, self._deletions, self._report, interval)
        with self._watches.open(state.host, self._sleep.on_packets, self._activation.on_packets):
            if state.host.dhcp.in_use or self._servers.running():
                await self._releases.try_serve_dhcp()
            with self._releases.watching(), self._activation.watching(), self._waking_all_at_a_stop():
                await self._sleep.check()  # packets that were announced before this are counted
                maintaining = self._tasks.create_task(maintenance.run(unfinished))
                needed = await self._service.serve(self._idle)
                maintaining.cancel()
        return needed

    def _is_needed(self) -> bool:
        return bool(self._state.records) or any(self._state.host.waiting.names())

    @contextmanager
    def _waking_all_at_a_stop(self) -> Iterator[None]:
        """Wake all tasks at SIGTERM, for the block, before the process ends."""
        loop = asyncio.get_running_loop()

        async def stop() -> None:
            try:
                await self._sleep.wake_all()
            finally:
                loop.remove_signal_handler(signal.SIGTERM)
                os.kill(os.getpid(), signal.SIGTERM)

        loop.add_signal_handler(signal.SIGTERM, lambda: self._tasks.create_task(stop()))
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGTERM)

    def _handlers(self) -> dict[str, Handler]:
        handlers: dict[str, Handler] = {
            "Reserve": self._reserve,
            "Preview": self._preview,
            "Attach": self._attach,
            "MovePorts": self._move_ports,
            "Release": self._release,
            "Sleep": self._put_to_sleep,
            "Wake": self._wake,
            "Awake": self._awake,
            "Leases": self._leases,
            "Networks": self._list_networks,
            "Collect": self._collect,
        }
        return {name: self._waking(handler) for name, handler in handlers.items()}

    def _waking(self, handler: Handler) -> Handler:
        """Wrap a method so that its repairs are signalled. Its reservation expires after the next check of units."""

        async def handle(*arguments: object) -> Sequence[object]:
            try:
                return await handler(*arguments)
            finally:
                if self._state.has_repairs:
                    self._watches.wake.set()

        return handle

    async def check_writer(self) -> None:
        """Return once the writer thread has run a job, as a condition of the watchdog's keep-alive."""
        await self._writer.run(now)

    async def _report(self, repair: Repair) -> None:
        await self._service.emit("Repaired", [list(repair.tasks), repair.what])

    async def _report_sleep(self, change: SleepChange) -> None:
        await self._service.emit("SleepChanged", [change.task, change.asleep, change.reason])

    # -- methods ---------------------------------------------------------------------------------------------------

    async def _reserve(self, name: str, content: object) -> Sequence[object]:
        task, request = task_name(name), record(Request, Fields(content))
        async with self._locks[task]:
            held = self._state.record(task)
            waits = held is not None and held.waits
            if held is None or not waits or not held.serves(request):
                await self._releases.release_ended(task)  # starts of one name exclude each other before this call
            reserved = await self._writer.run(self._state.reserve, task, request)
        return [[*map(document, reserved.reservation.leases)]]

    async def _preview(self, name: str, content: object) -> Sequence[object]:
        task, request = task_name(name), record(Request, Fields(content))
        reservation, elements = await self._writer.run(self._state.preview, task, request)
        return [[*map(document, reservation.leases)], nft_rules.add(elements)]

    async def _attach(self, name: str) -> Sequence[object]:
        task = task_name(name)
        async with self._locks[task]:
            held = self._state.record(task)
            if held is not None and held.state is LeaseState.RELEASING:  # a release that failed
                await self._releases.release_now(task)
            self._releases.forget_end(task)
            await self._sleep.wake_for_attach(task)
            try:
                redirected = await self._writer.run(self._state.attach, task)
                if self._state.host.dhcp.in_use:
                    await self._releases.serve_dhcp_of(task)
            except Solo5Error as error:
                log_about(service_of(task), f"the network of task {task} cannot be attached: {error}")
                raise
        self._sleep.expect(task)
        self._activation.attached(task)
        for port in await self._writer.run(self._state.host.absent_addresses, task):
            text = f"port {show_port(port)} is reached once this host has the address {port.host_ip}, which it has not"
            log_about(service_of(task), text, priority=5)
        # Deferred, since the dump of all flows would be most of the cost of an attach. Flows to this guest stay; a UDP
        # client with a flow to an earlier guest reaches this one after the interval.
        if redirected:
            where = attached.namespace if (attached := self._state.record(task)) else ""
            self._tasks.create_task(self._deletions.delete_flows(redirected, FLOW_BATCH_INTERVAL_S, where))
        return []

    async def _move_ports(self, source: str, target: str) -> Sequence[object]:
        old, new = task_name(source), task_name(target)
        if old == new:
            raise InvalidRequestError(f"ports of task {old} cannot be moved to itself: expected two tasks.")
        first, second = sorted((old, new))
        async with self._locks[first], self._locks[second]:
            await self._writer.run(self._state.move_ports, old, new)
        return []

    async def _release(self, name: str) -> Sequence[object]:
        await self._releases.release(task_name(name))
        return []

    async def _put_to_sleep(self, name: str) -> Sequence[object]:
        await self._sleep.sleep(task_name(name))
        return []

    async def _wake(self, name: str) -> Sequence[object]:
        await self._sleep.wake(task_name(name), "a request")
        return []

    async def _awake(self, name: str) -> Sequence[object]:
        return [self._sleep.awake_because(task_name(name))]

    async def _leases(self) -> Sequence[object]:
        return [[*map(document, self._state.records)]]

    async def _list_networks(self) -> Sequence[object]:
        # By namespace and name: of an array of tables, pystemd makes one table.
        networks = await self._writer.run(self._state.overview)
        return [{f"{each.namespace}:{each.name}": document(each) for each in networks}]

    async def _collect(self, dry_run: bool) -> Sequence[object]:
        due = [task for task in self._state.due() if not self._state.host.waiting.has_fifo(task)]
        orphans = [*self._state.expired(), *await self._units.over(self._units.without_run(due))]
        if not dry_run:
            for task in orphans:
                await self._releases.release_if_due(task, "garbage collection")
            await self._writer.run(self._state.everywhere, _remove_orphans)
        return [[f"network lease of task {task}" for task in orphans]]


def _remove_orphans(state: NetworkState) -> None:
    state.repairs.repair_tables(verify=True)  # with orphaned elements
    state.repairs.remove_orphaned_taps()
