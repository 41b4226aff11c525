"""Start tasks, in three strokes: gather the facts, decide, execute.

`engine.facts` reads the host, `engine.plan` decides, and the steps here execute the plan, each with what undoes it.
Preflight, which is the first two, stores the image and changes nothing else; a reservation expires; one
StartTransientUnit call starts the unit. If this process dies in between, systemd and solo5-networkd undo the rest.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from solo5_systemd.base.declared_units import declared_service
from solo5_systemd.base.errors import Solo5Error, StartError, TakenError
from solo5_systemd.base.names import TaskName, network_service
from solo5_systemd.bus.peers import JobFailedError
from solo5_systemd.engine.backends import Backends
from solo5_systemd.engine.facts import check_name, gather
from solo5_systemd.engine.plan import Plan, plan
from solo5_systemd.engine.stop import discard_locked
from solo5_systemd.engine.task import SpawnProcess, StartCallbacks, Task
from solo5_systemd.host.drop_ins import check_drop_ins
from solo5_systemd.network.model import NicRequest, Reservation
from solo5_systemd.settings.solo5_toml import TASK_UIDS
from solo5_systemd.storage.archive import check_total
from solo5_systemd.storage.model import Disk, DiskRequest
from solo5_systemd.task.log_fields import STDERR_PRIORITY
from solo5_systemd.task.properties import TransientUnit
from solo5_systemd.task.workload import Workload
from solo5_systemd.unit.state import UnitState
from solo5_systemd.unit.tender import sandbox_path
from solo5_systemd.users.allocation import RangeUsedUpError

T = TypeVar("T")
Undoing = Callable[[], Coroutine[object, object, None]]

_LATER: set[asyncio.Future[None]] = set()
"""What is undone in the background: asyncio itself keeps no reference."""


class NameTakenError(TakenError):
    """A concurrent start of the same name has made its unit: its resources must not be undone by this start."""

    def __init__(self, name: TaskName) -> None:
        sentence = f"task name {name!r} has just been taken."
        super().__init__(sentence, f"See: solo5ctl inspect {name}")


class Undo(AsyncExitStack):
    """What undoes the steps of a start. Errors of it are dropped: the first error is reported."""

    def on_failure(self, undoing: Undoing, *, by_name: bool = False) -> None:
        """Undo a step if the start fails; one that is undone by its task's name, unless another start has the name."""

        async def leave(_type: object, error: BaseException | None, _traceback: object) -> None:
            if error is not None and not (by_name and isinstance(error, NameTakenError)):
                await undo(undoing())

        self.push_async_exit(leave)

    def close_on_failure(self, held: list[int]) -> None:
        """Close descriptors if the start fails, also those that are added to the list later."""

        def leave(_type: object, error: BaseException | None, _traceback: object) -> None:
            for fd in held if error is not None else ():
                os.close(fd)

        self.push(leave)


async def undo(undoing: Coroutine[object, object, None]) -> None:
    """Undo a step, also during a second cancellation. An error of it is dropped: the first error is reported."""
    with suppress(Solo5Error):
        await asyncio.shield(undoing)


async def completed(doing: Awaitable[T], undoing: Callable[[T], Coroutine[object, object, None]]) -> T:
    """Wait for a step in a thread, and return its result.

    If the start is cancelled, the thread goes on, and may hang in a file system: the step is undone when it returns.
    """
    done = asyncio.ensure_future(doing)
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:

        async def undo_result() -> None:
            await undoing(await done)

        later = asyncio.ensure_future(undo(undo_result()))
        _LATER.add(later)
        later.add_done_callback(_LATER.discard)
        raise


