"""The D-Bus service org.solo5.Network1: its methods."""

import asyncio
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from solo5_systemd.base.declared_units import service_of
from solo5_systemd.base.decode import Fields
from solo5_systemd.base.errors import InvalidRequestError, Solo5Error
from solo5_systemd.base.names import task_name
from solo5_systemd.dbus.interfaces import NETWORK1
from solo5_systemd.dbus.message_bus import MessageBus
from solo5_systemd.dbus.process import NOTICE, log_about
from solo5_systemd.dbus.service import Handler, Service
from solo5_systemd.network import nft_rules
from solo5_systemd.network.model import LeaseState, Request
from solo5_systemd.network.request_checks import show_port
from solo5_systemd.networkd.dhcp import DhcpServers
from solo5_systemd.networkd.dormant_starts import Activation
from solo5_systemd.networkd.maintenance import Maintenance
from solo5_systemd.networkd.namespaces import Core, delete_earlier_flows
from solo5_systemd.networkd.releases import Releases
from solo5_systemd.networkd.sleep import Sleep
from solo5_systemd.networkd.state import NetworkState
from solo5_systemd.settings.records import document, record


class Networkd:
    """The network service: D-Bus methods, releases, and a maintenance loop.

    Short system calls run one after the other in the writer thread, the only user of `Namespaces`. Deletions that the
    kernel is slow to make run in other threads (`Releases`). It exits after `idle` seconds without a call and a lease.
    """

    def __init__(self, bus: MessageBus, core: Core, servers: DhcpServers, *, idle: float) -> None:
        self._core = core
        self._state, self._writer, self._units, self._locks = core.state, core.writer, core.units, core.locks
        self._servers = servers
        self._idle = idle
        self._service = Service(
            bus,
            NETWORK1,
            self._handlers(),
            lambda: bool(self._state.records) or any(self._units.with_fifo()),
        )
        self._activation = Activation(core)
        self._releases = Releases(core, servers, self._activation)
        self._sleep = Sleep(core, self._service.emit)

    async def serve(self) -> bool:
        """Recover the state, answer calls, and return after `idle` seconds; see `dbus.service.Service.serve`."""
        host, watches = self._state.host, self._core.watches
        unfinished = await self._writer.run(self._state.recover)
        watches.wake.clear()  # repairs until now are signalled later, when the service has its name
        maintenance = Maintenance(self._core, self._releases, self._servers, self._sleep, self._service.emit)
        async with self._core.tasks as tasks:
            with watches.open(host, self._sleep.on_packets, self._activation.on_packets):
                if host.dhcp.in_use or self._servers.running():
                    await self._servers.maintain()
                with self._releases.watching(), self._activation.watching(), self._waking_all_at_a_stop():
                    await self._sleep.check()  # packets that were announced before this are counted
                    maintaining = tasks.create_task(maintenance.run(unfinished))
                    needed = await self._service.serve(self._idle)
                    maintaining.cancel()
        return needed

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

        loop.add_signal_handler(signal.SIGTERM, lambda: self._core.tasks.create_task(stop()))
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGTERM)

    def _handlers(self) -> dict[str, Handler]:
        return {
            "Reserve": self._reserve,
            "Preview": self._preview,
            "Attach": self._attach,
            "MovePorts": self._move_ports,
            "Release": lambda name: self._releases.release(task_name(name)),
            "Sleep": lambda name: self._sleep.sleep(task_name(name)),
            "Wake": lambda name: self._sleep.wake(task_name(name), "a request"),
            "Awake": self._awake,
            "Leases": self._leases,
            "Networks": self._list_networks,
            "Collect": self._collect,
        }

    # -- methods ---------------------------------------------------------------------------------------------------

    async def _reserve(self, name: str, content: object) -> Sequence[object]:
        task, request = task_name(name), record(Request, Fields(content))
        async with self._locks[task]:
            held = self._state.record(task)
            if held is None or not held.waits or not held.serves(request):
                await self._releases.release_ended(task)  # starts of one name exclude each other before this call
            reserved = await self._writer.run(self._state.reserve, task, request)
        return [[*map(document, reserved.reservation.leases)]]

    async def _preview(self, name: str, content: object) -> Sequence[object]:
        task, request = task_name(name), record(Request, Fields(content))
        reservation, elements = await self._writer.run(self._state.preview, task, request)
        return [[*map(document, reservation.leases)], nft_rules.add(elements)]

    async def _attach(self, name: str) -> None:
        task = task_name(name)
        async with self._locks[task]:
            held = self._state.record(task)
            if held is not None and held.state is LeaseState.RELEASING:  # a release that failed
                await self._releases.release_now(task)
            self._releases.forget_end(task)
            await self._sleep.wake_for_attach(task)
            try:
                await self._writer.run(self._state.attach, task)
                if held is None or held.state in (LeaseState.RESERVED, LeaseState.RELEASING):
                    await delete_earlier_flows(self._core, task)  # of one that waited, the kernel may hold packets
                if self._state.host.dhcp.in_use and (own := self._state.host.leases.get(task)) is not None:
                    try:
                        await self._servers.start({lease.network for lease in own.reservation.leases})
                    except Solo5Error:  # without its server, the guest would get no address
                        await self._releases.release_now(task)
                        raise
            except Solo5Error as error:
                log_about(service_of(task), f"the network of task {task} cannot be attached: {error}")
                raise
        self._sleep.expect(task)
        self._activation.attached(task)
        record = self._state.host.leases.get(task)
        if record is not None and any(port.host_ip for port in record.reservation.ports):
            for port in await self._writer.run(self._state.host.absent_addresses, record.reservation.ports):
                text = f"port {show_port(port)} is not reachable yet: this host has no address {port.host_ip}"
                log_about(service_of(task), text, priority=NOTICE)

    async def _move_ports(self, source: str, target: str) -> None:
        old, new = task_name(source), task_name(target)
        if old == new:
            raise InvalidRequestError(f"ports of task {old} cannot be moved to itself: expected two tasks.")
        first, second = sorted((old, new))  # in one order: two opposite moves would wait for each other
        async with self._locks[first], self._locks[second]:
            await self._writer.run(self._state.move_ports, old, new)

    async def _awake(self, name: str) -> Sequence[object]:
        return [self._sleep.awake_because(task_name(name))]

    async def _leases(self) -> Sequence[object]:
        return [[*map(document, self._state.records)]]

    async def _list_networks(self) -> Sequence[object]:
        # By namespace and name: of an array of tables, pystemd makes one table.
        networks = await self._writer.run(self._state.overview)
        return [{f"{each.namespace}:{each.name}": document(each) for each in networks}]

    async def _collect(self, dry_run: bool) -> Sequence[object]:
        due = [task for task in self._state.due() if not self._units.has_fifo(task)]
        orphans = [*self._state.expired(), *await self._units.over(self._units.without_run(due))]
        if not dry_run:
            for task in orphans:
                await self._releases.release_if_due(task, "garbage collection")
            await self._writer.run(self._state.everywhere, _remove_orphans)
        return [[f"network lease of task {task}" for task in orphans]]


def _remove_orphans(state: NetworkState) -> None:
    state.repairs.repair_tables(verify=True)  # with orphaned elements
    state.repairs.remove_orphaned_taps()
