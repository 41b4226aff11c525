"""The D-Bus service org.solo5.Network1: methods, repairs, expiry of reservations."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import ParamSpec, TypeVar

from solo5_systemd.base.concurrency import KeyedLocks
from solo5_systemd.base.declared_units import service_of
from solo5_systemd.base.decode import Fields
from solo5_systemd.base.errors import InvalidRequestError, Solo5Error
from solo5_systemd.base.names import TaskName, task_name
from solo5_systemd.dbus.message_bus import MessageBus
from solo5_systemd.dbus.network1 import INTERFACE
from solo5_systemd.dbus.process import log_about
from solo5_systemd.dbus.service import Handler, Service
from solo5_systemd.network import links, nft_rules
from solo5_systemd.network.conntrack import RedirectedPort, delete_flows_of, delete_udp_flows
from solo5_systemd.network.links import AddressWatch, LinkWatch
from solo5_systemd.network.model import Request, Reservation
from solo5_systemd.network.nft_tables import RulesetWatch
from solo5_systemd.network.port_conflicts import host_ports, show_port
from solo5_systemd.networkd.dhcp_servers import DhcpServers
from solo5_systemd.networkd.held_ports import BARRIER_TIMEOUT_S, wait_until_free
from solo5_systemd.networkd.leases import now
from solo5_systemd.networkd.namespace_watches import NamespaceWatches
from solo5_systemd.networkd.namespaces import Namespaces, delete_remains
from solo5_systemd.networkd.state import Remains
from solo5_systemd.networkd.task_units import TaskUnits
from solo5_systemd.settings.records import document, record

IDLE_TIMEOUT_S = 10
UNIT_CHECK_INTERVAL_S = 20
END_CHECK_INTERVAL_S = 1.0
"""Interval of the first looks at a task whose run has ended, and whose unit is starting again; it doubles each time."""
BRIDGE_CHECK_INTERVAL_S = 0.5
"""Interval of the checks for a missing joined bridge. A watch would be woken by each attach of a tap instead."""
_FLOW_BATCH_INTERVAL_S = 0.2
"""Delay of the deletion of stale flows after an attach, so that one dump of the conntrack table serves many tasks."""
_LINKS_SETTLE_S = 0.05  # the kernel sends one RTM_DELLINK for each port of a deleted bridge

_log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")


class Networkd:
    """The network service: D-Bus methods, and a maintenance loop.

    Short system calls run one after the other in the writer thread, the only user of `Namespaces`. Two slow
    operations need no order between tasks and run in other threads: the deletion of taps (the kernel waits for an RCU
    grace period) and of flows (a dump of the whole conntrack table).

    Args:
        bus: a connected bus.
        make_state: called in the writer thread, the only user of its sockets.
        units: of tasks.
        servers: the units of DHCP servers.
        idle: seconds without a call and a lease record after which the service exits.
    """

    def __init__(
        self,
        bus: MessageBus,
        make_state: Callable[[NamespaceWatches], Namespaces],
        units: TaskUnits,
        servers: DhcpServers,
        *,
        idle: float,
    ) -> None:
        self._bus = bus
        self._make_state = make_state
        self._idle = idle
        self._writer = ThreadPoolExecutor(1, "writer")
        self._taps_to_delete: frozenset[str] = frozenset()
        self._deletion_lock = asyncio.Lock()
        self._redirected: frozenset[RedirectedPort] = frozenset()
        self._conntrack_lock = asyncio.Lock()
        self._task_locks = KeyedLocks[TaskName]()
        self._wake = asyncio.Event()
        self._rules_changed = False
        self._links_changed: frozenset[str] | None = frozenset()
        self._gateway_removed = False
        self._namespaces_changed: set[str] = set()
        self._units = units
        self._servers = servers
        self._servers_lock = asyncio.Lock()
        self._ended: set[TaskName] = set()
        self._without_run: dict[TaskName, asyncio.Event] = {}
        self._stopping = False
        self._units_checked_at = now()
        self._check_interval = END_CHECK_INTERVAL_S if units.fileno() is None else UNIT_CHECK_INTERVAL_S

    async def serve(self, ready: Callable[[], None], stopping: Callable[[], None]) -> bool:
        """Recover the state, answer calls, and return after `idle` seconds; see `dbus.service.Service.serve`."""
        watches = NamespaceWatches(asyncio.get_running_loop(), self._on_namespace)
        self._state = await self._work(self._make_state, watches)
        unfinished = await self._work(self._state.recover)
        if self._state.host.dhcp.in_use or self._servers.running():
            await self._try_serve_dhcp()
        self._service = Service(self._bus, INTERFACE, self._handlers(), lambda: bool(self._state.records))
        with self._watching():
            async with asyncio.TaskGroup() as self._tasks:
                maintenance = self._tasks.create_task(self._maintain(unfinished))
                self._release_without_run()
                needed = await self._service.serve(self._idle, ready, stopping)
                maintenance.cancel()
                self._stopping = True
                for each in self._without_run.values():
                    each.set()
        return needed

    def _handlers(self) -> dict[str, Handler]:
        handlers: dict[str, Handler] = {
            "Reserve": self._reserve,
            "Preview": self._preview,
            "Attach": self._attach,
            "MovePorts": self._move_ports,
            "Release": self._release,
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
                    self._wake.set()

        return handle

    @contextmanager
    def _watching(self) -> Iterator[None]:
        """Watch ends of tasks, changes of links, and those of nftables where the tables have no owner."""
        loop = asyncio.get_running_loop()
        with ExitStack() as stack:
            stack.enter_context(closing(self._units))
            if (ends := self._units.fileno()) is not None:
                loop.add_reader(ends, self._on_ends)
                stack.callback(loop.remove_reader, ends)
            link_watch = stack.enter_context(closing(LinkWatch()))
            loop.add_reader(link_watch.fileno(), self._on_links, link_watch)
            stack.callback(loop.remove_reader, link_watch.fileno())
            address_watch = stack.enter_context(closing(AddressWatch()))
            loop.add_reader(address_watch.fileno(), self._on_addresses, address_watch)
            stack.callback(loop.remove_reader, address_watch.fileno())
            if not self._state.host.repairs.owns_tables:
                ruleset_watch = stack.enter_context(closing(RulesetWatch()))
                loop.add_reader(ruleset_watch.fileno(), self._on_rules, ruleset_watch)
                stack.callback(loop.remove_reader, ruleset_watch.fileno())
            yield

    async def check_writer(self) -> None:
        """Return once the writer thread has run a job, as a condition of the watchdog's keep-alive."""
        await self._work(now)

    async def release(self, task: TaskName) -> None:
        """Release the taps, firewall elements, ports and flows of a task; idempotent."""
        async with self._task_locks[task]:
            await self._release_now(task)

    def _on_ends(self) -> None:
        ended = self._units.ended()
        if ended is None:  # unknown, after lost events
            self._release_without_run()
        else:
            for task in filter(self._state.is_held, ended):
                self._ended.add(task)
                self._release_after_run(task)

    def _release_without_run(self) -> None:
        """Release the attached networks of tasks without a run, once these have had the time of a start."""
        for task in self._units.without_run(self._state.held()):
            self._release_after_run(task)

    def _release_after_run(self, task: TaskName) -> None:
        if task in self._without_run:
            self._without_run[task].set()
        else:
            self._without_run[task] = asyncio.Event()
            self._tasks.create_task(self._wait_and_release(task, self._without_run[task]))

    async def _wait_and_release(self, task: TaskName, news: asyncio.Event) -> None:
        interval = END_CHECK_INTERVAL_S
        try:
            while not (await self._is_settled(task) or self._stopping):
                with suppress(TimeoutError):
                    async with asyncio.timeout(interval):
                        await news.wait()
                news.clear()
                interval = min(2 * interval, UNIT_CHECK_INTERVAL_S)  # RestartSec= may be hours
        except Solo5Error as error:  # repeated by the check of units
            _log.error("releasing the network of task %s failed: %s", task, error)
        finally:
            del self._without_run[task]

    async def _is_settled(self, task: TaskName) -> bool:
        """Release the network of a task whose unit is over; return whether the task has a run or no network.

        A unit without a run may have a job: `systemctl restart`, Restart=. Without a unit, a start may be in progress,
        unless a run has ended since the last Attach.
        """
        async with self._task_locks[task]:
            if not self._state.is_held(task) or self._units.has_run(task):
                self._ended.discard(task)
                return True
            if (task in self._ended or self._state.is_due(task)) and await self._units.over([task]):
                self._ended.discard(task)
                await self._release_now(task)
                return True
            return False

    async def _release_if_due(self, task: TaskName, reason: str) -> None:
        """Release an expired lease, unless a start has attached or reserved it again before the lock is taken."""
        async with self._task_locks[task]:
            if self._state.is_due(task):
                _log.info("releasing lease of task %s: %s", task, reason)
                await self._release_now(task)

    async def _release_now(self, task: TaskName) -> None:
        remains = await self._work(self._state.begin_release, task)
        if self._state.host.dhcp.in_use:
            await self._try_serve_dhcp()  # before the bridge is deleted, on which the server's socket is
        if remains.namespace is not None:
            await asyncio.to_thread(delete_remains, remains, remains.namespace)
        else:
            await asyncio.gather(self._delete_flows_and_taps(remains), self._wait_for_ports(remains.reservation))
        await self._work(self._state.end_release, task)

    async def _serve_dhcp(self) -> None:
        """Start, restart and stop the DHCP servers as the attached tasks need them.

        Raises:
            HostError: a server does not start.
        """
        async with self._servers_lock:
            servers = await self._work(self._state.host.dhcp.pop_servers)
            running = self._servers.running()
            for network in running - servers.needed:
                await self._servers.stop(network)
            for network in servers.idle:
                await self._work(self._state.host.dhcp.forget, network)
            for network in servers.needed - (running - servers.outdated):
                await self._servers.start(network)

    async def _serve_dhcp_of(self, task: TaskName) -> None:
        """Serve a task that was attached; without a server, release it.

        Raises:
            HostError: a server does not start.
        """
        try:
            await self._serve_dhcp()
        except Solo5Error:
            await self._release_now(task)
            raise

    async def _try_serve_dhcp(self) -> None:
        try:
            await self._serve_dhcp()
        except Solo5Error as error:  # repeated at the next attach or release
            _log.error("%s", error)

    async def _wait_for_ports(self, reservation: Reservation) -> None:
        if reservation.ports and not await asyncio.to_thread(wait_until_free, host_ports(reservation)):
            message = "timeout: PID 1 has not closed the port sockets of task %s within %d s"
            _log.warning(message, reservation.task, BARRIER_TIMEOUT_S)

    async def _delete_flows_and_taps(self, remains: Remains) -> None:
        """Delete flows, then taps, in one batch with those of all releases that wait for the same lock."""
        mine = frozenset(lease.tap for lease in remains.reservation.leases)
        self._redirected |= remains.redirected
        self._taps_to_delete |= mine
        async with self._deletion_lock:
            await self._delete_redirected_flows(remains.redirected)
            if remains.addresses or remains.servers or remains.behind:
                await asyncio.to_thread(_delete_flows_of, remains)
            taps, self._taps_to_delete = self._taps_to_delete | mine, frozenset()
            if any(map(links.index, taps)):  # not deleted by another task's batch
                await asyncio.to_thread(links.delete_links, taps)

    async def _delete_flows_later(self, redirected: frozenset[RedirectedPort]) -> None:
        self._redirected |= redirected
        await asyncio.sleep(_FLOW_BATCH_INTERVAL_S)
        await self._delete_redirected_flows(redirected)

    async def _delete_redirected_flows(self, mine: frozenset[RedirectedPort]) -> None:
        """Delete the stale flows of these ports, and of all others that are queued."""
        async with self._conntrack_lock:
            if not mine & self._redirected:
                return  # no UDP port, or deleted by another task's batch
            redirected, self._redirected = self._redirected, frozenset()
            try:
                await asyncio.to_thread(delete_udp_flows, redirected)
            except OSError as error:
                ports = sorted(each.port for each in redirected)
                _log.warning("deleting conntrack entries of UDP ports %s failed: %s", ports, error.strerror)
                await self._work(self._state.host.flows_remain)

    # -- D-Bus methods --------------------------------------------------------------------------------------------

    async def _reserve(self, name: str, content: object) -> Sequence[object]:
        task, request = task_name(name), record(Request, Fields(content))
        async with self._task_locks[task]:
            # Of a run that has just ended. Starts of one name exclude each other before this call.
            if self._state.is_held(task) and not self._units.has_run(task) and await self._units.over([task]):
                await self._release_now(task)
            reservation = await self._work(
                self._state.reserve, task, request.nics, request.ports, request.names, namespace=request.namespace
            )
        return [[*map(document, reservation.leases)]]

    async def _preview(self, name: str, content: object) -> Sequence[object]:
        task, request = task_name(name), record(Request, Fields(content))
        reservation, elements = await self._work(
            self._state.preview, task, request.nics, request.ports, request.namespace
        )
        return [[*map(document, reservation.leases)], nft_rules.add(elements)]

    async def _attach(self, name: str) -> Sequence[object]:
        task = task_name(name)
        async with self._task_locks[task]:
            if self._state.is_releasing(task):  # a release that failed
                await self._release_now(task)
            self._on_ends()
            self._ended.discard(task)  # an end from here on is that of the start which this call prepares
            try:
                redirected = await self._work(self._state.attach, task)
                if self._state.host.dhcp.in_use:
                    await self._serve_dhcp_of(task)
            except Solo5Error as error:
                log_about(service_of(task), f"the network of task {task} cannot be attached: {error}")
                raise
        for port in await self._work(self._state.host.absent_addresses, task):
            text = f"port {show_port(port)} is reached once this host has the address {port.host_ip}, which it has not"
            log_about(service_of(task), text, priority=5)
        # Deferred, since the dump of all flows would be most of the cost of an attach. Flows to this guest stay; a UDP
        # client with a flow to an earlier guest reaches this one after the interval.
        if redirected:
            self._tasks.create_task(self._delete_flows_later(redirected))
        return []

    async def _move_ports(self, source: str, target: str) -> Sequence[object]:
        old, new = task_name(source), task_name(target)
        if old == new:
            raise InvalidRequestError(f"ports of task {old} cannot be moved to itself: expected two tasks.")
        first, second = sorted((old, new))
        async with self._task_locks[first], self._task_locks[second]:
            await self._work(self._state.move_ports, old, new)
        return []

    async def _release(self, name: str) -> Sequence[object]:
        await self.release(task_name(name))
        return []

    async def _leases(self) -> Sequence[object]:
        return [[*map(document, self._state.records)]]

    async def _list_networks(self) -> Sequence[object]:
        return [[*map(document, await self._work(self._state.overview))]]

    async def _collect(self, dry_run: bool) -> Sequence[object]:
        orphans = [*self._state.expired(), *await self._units.over(self._due_without_run())]
        if not dry_run:
            for task in orphans:
                await self._release_if_due(task, "garbage collection")
            await self._work(self._state.repair, verify=True)  # removes orphaned elements
            await self._work(self._state.remove_orphaned_taps)
        return [[f"network lease of task {task}" for task in orphans]]

    # -- maintenance ----------------------------------------------------------------------------------------------

    def _on_rules(self, watch: RulesetWatch) -> None:
        if watch.changed():
            self._rules_changed = True
            self._wake.set()

    def _on_links(self, watch: LinkWatch) -> None:
        changed = watch.changed()
        if changed is not None and not any(map(self._state.host.repairs.is_expected, changed)):
            return  # taps of released tasks, or links of other programs
        if changed is None or self._links_changed is None:
            self._links_changed = None
        else:
            self._links_changed |= changed
        self._wake.set()

    def _on_addresses(self, watch: AddressWatch) -> None:
        removed = watch.removed()
        if removed is None or any(map(self._state.host.bridges.is_gateway, removed)):
            self._gateway_removed = True
            self._wake.set()

    def _on_namespace(self, path: str) -> None:
        self._namespaces_changed.add(path)
        self._wake.set()

    async def _maintain(self, unfinished: Sequence[TaskName]) -> None:
        for task in unfinished:
            await self.release(task)
        await self._delete_flows_to_others()
        while True:
            await self._wait_for_work()
            await self._repair()
            await self._emit_repairs()
            for task in self._state.expired():
                await self._release_if_due(task, "reservation expired")
            if now() - self._units_checked_at >= self._check_interval:
                await self._check_units()

    async def _wait_for_work(self) -> None:
        """Wait for a wake-up or for the next deadline."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._seconds_until_due()):
                await self._wake.wait()
        self._wake.clear()  # before the flags are read: an event from here on wakes the loop again

    def _seconds_until_due(self) -> float:
        """Return the seconds until the next reservation expires or the next check of units, 1 at least."""
        if self._state.host.repairs.awaits_bridge:
            return BRIDGE_CHECK_INTERVAL_S
        expiry, check = self._state.next_expiry(), self._units_checked_at + self._check_interval
        return max(1, (check if expiry is None else min(expiry, check)) - now())

    async def _repair(self) -> None:
        try:
            if self._rules_changed:
                self._rules_changed = False
                await self._work(self._state.repair)
            if self._state.host.repairs.awaits_bridge:
                await self._work(self._state.host.repairs.repair_joined)
            if self._gateway_removed:
                self._gateway_removed = False
                await self._work(self._state.host.repairs.repair_gateways)
            if self._links_changed != frozenset():  # None: unknown, after lost netlink messages
                await asyncio.sleep(_LINKS_SETTLE_S)
                changed, self._links_changed = self._links_changed, frozenset()
                await self._work(self._state.host.repairs.repair_changed, changed)
            if self._namespaces_changed:
                await asyncio.sleep(_LINKS_SETTLE_S)
                paths, self._namespaces_changed = self._namespaces_changed, set()
                await self._work(self._state.repair_changed, paths)
        except (Solo5Error, OSError) as error:  # OSError: such as ENOBUFS, which passes
            _log.error("network repair failed: %s", error)
            self._rules_changed, self._links_changed = True, None  # all is compared at the next wake-up

    async def _emit_repairs(self) -> None:
        if self._state.has_repairs:
            for repair in await self._work(self._state.pop_repairs):
                await self._service.emit("Repaired", [list(repair.tasks), repair.what])
            await self._delete_flows_to_others()

    async def _delete_flows_to_others(self) -> None:
        """Delete UDP flows to published ports that began while there were no tables."""
        redirected = await self._work(self._state.host.redirected)
        self._redirected |= redirected
        await self._delete_redirected_flows(redirected)

    async def _check_units(self) -> None:
        """Look for ends that no event has reported, and for releases that failed."""
        self._units_checked_at = now()
        await self._work(self._state.host.bind_missing_ports)
        try:
            await self._work(self._state.repair_others)
            await self._work(self._state.host.repairs.repair_unannounced)
            await self._work(self._state.report_mistakes)
        except (Solo5Error, OSError) as error:  # such as another program's link of the bridge's name
            _log.error("network repair failed: %s", error)
        for task in self._due_without_run():
            self._release_after_run(task)

    def _due_without_run(self) -> Sequence[TaskName]:
        """Return the tasks with an attached network, no run, and no start in progress."""
        return [task for task in self._units.without_run(self._state.held()) if self._state.is_due(task)]

    async def _work(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._writer, lambda: function(*args, **kwargs))


def _delete_flows_of(remains: Remains) -> None:
    try:
        delete_flows_of(remains.addresses, remains.servers, remains.behind)
    except OSError as error:
        shown = ", ".join(map(str, (*dict.fromkeys((*remains.addresses, *remains.servers)), *remains.behind)))
        _log.warning("deleting conntrack entries of %s failed: %s", shown, error.strerror)
