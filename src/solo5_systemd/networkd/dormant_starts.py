"""Activation: a task without a process is started for its first packet (docs/decisions/neighbour-activation.md).

Its socket unit has a FIFO, as a `.socket` unit has a socket: PID 1 starts the task's service once something is in it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from solo5_systemd.base.concurrency import begin, gather
from solo5_systemd.base.declared_units import service_of
from solo5_systemd.base.errors import Solo5Error
from solo5_systemd.base.names import TaskName
from solo5_systemd.dbus.process import NOTICE, log_about
from solo5_systemd.network.kernel_events import CarrierWatch, LookupWatch, Packets
from solo5_systemd.network.model import IpAddress, Lease, LeaseRecord, LeaseState
from solo5_systemd.network.neighbours import Neighbours
from solo5_systemd.network.netlink import link_index
from solo5_systemd.networkd.namespaces import Core, delete_earlier_flows
from solo5_systemd.networkd.state import NetworkState

CHECK_INTERVAL_S = 1.0
"""Seconds between two looks at a start: one that has failed is repeated for a later packet."""

LOOKS = 2
"""How many find neither a run nor a job of a start that has failed: PID 1 reads no FIFO during a daemon-reload."""

ATTEMPTS = 10
"""How often a FIFO is opened, or PID 1 asked to stop a socket unit, in that time."""

ANSWER_TIMEOUT_S = 2.0
"""Seconds in which a guest that has opened its tap has to answer two questions for its address, before it gets what the
kernel holds. MirageOS answers once its stack is complete, a second later where it has IPv6 (RFC 4862, 5.4)."""

ASK_INTERVAL_S = 0.05

SETTLE_S = 0.01
"""Seconds from its first answer until it is asked again. MirageOS reads the first questions just before it listens to
its ports, and refuses meanwhile; the next one it reads in its main loop, which begins after that."""

STARTS_MAX = 4
"""Starts for packets in `STARTS_INTERVAL_S`, of a task that ends by itself each time. PID 1's default of
StartLimitBurst= is not reached by them, which would fail it and its socket unit until an operator comes."""

STARTS_INTERVAL_S = 30.0

_log = logging.getLogger(__name__)


class Activation:
    """Starts tasks that wait, which are of the host's own networks, and has them get what the kernel holds for them."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._host = core.state.host
        self._sleepers = core.state.host.sleepers
        self._start_times: dict[TaskName, deque[float]] = {}  # of the last ones, by the event loop's clock
        self._refused: set[TaskName] = set()
        self._releasing: set[TaskName] = set()
        self._started: dict[TaskName, asyncio.Task[None]] = {}
        self._carriers: CarrierWatch | None = None
        self._awaited: dict[str, asyncio.Event] = {}
        self._asked: dict[IpAddress, asyncio.Event] = {}
        self._returning: asyncio.Queue[TaskName] = asyncio.Queue()
        self._lost = asyncio.Event()
        self._stopping = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Start tasks for their packets, for the block."""
        loop, lookups = asyncio.get_running_loop(), LookupWatch()
        loop.add_reader(lookups.fileno(), self._on_lookups, lookups)
        self._lost.set()  # the kernel may hold packets already
        steps = self._hold_lost(), self._deliver_held(), self._have_wait()
        begun = [*map(self._core.tasks.create_task, steps)]
        try:
            yield
        finally:
            for step in begun:
                step.cancel()
            loop.remove_reader(lookups.fileno())
            lookups.close()
            self._stopping = True
            for task in [*self._started]:
                self._end_step(task)

    def wait_again(self, task: TaskName) -> None:
        """Have a task wait that has no lease, as after a boot; one of which nothing is known is started, once."""
        self._returning.put_nowait(task)

    async def _have_wait(self) -> None:
        """Have tasks wait again, one after the other: pages of what hundreds need at a time would stay in use."""
        while True:
            task = await self._returning.get()
            async with self._core.locks[task]:
                if self._host.leases.get(task) is not None:  # it is being started
                    continue
                try:
                    if await self._core.writer.run(self._host.wait_again, task):
                        await delete_earlier_flows(self._core, task)
                        await self.hold(task)  # a packet may have come while its bridge was made
                        continue
                    reason = "it has not run before"
                except Solo5Error as error:
                    reason = f"{error}"
            begin(self._core.tasks, self._start_once_read(task, reason))

    async def _start_once_read(self, task: TaskName, reason: str) -> None:
        """Start a task whose FIFO was just made, which PID 1 opens a moment later; others do not wait for that.

        PID 1 then empties it (FlushPending=), with what was written meanwhile: only after that it replies to a call.
        """
        for _ in range(ATTEMPTS):
            if self._core.units.is_read(task):
                await self._core.units.over([task])
                if self._host.leases.get(task) is None:  # else it was started meanwhile
                    self.start(task, reason)
                return
            await asyncio.sleep(CHECK_INTERVAL_S / ATTEMPTS)

    async def _hold_lost(self) -> None:
        """Start the tasks for which the kernel holds packets already, each time when look-ups were lost.

        A sweep of many addresses loses them all the time: then one pass follows another.
        """
        while await self._lost.wait():
            self._lost.clear()
            for record in self._host.leases.waiting():
                await self.hold(record.reservation.task)

    async def hold(self, task: TaskName) -> None:
        """Have the kernel hold packets for a task that waits, and start it for one that it holds already."""
        if self._core.state.waits(task) and any(await self._have(task, Neighbours.hold)):
            self.start(task, "a packet")
            await self._have(task, Neighbours.keep)

    def _on_lookups(self, lookups: LookupWatch) -> None:
        found = lookups.looked_up()
        if found is None:  # some are lost: the kernel repeats none, but their senders do
            self._lost.set()
            return
        for link, address in found:
            record = self._host.leases.of(address)
            if record is None or not self._is_of(record, link, address):
                continue
            task = record.reservation.task
            if record.waits:
                self.start(task, f"a packet for {address}")
                begin(self._core.tasks, self._have(task, Neighbours.keep))
            elif not self._takes_packets(record):  # `hold` finds it afterwards
                continue
            elif not self._is_started(task):  # at once: the kernel asks the guest a second later
                self._begin_step(task, self._deliver(task))
            elif record.reservation.idle_stops:
                begin(self._core.tasks, self._have(task, Neighbours.keep))  # else the kernel asks the guest

    def _is_of(self, record: LeaseRecord, link: int, address: IpAddress) -> bool:
        """Return whether a link is that by which the host reaches a leased address."""
        names = [lease.network for lease in record.reservation.leases if address in lease.addresses]
        networks = (self._host.bridges.networks.get(name) for name in names)
        return any(network is not None and link_index(network.bridge) == link for network in networks)

    def on_packets(self, found: Packets | None, state: NetworkState) -> None:
        """Start the tasks for whose addresses neighbours ask that may reach them, and note which have answered."""
        if found is None or state is not self._host:  # a question is repeated
            return
        leases = self._host.leases
        for tap, address in found.questions:
            record, of_asker = leases.of(address), leases.of(tap)
            if record is None or of_asker is None or not record.waits:
                continue
            name = next(lease.network for lease in record.reservation.leases if address in lease.addresses)
            policy = self._host.bridges.networks[name].policy
            for lease in of_asker.reservation.leases:
                if lease.tap == tap and lease.network == name and not policy.isolated:
                    egress = lease.limits.under(policy).egress
                    if egress is None or any(address in destination.network for destination in egress):
                        self.start(record.reservation.task, f"a question for {address}")
        for address in found.answers & self._asked.keys():
            self._asked[address].set()

    def start(self, task: TaskName, reason: str) -> None:
        """Have PID 1 start a task that waits, unless it does."""
        if self._is_started(task):
            return
        if self._may_start(task) and self._core.units.start(task):
            times = self._start_times.setdefault(task, deque(maxlen=STARTS_MAX))
            times.append(asyncio.get_running_loop().time())
            self._refused.discard(task)
            log_about(service_of(task), f"task {task} is started: {reason}", priority=NOTICE)
        self._begin_step(task, self._watch(task))  # also of one that may not start: its packets are refused in the end

    def _may_start(self, task: TaskName) -> bool:
        """Return whether a task may be started; the first refusal after a start is logged, and not one each second."""
        times = self._start_times.get(task, deque[float]())
        if len(times) < STARTS_MAX or times[0] <= asyncio.get_running_loop().time() - STARTS_INTERVAL_S:
            return True
        if task not in self._refused:
            text = f"it has ended by itself, or not started, {STARTS_MAX} times in {STARTS_INTERVAL_S:.0f} s"
            log_about(service_of(task), f"task {task} is not started for packets until later: {text}")
        self._refused.add(task)
        return False

    def _is_started(self, task: TaskName) -> bool:
        """Return whether a step of a start is under way; a `_watch` may have found that the start left nothing."""
        return task in self._started and not self._started[task].done()

    def _begin_step(self, task: TaskName, step: Coroutine[Any, Any, None]) -> None:
        """Begin the next step of a start: `_watch` until its unit has a run, then `_deliver`.

        None at the end of the service: the start may wait for the next one, which waits for this end.
        """
        self._end_step(task)
        if self._stopping:
            step.close()
        elif (begun := begin(self._core.tasks, step)) is not None:
            self._started[task] = begun

    def _end_step(self, task: TaskName) -> None:
        """End a step, unless it is what calls this as its own end."""
        step = self._started.pop(task, None)
        if step is not None and step is not asyncio.current_task():
            step.cancel()
        if self._carriers is not None and not self._started:  # each link that comes up would wake the process
            asyncio.get_running_loop().remove_reader(self._carriers.fileno())
            self._carriers.close()
            self._carriers = None
            self._awaited.clear()

    async def _watch(self, task: TaskName) -> None:
        """Look until a task is started; after a start that has failed, its packets are refused, and the next starts it.

        Packets for a task that waits are kept for as long as PID 1 has a job for it.
        """
        looks = 0
        while looks < LOOKS:
            await asyncio.sleep(CHECK_INTERVAL_S)
            if not self._core.state.waits(task):  # it is attached, or released
                return
            looks = looks + 1 if await self._core.units.over([task]) else 0
        self._end_step(task)
        await self._have(task, Neighbours.refuse)
        units = self._core.units
        if self._core.state.waits(task) and units.has_fifo(task) and not units.is_read(task):
            text = "PID 1 has closed its FIFO, as for a changed declaration at a daemon-reload"
            log_about(service_of(task), f"task {task} cannot be started for packets: {text}")
            units.remove_fifo(task)

    # -- after the start -------------------------------------------------------------------------------------------

    def attached(self, task: TaskName) -> None:
        """Deliver what the kernel holds for a task that has waited."""
        if task in self._started:
            self._begin_step(task, self._deliver(task, boots=True))

    @contextmanager
    def releasing(self, task: TaskName) -> Iterator[None]:
        """Forget a start: the task waits again, or is over. No packet begins a delivery to its taps, for the block."""
        record = self._host.leases.get(task)
        if (record is not None and record.ends) or not self._core.units.has_fifo(task):
            self._start_times.pop(task, None)  # it is ended for idleness or by an operator, not by itself
            self._refused.discard(task)
        self._end_step(task)
        self._releasing.add(task)
        try:
            yield
        finally:
            self._releasing.discard(task)

    def _takes_packets(self, record: LeaseRecord) -> bool:
        """Return whether a task has its taps, and is not about to end, or being released: packets are held then."""
        released = record.reservation.task in self._releasing
        return record.state is LeaseState.ATTACHED and not record.ends and not released

    async def _deliver_held(self) -> None:
        """Deliver what an earlier process of the service has left in the kernel for attached tasks."""
        for record in [*self._host.leases.records]:
            task = record.reservation.task
            is_attached = record.state is LeaseState.ATTACHED and record.reservation.idle_stops
            if is_attached and any(await self._have(task, Neighbours.hold)) and not self._is_started(task):
                self._begin_step(task, self._deliver(task, boots=True))

    async def _deliver(self, task: TaskName, *, boots: bool = False) -> None:
        """Deliver what the kernel holds for each NIC of an attached task, once its guest takes packets.

        `boots`: the guest may boot, though its taps are open.
        """
        record = self._host.leases.get(task)
        if record is not None and self._takes_packets(record):
            await gather(self._deliver_to(task, lease, boots) for lease in record.reservation.leases)
        self._end_step(task)

    async def _deliver_to(self, task: TaskName, lease: Lease, boots: bool) -> None:
        if await self._opened(lease) or boots:  # else it has run for a while
            await self._have(task, Neighbours.keep, lease)
            await self._answer(task, lease)
        await self._have(task, Neighbours.deliver, lease)

    async def _opened(self, lease: Lease) -> bool:
        """Wait until the tender has a tap open; return whether it had not.

        Before, frames would be lost; also before the kernel has seen that a bridge has a carrier again.
        """
        if self._carriers is None:
            self._carriers = CarrierWatch()
            asyncio.get_running_loop().add_reader(self._carriers.fileno(), self._on_carriers, self._carriers)
        passes, has_waited = self._host.links.neighbours.passes_frames, False
        links = lease.tap, lease.bridge, self._host.bridges.networks[lease.network].bridge
        while True:
            carriers = {link: self._awaited.setdefault(link, asyncio.Event()) for link in links}  # before the look
            closed = await self._core.writer.run(lambda: next((link for link in links if not passes(link)), None))
            if closed is None:
                return has_waited
            has_waited = True
            await carriers[closed].wait()

    async def _answer(self, task: TaskName, lease: Lease) -> None:
        """Ask a guest for its first address until it answers, and once more, so that it listens.

        With both families, by ARP: one with `--ipv4-only=true` has no use of its IPv6 address.
        """
        if lease.first_address is None:
            return
        with suppress(TimeoutError):  # a guest that takes packets all the same, or none
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await self._ask(task, lease, lease.first_address)
                await asyncio.sleep(SETTLE_S)
                await self._ask(task, lease, lease.first_address)

    async def _ask(self, task: TaskName, lease: Lease, address: IpAddress) -> None:
        answered = self._asked[address] = asyncio.Event()
        try:
            while not answered.is_set():
                await self._have(task, Neighbours.ask, lease)
                with suppress(TimeoutError):
                    await asyncio.wait_for(answered.wait(), ASK_INTERVAL_S)
        finally:
            self._asked.pop(address, None)

    def _on_carriers(self, watch: CarrierWatch) -> None:
        found = watch.up()
        for link in [*self._awaited] if found is None else found & self._awaited.keys():
            self._awaited.pop(link).set()

    async def _have(
        self, task: TaskName, do: Callable[[Neighbours, str, Lease], object], only: Lease | None = None
    ) -> Sequence[object]:
        """Have the kernel do as `Sleepers.packets`; return the result for each NIC."""
        try:
            return await self._core.writer.run(self._sleepers.packets, task, do, only)
        except Solo5Error as error:  # released meanwhile; otherwise the kernel asks the guest in a second
            _log.log(logging.ERROR if do is Neighbours.hold else logging.INFO, "%s", error)
            return ()