class Starter:
    """Starts tasks."""

    def __init__(self, backends: Backends) -> None:
        self._backends = backends

    async def plan(self, workload: Workload) -> Plan:
        """Store the image, and return what a start makes.

        Raises:
            Solo5Error: the task cannot start.
        """
        await check_name(self._backends, workload)
        return plan(workload, await gather(self._backends, workload))

    async def preview(self, workload: Workload) -> Plan:
        """Return what a start would make; raises as `plan`. Nothing is stored, reserved or started."""
        await check_name(self._backends, workload)
        found = await self._previewed(workload)
        if not found.request.nics:
            return found
        reservation, nft = await self._backends.networks.preview(workload.name, found.request)
        return replace(found.reserved(reservation), nft=nft)

    async def check_declared(self, workload: Workload) -> None:
        """Check what the preparation of a declared task checks, whether it runs or not; raises as `plan`."""
        check_drop_ins(declared_service(workload.name), declared=True)
        found = await self._previewed(workload)
        if found.request.nics and await self._backends.networks.reservation(workload.name) is None:
            await self._backends.networks.preview(workload.name, found.request)

    async def _previewed(self, workload: Workload) -> Plan:
        found = plan(workload, await gather(self._backends, workload, preview=True))
        self._backends.users.check_claim(workload.name, found.claim)
        return found

    async def service(self, planned: Plan, progress: StartCallbacks) -> Task:
        """Start a service; stop and discard it if that fails."""
        async with self._prepared(planned, progress) as steps:
            disks = await steps.bind_disks()
            unit = replace(steps.plan, disks=disks).unit
            stdin, stderr = await steps.open_files(unit)
            progress.on_step("attaching its network")
            await steps.attach()
            progress.on_step("starting its unit")
            begun = await steps.start_unit(unit, stdin, stderr)
            await steps.check_bound(begun)
            return steps.plan.started(begun)

    @asynccontextmanager
    async def scope(self, planned: Plan, spawn: SpawnProcess, progress: StartCallbacks) -> AsyncGenerator[Task, None]:
        """Start a scope with the process of `spawn` in it; stop and discard it if the block raises."""
        async with self._prepared(planned, progress) as steps:
            opened, fds = await steps.open_image_and_disks()
            progress.on_step("attaching its network")
            await steps.attach()
            progress.on_step("starting its unit")
            pid = await steps.undo.enter_async_context(spawn(opened.argv, fds, planned.log_namespace))
            unit = replace(steps.plan, pid=pid).unit
            begun = await steps.start_unit(unit)
            yield steps.plan.started(begun)

    @asynccontextmanager
    async def _prepared(self, planned: Plan, progress: StartCallbacks) -> AsyncGenerator["Steps", None]:
        """Take the steps that a service and a scope have in common."""
        async with Undo() as undoing:
            steps = Steps(self._backends, planned, undoing)
            await steps.hold_image()
            await steps.allocate_user()
            progress.on_preflight(planned)
            progress.on_step("reserving addresses")
            await steps.reserve()
            progress.on_leases(steps.plan.reservation.leases)
            progress.on_step("preparing its disks and console")
            undoing.on_failure(steps.remove_new_files)
            # Here, since a start can also be cancelled while the rest is released.
            undoing.on_failure(steps.stop_unit, by_name=True)
            undoing.push_async_callback(steps.release_disks)
            await steps.make_disks()
            yield steps


