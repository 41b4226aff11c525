"""Behind org.solo5.Network1: calls come in, one thread answers them in their order, nobody waits for a deletion.

The kernel's work is blocking, and short: all of it is done by one thread, which is what makes this the only writer.
Two things are long and need no order beyond their own task's, and have threads of their own: deleting taps (the kernel
waits for a grace period) and forgetting flows (it walks through the table of all connections).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from ipaddress import IPv4Address
from typing import ParamSpec, TypeVar
from weakref import WeakValueDictionary

from dbus_next import Message, MessageType
from dbus_next.aio import MessageBus

from solo5_systemd.daemon.service import Handler
from solo5_systemd.daemon.service import Service as Front
from solo5_systemd.dbus_api.network1 import INTERFACE
from solo5_systemd.errors import Solo5Error
from solo5_systemd.names import TaskName, network_service, task_name
from solo5_systemd.network import links as netlink
from solo5_systemd.network.conntrack import Moved, forget_sources, forget_udp
from solo5_systemd.network.links import LinkWatch
from solo5_systemd.network.model import HoldingState, NicRequest, PortRequest, Protocol, Reservation
from solo5_systemd.network.nft_tables import Watch
from solo5_systemd.networkd.held_ports import BARRIER_TIMEOUT_S, let_go
from solo5_systemd.networkd.state import Keeper, now

# Ask systemd which tasks' network units still stand.

_STANDING = ("active", "activating", "reloading", "deactivating")


async def without_unit(bus: MessageBus, tasks: Iterable[TaskName]) -> frozenset[TaskName]:
    """The tasks among these whose network unit is not there; none where systemd does not answer."""
    units = {network_service(task): task for task in tasks}
    reply = await bus.call(
        Message(
            destination="org.freedesktop.systemd1",
            path="/org/freedesktop/systemd1",
            interface="org.freedesktop.systemd1.Manager",
            member="ListUnitsByNames",
            signature="as",
            body=[list(units)],
        )
    )
    if reply.message_type is not MessageType.METHOD_RETURN:
        return frozenset()
    return frozenset(units[name] for name, _, _, state, *_ in reply.body[0] if state not in _STANDING)


IDLE_SECONDS = 10
SWEEP_SECONDS = 20
_LATER = 0.2
"""Seconds for which flows to a guest that has come are remembered, so that one walk serves many."""
_SETTLE_SECONDS = 0.05  # the kernel announces a bridge's end port by port

_log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")
NicWire = tuple[str, str, str, str]
PortWire = tuple[str, str, int, int, str]


class Networkd:
    """The network service.

    Args:
        bus: a connected bus.
        make_keeper: called in the writer's thread, since the sockets are for it alone.
        idle: seconds without a call and a holding after which we leave.
    """

    def __init__(self, bus: MessageBus, make_keeper: Callable[[], Keeper], *, idle: float) -> None:
        self._bus = bus
        self._make_keeper = make_keeper
        self._idle = idle
        self._writer = ThreadPoolExecutor(1, "writer")
        self._doomed: frozenset[str] = frozenset()
        self._burial = asyncio.Lock()
        self._moved: frozenset[Moved] = frozenset()
        self._walk = asyncio.Lock()
        self._turns: WeakValueDictionary[TaskName, asyncio.Lock] = WeakValueDictionary()
        self._stirred = asyncio.Event()
        self._rules_touched = False
        self._links_removed: frozenset[str] | None = frozenset()
        self._suspects: frozenset[TaskName] = frozenset()
        self._swept = 0

    async def serve(self, ready: Callable[[], None], stopping: Callable[[], None]) -> bool:
        """Recover, answer, and return when nobody has needed us for a while; as `daemon.service.Service.serve`."""
        self._keeper = await self._work(self._make_keeper)
        unfinished = await self._work(self._keeper.recover)
        self._front = Front(self._bus, INTERFACE, self._handlers(), lambda: bool(self._keeper.holdings))
        with self._watching():
            async with asyncio.TaskGroup() as self._tasks:
                house = self._tasks.create_task(self._keep_house(unfinished))
                needed = await self._front.serve(self._idle, ready, stopping)
                house.cancel()
        return needed

    def _handlers(self) -> dict[str, Handler]:
        handlers: dict[str, Handler] = {
            "Reserve": self._reserve,
            "Preview": self._preview,
            "Attach": self._attach,
            "Release": self._release,
            "Leases": self._leases,
            "Networks": self._list_networks,
            "Collect": self._collect,
        }
        return {name: self._stirs(handler) for name, handler in handlers.items()}

    def _stirs(self, handler: Handler) -> Handler:
        """A call may have changed what is due next."""

        async def handle(*arguments: object) -> Sequence[object]:
            try:
                return await handler(*arguments)
            finally:
                self._stirred.set()

        return handle

    @contextmanager
    def _watching(self) -> Iterator[None]:
        """The kernel tells what other programs do to rules and links."""
        loop = asyncio.get_running_loop()
        rules, links = Watch(), LinkWatch()
        loop.add_reader(rules.fileno(), self._on_rules, rules)
        loop.add_reader(links.fileno(), self._on_links, links)
        try:
            yield
        finally:
            for watch in (rules, links):
                loop.remove_reader(watch.fileno())
                watch.close()

    async def breathe(self) -> None:
        """Return when the writer's thread has come round: the sign of life for systemd's watchdog."""
        await self._work(now)

    async def release(self, task: TaskName) -> None:
        async with self._turn(task):
            await self._take_back(task)

    async def _release_if_due(self, task: TaskName, why: str, level: int = logging.INFO) -> None:
        """Release what is not used, unless a start attaches it before this has its turn."""
        async with self._turn(task):
            if self._keeper.is_due(task):
                _log.log(level, "The lease of task %s is released: %s.", task, why)
                await self._take_back(task)

    async def _take_back(self, task: TaskName) -> None:
        reservation = await self._work(self._keeper.begin_release, task)
        await asyncio.gather(self._bury(reservation), self._let_go(reservation))
        await self._work(self._keeper.end_release, task)

    async def _let_go(self, reservation: Reservation) -> None:
        if not await asyncio.to_thread(let_go, reservation.ports):
            _log.warning("PID 1 has not closed the ports of task %s within %d s.", reservation.task, BARRIER_TIMEOUT_S)

    async def _bury(self, reservation: Reservation) -> None:
        """Forget flows and then delete taps, together with those of everybody who waits for the burial before."""
        moved = frozenset(Moved(port=port.host_port, guest=None) for port in _udp(reservation))
        mine = frozenset(lease.tap for lease in reservation.leases)
        self._moved |= moved
        self._doomed |= mine
        flows = await self._work(self._keeper.has_flows, reservation)
        async with self._burial:
            await self._forget_flows(moved)
            if flows:
                await asyncio.to_thread(_forget_sources, flows)
            doomed, self._doomed = self._doomed | mine, frozenset()
            await asyncio.to_thread(netlink.delete_links, doomed)

    async def _forget_later(self, reservation: Reservation) -> None:
        moved = frozenset(
            Moved(port=port.host_port, guest=reservation.lease(port.nic).ipv4.ip) for port in _udp(reservation)
        )
        self._moved |= moved
        await asyncio.sleep(_LATER)
        await self._forget_flows(moved)

    async def _forget_flows(self, mine: frozenset[Moved]) -> None:
        """Forget flows that lead astray: these, and whatever else is known to by now."""
        async with self._walk:
            if not mine & self._moved:
                return  # there are none, or another walk took them with it
            moved, self._moved = self._moved, frozenset()
            try:
                await asyncio.to_thread(forget_udp, moved)
            except OSError as error:
                ports = sorted(each.port for each in moved)
                _log.warning("UDP flows to ports %s could not be forgotten: %s.", ports, error.strerror)

    # -- methods: wire values in, wire values out -----------------------------------------------------------------

    async def _reserve(self, name: str, nics: list[NicWire], ports: list[PortWire]) -> Sequence[object]:
        task, nic_requests, port_requests = _request(name, nics, ports)
        async with self._turn(task):
            reservation = await self._work(self._keeper.reserve, task, nic_requests, port_requests)
        return [[list(lease.to_wire()) for lease in reservation.leases]]

    async def _preview(self, name: str, nics: list[NicWire], ports: list[PortWire]) -> Sequence[object]:
        reservation, elements = await self._work(self._keeper.preview, *_request(name, nics, ports))
        leases = [list(lease.to_wire()) for lease in reservation.leases]
        return [leases, "\n".join(f"add {element}" for element in elements)]

    async def _attach(self, name: str) -> Sequence[object]:
        task = task_name(name)
        async with self._turn(task):
            reservation = await self._work(self._keeper.attach, task)
        # The guest may start meanwhile, and flows that lead to it stay: a client that was early is heard a little
        # later. The kernel's walk through all flows would be most of what an attachment costs.
        self._tasks.create_task(self._forget_later(reservation))
        return []

    async def _release(self, name: str) -> Sequence[object]:
        await self.release(task_name(name))
        return []

    async def _leases(self) -> Sequence[object]:
        return [
            [
                [
                    holding.reservation.task,
                    [list(lease.to_wire()) for lease in holding.reservation.leases],
                    [list(port.to_wire()) for port in holding.reservation.ports],
                    holding.state.value,
                ]
                for holding in self._keeper.holdings
            ]
        ]

    async def _list_networks(self) -> Sequence[object]:
        return [[list(network.to_wire()) for network in await self._work(self._keeper.overview)]]

    async def _collect(self, dry_run: bool) -> Sequence[object]:
        orphans = [*self._keeper.expired(), *await self._without_unit()]
        if not dry_run:
            for task in orphans:
                await self._release_if_due(task, "it is collected")
        return [[f"network lease of task {task}" for task in orphans]]

    # -- house ----------------------------------------------------------------------------------------------------

    def _on_rules(self, watch: Watch) -> None:
        if watch.touched():
            self._rules_touched = True
            self._stirred.set()

    def _on_links(self, watch: LinkWatch) -> None:
        removed = watch.removed()
        if removed is None or self._links_removed is None:
            self._links_removed = None
        else:
            self._links_removed |= removed
        self._stirred.set()

    async def _keep_house(self, unfinished: Sequence[TaskName]) -> None:
        for task in unfinished:
            await self.release(task)
        while True:
            await self._stirring()
            await self._mend()
            await self._tell_repairs()
            for task in self._keeper.expired():
                await self._release_if_due(task, "its reservation has expired")
            if now() - self._swept >= SWEEP_SECONDS:
                await self._sweep()

    async def _stirring(self) -> None:
        """Wait until there may be something to do, or something is due."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._patience()):
                await self._stirred.wait()
        self._stirred.clear()

    def _patience(self) -> float:
        """Seconds until something is due."""
        expiry = self._keeper.next_expiry()
        return SWEEP_SECONDS if expiry is None else max(1, min(expiry - now(), SWEEP_SECONDS))

    async def _mend(self) -> None:
        try:
            if self._rules_touched:
                self._rules_touched = False
                await self._work(self._keeper.repair)
            if self._links_removed != frozenset():
                await asyncio.sleep(_SETTLE_SECONDS)
                removed, self._links_removed = self._links_removed, frozenset()
                await self._work(self._keeper.repair_links, removed)
        except Solo5Error as error:
            _log.error("What another program changed could not be put back: %s", error)

    async def _tell_repairs(self) -> None:
        for repair in await self._work(self._keeper.take_repairs):
            await self._front.tell("Repaired", [list(repair.tasks), repair.what])

    async def _sweep(self) -> None:
        """Release what has lost its unit, if that was so at the last sweep too."""
        self._swept = now()
        await self._work(self._keeper.hold_ports)
        orphans = await self._without_unit()
        for task in orphans & self._suspects:
            await self._release_if_due(task, "it has no unit", logging.WARNING)
        self._suspects = orphans

    async def _without_unit(self) -> frozenset[TaskName]:
        """The tasks whose network has no unit, though the time to start one is over; their release may have failed."""
        due = (h for h in self._keeper.holdings if h.state is not HoldingState.RESERVED and h.expires <= now())
        tasks = [holding.reservation.task for holding in due]
        return await without_unit(self._bus, tasks) if tasks else frozenset()

    @asynccontextmanager
    async def _turn(self, task: TaskName) -> AsyncIterator[None]:
        """One call at a time for one task."""
        lock = self._turns.setdefault(task, asyncio.Lock())
        async with lock:
            yield

    async def _work(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._writer, lambda: function(*args, **kwargs))


def _forget_sources(addresses: Sequence[IPv4Address]) -> None:
    try:
        forget_sources(addresses)
    except OSError as error:
        shown = ", ".join(map(str, addresses))
        _log.warning("Connections from %s could not be forgotten: %s.", shown, error.strerror)


def _udp(reservation: Reservation) -> list[PortRequest]:
    return [port for port in reservation.ports if port.protocol is Protocol.UDP]


def _request(
    name: str, nics: list[NicWire], ports: list[PortWire]
) -> tuple[TaskName, tuple[NicRequest, ...], tuple[PortRequest, ...]]:
    return task_name(name), tuple(map(NicRequest.from_wire, nics)), tuple(map(PortRequest.from_wire, ports))