class Steps:
    """The steps of one start."""

    def __init__(self, backends: Backends, planned: Plan, undoing: Undo) -> None:
        self.plan = planned  # each step adds to it
        self.undo = undoing
        self._made: list[Disk] = []  # those that were planned
        self._created: list[tuple[DiskRequest, Disk]] = []  # those of them with a new file
        self._bound: Sequence[Disk] = ()
        self._name = planned.workload.name
        self._backends = backends
        self._networks = backends.networks
        self._units = backends.units
        self._users = backends.users
        self._unit = ""  # that is started
        self._executed = False  # the tender

    async def hold_image(self) -> None:
        """Keep the image in the store until the unit shows that it is in use."""
        self.undo.callback(os.close, await self._backends.images.hold(self.plan.image))

    async def allocate_user(self, *, adopt: bool = False) -> None:
        """Allocate the task's user, and record what the task takes. The user is locked until the unit exists.

        Args:
            adopt: a user that exists already is that of the task's last run, and of no concurrent start.
        """
        try:
            try:
                held = await self._users.acquire(self._name)
            except RangeUsedUpError:  # once more after the users of tasks without a unit are freed
                await self._users.collect(self._units.names, self._networks.forget)
                await self._users.reclaim()
                held = await self._users.acquire(self._name)
        except asyncio.CancelledError:  # the allocation may have completed nevertheless
            await undo(self._free_user())
            raise

        async def leave(_type: object, error: BaseException | None, _traceback: object) -> None:
            if error is None or isinstance(error, NameTakenError):
                os.close(held.descriptor)  # from here on, the unit shows that the user is in use
            else:
                await undo(self._free_user(held.descriptor))

        self.undo.push_async_exit(leave)
        # A concurrent start may have finished between preflight and the lock: user, addresses and disks are its then.
        if held.adopted and not adopt and await self._units.is_taken(self._name):
            raise NameTakenError(self._name)
        await self._users.claim(self._name, self.plan.claim)
        self.plan = replace(self.plan, user=held.uid)

    async def _free_user(self, held: int | None = None) -> None:
        """Free the user, unless its unit runs: that of a concurrent start, or one that could not be stopped."""
        is_running = True
        try:
            is_running = await self._units.is_running(self._name)
        finally:
            if is_running and held is not None:
                os.close(held)
        if not is_running:
            await self._users.release(self._name, held)

    async def reserve(self) -> None:
        """Reserve addresses, MACs, taps and ports."""
        if self.plan.request.nics:
            self.undo.on_failure(self.unreserve, by_name=True)  # first: without a reply it may have been made as well
            self.plan = self.plan.reserved(await self.request_reservation(self.plan.request.nics))

    async def request_reservation(self, nics: Sequence[NicRequest]) -> Reservation:
        """Reserve all but ports that are lent to another guest; the reservation that is returned has them too."""
        lent, request = tuple(self.plan.lent), self.plan.request
        wanted = replace(request, nics=tuple(nics), ports=() if lent else request.ports)
        reservation = await self._networks.reserve(self._name, wanted)
        return replace(reservation, ports=lent or reservation.ports)

    async def unreserve(self) -> None:
        """Undo a reservation, and what is attached for it."""
        await self._networks.release(self._name)
        await self._networks.forget(self._name)

    async def make_disks(self) -> None:
        """Make the disks that preflight has planned.

        A file that is created stays, unless the start fails before the tender was executed. The names of private disks
        are removed when the start ends: the unit has its own mounts of them by then.
        """
        disks = []
        for request, disk in zip(self.plan.workload.disks, self.plan.disks, strict=True):
            if not disk.planned:
                disks.append(disk)
                continue
            making = self._backends.disks.make(request, disk, self.plan.workload.tenant)
            made, created = await completed(making, partial(self._unmake, request))
            self._made.append(made)
            if created:
                self._created.append((request, made))
            check_total(self._made)  # again, since files may have grown since preflight
            disks.append(made)
        self.plan = replace(self.plan, disks=disks)

    async def _unmake(self, request: DiskRequest, result: tuple[Disk, bool]) -> None:
        made, created = result
        if created:
            await self._backends.disks.unmake(request, made)
        await self._backends.disks.release([made])

    async def remove_new_files(self) -> None:
        """Remove the files that were created for disks, unless the tender may have written to them."""
        for request, made in self._created if not self._executed else ():
            await undo(self._backends.disks.unmake(request, made))

    async def release_disks(self) -> None:
        """Remove what private disks and bind mounts need during the start only."""
        if found := [*self._made, *self._bound]:  # otherwise the backend is not imported
            await undo(self._backends.disks.release(found))

    async def bind_disks(self) -> Sequence[Disk]:
        """Bind-mount the inspected disks, until systemd has made its own mounts of them."""
        if self.plan.disks:
            disks = self._backends.disks
            self._bound = await completed(disks.bind(self.plan.disks), disks.release)
        return self._bound

    async def open_files(self, unit: TransientUnit) -> tuple[int | None, int]:
        """Open the unit's stdin and stderr: the disk locks, since a tender never reads stdin, and a journal stream."""
        locks: list[int] = []
        self.undo.callback(lambda: [*map(os.close, locks)])  # PID 1 has its own copies
        await self.take_disks(locks)
        await self._units.start_journald(self.plan.log_namespace)
        stderr = await self._backends.console.open_stream(unit.name, STDERR_PRIORITY, self.plan.log_namespace)
        self.undo.callback(os.close, stderr)
        return locks[0] if locks else None, stderr

    async def open_image_and_disks(self) -> tuple[Plan, Sequence[int]]:
        """Open image and disks, lock the disks, and return the plan and the descriptors for the tender to inherit.

        Its paths are /proc/self/fd/N: the tender, another user, need not reach the files by their own paths, and gets
        the files that were inspected.
        """
        held: list[int] = []
        self.undo.close_on_failure(held)  # else they are the caller's: the locks last as long as the tender
        held.append(await self._backends.images.open(self.plan.image))
        image = replace(self.plan.image, path=f"/proc/self/fd/{held[-1]}")
        await self.take_disks(held)
        disks = []
        for disk in self.plan.disks:
            held.append(await self._backends.disks.open(disk))
            disks.append(replace(disk, path=f"/proc/self/fd/{held[-1]}"))
        return replace(self.plan, disks=disks, image=image), held

    async def take_disks(self, held: list[int]) -> None:
        """Lock the disks, until the descriptor that is added to `held` is closed, and make the user their owner.

        They are reclaimed when the user is freed.
        """
        if not self.plan.disks:
            return
        held.append(await self._backends.disks.lock(self.plan.disks, self._name))
        user = self.plan.user
        # Recorded before the first chown(2), so that a crash in between leaves no disk without a record.
        if given := [disk.given for disk in self.plan.disks if disk.given]:
            await self._users.record_disks(user, given)
        for disk in self.plan.disks:
            former = await self._backends.disks.change_owner(disk, user)
            if former in TASK_UIDS and former != user and disk.given:
                await self._users.disk_taken(former, disk.given)

    async def attach(self) -> None:
        """Attach the NICs before the unit is started, without a process of solo5-network@.service."""
        if self.plan.reservation.leases:
            await self._networks.attach(self._name)

    async def start_unit(self, unit: TransientUnit, *files: int | None) -> UnitState:
        """Start the unit, and return its run; raises NameTakenError, or StartError."""
        self._unit = unit.name
        try:
            with self._networks.start_mark(self._name) if self.plan.reservation.leases else nullcontext():
                begun = await self._units.start(unit, *files)
        except TakenError as error:
            raise NameTakenError(self._name) from error
        except JobFailedError as error:
            # A tender that exits at once can fail its own start job.
            state = await self._units.state(self._name) if error.result == "failed" else None
            if state is None or not state.executed:
                raise await self._start_error(error) from error
            # The tender was executed, and ended before the job did: the start succeeded, and the task has an outcome.
            begun = state
        self._executed = True
        return begun

    async def _start_error(self, error: JobFailedError) -> StartError:
        """Return the error of a failed job, with the last message of the unit that failed."""
        part, unit, namespace = ("tender", error.unit, self.plan.log_namespace)
        if error.result == "dependency":
            part, unit, namespace = ("network", network_service(self._name), "")
        messages = await self._backends.console.failure_messages(unit, namespace)
        quoted = messages[-1] if messages else f"job result {error.result!r}"
        return StartError(f"task {self._name} did not start: its {part} failed: {quoted}", f"See: journalctl -u {unit}")

    async def stop_unit(self) -> None:
        """Stop and discard the unit, under the lock of the user; without effect if no start of it was requested."""
        if self._unit:
            await self._units.stop(self._unit)
            await discard_locked(self._backends, self._name, self._unit)

    async def check_bound(self, begun: UnitState) -> None:
        """Check that the tender has the inspected disks: the path of one can change before systemd mounts it."""
        if self.plan.disks:
            bound = [(disk, sandbox_path(disk)) for disk in self.plan.disks]
            await self._backends.disks.check_bound(bound, begun.main_pid)
