"""Start tasks: preflight, reservation, StartTransientUnit.

Preflight stores the image and changes nothing else; a reservation expires; one StartTransientUnit call starts the unit.
After a failure each step is undone. If this process dies in between, systemd and solo5-networkd undo the rest.
"""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from solo5_systemd.engine.task import Preflight, SpawnProcess, StartCallbacks, Started
from solo5_systemd.errors import HostError, InvalidRequestError, Solo5Error, StartError, StoreFullError, TakenError
from solo5_systemd.files.declared_units import declared_service, forget_instance, is_declared, units_of
from solo5_systemd.host.drop_ins import check_drop_ins
from solo5_systemd.image.manifest import DeviceKind, Manifest, StoredImage, match
from solo5_systemd.names import (
    DeviceName,
    TaskName,
    UnitKind,
    journald_of,
    network_service,
    outcome_target,
    own_task_name,
    primary_nic,
    task_scope,
    task_service,
)
from solo5_systemd.network.guest_limits import Limits
from solo5_systemd.network.model import UNNAMED, GuestNames, NicRequest, PortRequest, Reservation
from solo5_systemd.sanitize import MAX_QUOTE, bounded, unit_file_syntax
from solo5_systemd.settings import operator_policy
from solo5_systemd.settings.limits import Claim, Resource
from solo5_systemd.settings.model import (
    DEFAULT_NETWORK,
    NAMESPACE_NETWORK,
    NO_NETWORK,
    REDIRECT_NETWORK,
    TASK_UIDS,
)
from solo5_systemd.settings.resolver import Resolver, reachable
from solo5_systemd.storage.archive import check_total
from solo5_systemd.storage.io_limits import NO_IO_LIMITS
from solo5_systemd.storage.model import Backing, BoundDisks, Disk, DiskRequest, MadeDisk
from solo5_systemd.unit.placeholders import uses_search, uses_servers
from solo5_systemd.unit.properties import JobFailedError, TransientUnit, UnitFiles, security_modules
from solo5_systemd.unit.property_types import INFINITY
from solo5_systemd.unit.state import ActiveState, Invocation, UnitState
from solo5_systemd.unit.tender import LAUNCHER, Tender, sandbox_path
from solo5_systemd.unit.translate import Parts, argv, log_fields, scope, service
from solo5_systemd.users.user_record import AllocatedUser, GivenDisk, RangeUsedUpError
from solo5_systemd.workload import MIB, Publish, Workload

if TYPE_CHECKING:
    from solo5_systemd.engine.backends import Backends


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a start makes: `solo5ctl run --dry-run` prints it, and `Starter` executes it.

    Attributes:
        parts: the inputs of the unit. Preflight leaves the reservation empty, and the user is the next one.
        nics: with all defaults filled in.
        ports: with the NIC of each.
        nft: the firewall elements, as nft(8) commands; in a preview only.
        pid: of the process in a scope.
    """

    parts: Parts
    nics: Sequence[NicRequest] = ()
    ports: Sequence[PortRequest] = ()
    nft: str = ""
    pid: int = 0

    @property
    def name(self) -> TaskName:
        """Return the name of the task."""
        return self.parts.workload.name

    @property
    def unit(self) -> TransientUnit:
        """Return the transient unit.

        Raises:
            InvalidRequestError: memory, arguments or a unit property are out of bounds.
        """
        if self.parts.workload.kind is UnitKind.SERVICE:
            return service(self.parts)
        return scope(self.parts, self.pid)

    @property
    def argv(self) -> tuple[str, ...]:
        """Return the command line to execute; raises as `unit`."""
        return argv(self.parts)

    @property
    def reservation(self) -> Reservation:
        """Return addresses, MACs, taps and ports; in a preview, as they would be reserved now."""
        return self.parts.reservation

    @property
    def image(self) -> StoredImage:
        """Return the stored image."""
        return self.parts.image

    @property
    def tender(self) -> Tender:
        """Return the tender program."""
        return self.parts.tender

    @property
    def disks(self) -> Sequence[Disk]:
        """Return the inspected disks."""
        return self.parts.disks

    @property
    def log_namespace(self) -> str:
        """Return the journal namespace of the console; empty: the host's journal."""
        return self.parts.log_namespace

    @property
    def preflight(self) -> Preflight:
        """Return the results of the checks, for the callbacks of a start."""
        return Preflight(
            image=self.parts.workload.image,
            sha256=self.image.sha256,
            manifest=self.image.facts.manifest,
            tender=self.tender,
            memory=self.parts.workload.memory // MIB,
            guest_memory=self.parts.memory_mib,
        )

    def started(self, unit: str, begun: Invocation) -> Started:
        """Return the started task."""
        return Started(
            state=UnitState(
                task=self.name,
                unit=unit,
                active=ActiveState.ACTIVE,
                invocation=begun.invocation,
                main_pid=begun.main_pid,
                started=begun.started,
                control_group=begun.control_group,
                log_fields=log_fields(self.parts),
            ),
            reservation=self.reservation if self.reservation.leases else None,
        )


class MakeRoom(Protocol):
    """A function that removes unused images from the image store."""

    async def __call__(self, *, dry_run: bool) -> Sequence[str]:
        """Return the SHA-256 of the images, which a dry run does not remove."""


FindImage = Callable[[Workload], Awaitable[StoredImage]]
"""A function that returns the stored image of a workload."""


@dataclass(kw_only=True)
class _Made:
    """The plan of a start with all its disks.

    Attributes:
        plan: of the start.
        used: the tender was executed: what it may have written is kept.
    """

    plan: Plan
    used: bool = False


@dataclass(kw_only=True)
class _Finished:
    """The unit of a start that has succeeded; empty: it has not yet."""

    unit: str = ""


class _NameTakenError(TakenError):
    """A concurrent start of the same name has made its unit: its resources must not be undone by this start."""


class Starter:
    """Starts and discards tasks.

    Args:
        backends: of the host.
        make_room: removes unused images from the image store, and returns their SHA-256.
    """

    def __init__(self, backends: "Backends", make_room: MakeRoom) -> None:
        self._make_room = make_room
        self._images = backends.images
        self._tenders = backends.tenders
        self._disks = backends.disks
        self._users = backends.users
        self._networks = backends.networks
        self._units = backends.units
        self._console = backends.console
        self._resolvers = backends.resolvers
        self._usages = backends.usages
        self._undoing: set[asyncio.Future[None]] = set()

    async def preview(self, workload: Workload) -> Plan:
        """Return what a start would make. Nothing is reserved or started.

        Raises:
            Solo5Error: as `service`.
        """
        plan = await self._check(workload, self._preview_image)
        self._users.check_claim(workload.name, _claim(plan))
        if not plan.nics:
            return plan
        seen = await self._networks.preview(workload.name, plan.nics, plan.ports, workload.namespace)
        return replace(plan, parts=_reserved_parts(plan.parts, seen.reservation), nft=seen.nft)

    async def check_declared(self, workload: Workload) -> None:
        """Check what the preparation of a declared task checks, whether the task runs or not. Nothing is reserved.

        Raises:
            Solo5Error: the task cannot start now.
        """
        check_drop_ins(declared_service(workload.name), declared=True)
        plan = await self._planned(workload, self._preview_image)
        self._users.check_claim(workload.name, _claim(plan))
        if plan.nics and await self._networks.reservation(workload.name) is None:
            await self._networks.preview(workload.name, plan.nics, plan.ports, workload.namespace)

    @asynccontextmanager
    async def service(self, workload: Workload, progress: StartCallbacks) -> AsyncGenerator[Started, None]:
        """Start a service; stop and discard it if the block raises.

        Raises:
            Solo5Error: it did not start.
        """
        async with (
            self._prepared(workload, progress) as prepared,
            self._finished(workload.name) as finished,
            self._made(prepared) as made,
            self._bound(made.plan.disks) as disks,
        ):
            plan = made.plan
            unit = replace(plan, parts=replace(plan.parts, disks=disks)).unit
            async with self._files(plan, unit.name) as files, self._attached(plan.reservation):
                progress.on_step("starting its unit")
                seen = [(disk, sandbox_path(disk)) for disk in plan.disks]
                async with self._started(plan, unit, files) as begun:
                    made.used = True
                    # Again after the start: the path of a disk can change before systemd mounts it.
                    await self._disks.check_bound(seen, begun.main_pid)
                    yield plan.started(unit.name, begun)
                finished.unit = unit.name

    @asynccontextmanager
    async def scope(
        self, workload: Workload, spawn: SpawnProcess, progress: StartCallbacks
    ) -> AsyncGenerator[Started, None]:
        """Start a scope with the process of `spawn` in it; otherwise as `service`."""
        async with (
            self._prepared(workload, progress) as prepared,
            self._finished(workload.name) as finished,
            self._made(prepared) as made,
            self._held(made.plan) as (image, disks, fds),
            self._attached(made.plan.reservation),
        ):
            plan = made.plan
            progress.on_step("starting its unit")
            line = argv(replace(plan.parts, image=image, disks=disks))
            async with spawn(line, fds, plan.log_namespace) as pid:
                unit = replace(plan, pid=pid).unit
                async with self._started(plan, unit, UnitFiles()) as begun:
                    made.used = True
                    yield plan.started(unit.name, begun)
                finished.unit = unit.name

    @asynccontextmanager
    async def _prepared(self, workload: Workload, progress: StartCallbacks) -> AsyncGenerator[Plan, None]:
        """Run preflight, allocate the user and reserve the network; undo both if the block raises."""
        progress.on_step("checking the image and what it needs")
        plan = await self._check(workload, self._image)
        held = await self._images.hold(plan.image)  # until the unit shows that it is in use
        try:
            async with self._allocated(plan) as user:
                progress.on_preflight(plan.preflight)
                progress.on_step("reserving addresses")
                async with self._reserved(plan) as reservation:
                    progress.on_leases(reservation.leases)
                    progress.on_step("attaching its network")
                    yield replace(plan, parts=replace(_reserved_parts(plan.parts, reservation), user=user))
        finally:
            os.close(held)

    @asynccontextmanager
    async def _allocated(self, plan: Plan) -> AsyncGenerator[int, None]:
        """Allocate the task's user, held until the unit exists, and record what it takes; undo if the block raises."""
        name = plan.name
        try:
            held = await self._user(name)
        except asyncio.CancelledError:  # the allocation may have completed nevertheless
            await undo(self._free_user(name))
            raise
        try:
            # A user that exists already can be that of a concurrent start, whose unit preflight did not see.
            if held.adopted:
                await self._check_free(name)
            await self._users.claim(name, _claim(plan))
            yield held.uid
        except _NameTakenError:  # the user belongs to the other start
            os.close(held.descriptor)
            raise
        except BaseException:
            await undo(self._free_user(name, held.descriptor))
            raise
        # The lock of the user; from here on its unit shows that it is in use.
        os.close(held.descriptor)

    async def _user(self, name: TaskName) -> AllocatedUser:
        """Allocate a user; if none is free, retry once after the users of tasks without a unit are freed."""
        try:
            return await self._users.acquire(name)
        except RangeUsedUpError:
            await self._users.collect(self._units.names, self._networks.forget)
            await self._users.reclaim()
            return await self._users.acquire(name)

    async def _check_free(self, name: TaskName) -> None:
        """Check again that the name has no unit, now under the user's lock.

        A concurrent start may have finished between preflight and the lock. User, addresses and disks are its then, and
        a failure of this start must not undo them.
        """
        if await self._units.is_taken(name):
            raise _NameTakenError(
                f"task name {name!r} has just been taken: expected a name that no task has.",
                f"See: solo5ctl inspect {name}",
            )

    async def _free_user(self, name: TaskName, held: int | None = None) -> None:
        """Free the user, unless its unit runs: that of a concurrent start, or one that could not be stopped."""
        try:
            is_running = await self._units.is_running(name)
        except BaseException:
            _close(held)
            raise
        if is_running:
            _close(held)
        else:
            await self._users.release(name, held)

    @asynccontextmanager
    async def _made(self, plan: Plan) -> AsyncGenerator[_Made, None]:
        """Make the disks that preflight has planned.

        A file that is created stays, unless the block raises before the tender was executed. The names of private disks
        are removed when the block ends: the unit has its own mounts of them by then.
        """
        if not any(disk.planned for disk in plan.disks):
            yield _Made(plan=plan)
            return
        new: list[tuple[DiskRequest, MadeDisk]] = []
        made = _Made(plan=plan)
        try:
            disks = [
                await self._make(request, disk, new) if disk.planned else disk
                for request, disk in zip(plan.parts.workload.disks, plan.disks, strict=True)
            ]
            made.plan = replace(plan, parts=replace(plan.parts, disks=disks))
            yield made
        except BaseException:
            for request, each in new if not made.used else ():
                await undo(self._remove(request, each))
            raise
        finally:
            for _, each in new:
                await undo(self._disks.release(each))

    async def _make(self, request: DiskRequest, planned: Disk, new: list[tuple[DiskRequest, MadeDisk]]) -> Disk:
        """Make a disk, and add it to `new`, which the caller undoes.

        Raises:
            Solo5Error: it cannot be made, or is an archive with which those of the task are too large.
        """
        making = asyncio.ensure_future(self._disks.make(request, planned))
        try:
            made = await asyncio.shield(making)
        except asyncio.CancelledError:
            # The thread goes on, and may hang in a file system: what it makes is removed when it returns.
            self._undo_later(self._unmake(request, making))
            raise
        new.append((request, made))
        check_total(each.disk for _, each in new)  # again, since files may have grown since preflight
        return made.disk

    async def _unmake(self, request: DiskRequest, making: Awaitable[MadeDisk]) -> None:
        made = await making
        await self._remove(request, made)
        await self._disks.release(made)

    async def _remove(self, request: DiskRequest, made: MadeDisk) -> None:
        if made.created:
            await self._disks.unmake(request, made.disk)

    def _undo_later(self, undoing: Coroutine[object, object, None]) -> None:
        """Undo a step of a cancelled start in the background, once its thread returns."""
        later = asyncio.ensure_future(undo(undoing))
        self._undoing.add(later)
        later.add_done_callback(self._undoing.discard)

    @asynccontextmanager
    async def _bound(self, disks: Sequence[Disk]) -> AsyncGenerator[Sequence[Disk], None]:
        """Bind-mount the inspected disks, until systemd has made its own mounts of them."""
        binding = asyncio.ensure_future(self._disks.bind(disks))
        try:
            bound = await asyncio.shield(binding)
        except asyncio.CancelledError:
            # The thread goes on, and may hang in a file system: its mounts are removed when it returns.
            self._undo_later(self._unbind(binding))
            raise
        try:
            yield bound.disks
        finally:
            await asyncio.shield(self._disks.unbind(bound))

    async def _unbind(self, binding: Awaitable[BoundDisks]) -> None:
        await self._disks.unbind(await binding)

    @asynccontextmanager
    async def _held(self, plan: Plan) -> AsyncGenerator[tuple[StoredImage, Sequence[Disk], Sequence[int]], None]:
        """Open image and disks, lock the disks, and yield them with the file descriptors for the tender to inherit.

        Their paths are /proc/self/fd/N: the tender, another user, need not reach the files by their own paths, and gets
        the files that were inspected. The descriptors are closed if the block raises.
        """
        held: list[int] = []
        seen: list[Disk] = []
        try:
            held.append(await self._images.open(plan.image))
            image = replace(plan.image, path=f"/proc/self/fd/{held[-1]}")
            if plan.disks:
                held.append(await self._disks.lock(plan.disks, plan.name))
                await self._give(plan.disks, plan.parts.user)
            for disk in plan.disks:
                held.append(await self._disks.open(disk))
                seen.append(replace(disk, path=f"/proc/self/fd/{held[-1]}"))
            yield image, seen, held
        except BaseException:  # otherwise they are the caller's: the disk locks last as long as the tender
            for fd in held:
                os.close(fd)
            raise

    async def _give(self, disks: Sequence[Disk], user: int) -> None:
        """Make the user the owner of the disks, which are locked."""
        # Recorded before the first chown(2), so that a crash in between leaves no disk without a record.
        given = {disk.disk: _given(disk) for disk in disks if not disk.is_private}
        if given:
            await self._users.record_disks(user, list(given.values()))
        for disk in disks:
            former = await self._disks.change_owner(disk, user)
            if former in TASK_UIDS and former != user and disk.disk in given:
                await self._users.disk_taken(former, given[disk.disk])

    async def discard(self, name: TaskName, *, keep: bool = False, unit: str = "") -> None:
        """Remove the outcome, the network and the user of a task that is not running.

        Args:
            name: of the task.
            keep: keep the outcome and the user.
            unit: its service or scope; empty: either.
        """
        if keep:  # a retained service can be started again by systemctl
            await self._release(name)
            await self._users.end_claim(name)
            return
        # Once the unit is gone, another start may use the name: it would lose what is removed here by the name.
        async with self._users.removal(name):
            await self._discard(name, unit)

    async def _discard(self, name: TaskName, unit: str) -> None:
        """Remove all but the user; the caller has its lock."""
        await self._units.stop(outcome_target(name))
        await self._units.reset_failed([unit] if unit else units_of(name))
        await self._release(name)
        await self._networks.forget(name)
        forget_instance(name)

    async def _release(self, name: TaskName) -> None:
        """Release the network: solo5-networkd does so when a unit has ended; this waits, and covers one without a unit.

        The lease record is read first: the call activates the service.
        """
        if await self._networks.reservation(name) is not None:
            await self._networks.release(name)

    async def _check(self, workload: Workload, find_image: FindImage) -> Plan:
        """Run preflight: find every predictable failure before anything is created.

        Args:
            workload: the task.
            find_image: `_image` or `_preview_image`.
        """
        # For an early error only: StartTransientUnit decides about concurrent starts of one name.
        if await self._units.is_taken(workload.name):
            raise TakenError(
                f"task name {workload.name!r} is taken: expected a name that no task has.",
                f"Remove that task first: solo5ctl rm {workload.name}",
            )
        await self._check_unit(workload)
        return await self._planned(workload, find_image)

    async def _planned(self, workload: Workload, find_image: FindImage) -> Plan:
        _fit_for_unit(_texts(workload))
        has = await self._usages.total_memory()
        if workload.memory > has:
            raise InvalidRequestError(
                f"memory {workload.memory // MIB}M is more than this host has: expected at most {has // MIB}M."
            )
        if workload.memory_max is not None and workload.memory_max < workload.memory:
            raise InvalidRequestError(
                f"memory_max {workload.memory_max // MIB}M is less than memory {workload.memory // MIB}M: "
                "expected as much or more."
            )
        image = await find_image(workload)
        manifest = image.facts.manifest
        nics = workload.nics or _default_nics(manifest)
        match(manifest, [nic.nic for nic in nics], [disk.disk for disk in workload.disks])
        nics = _with_limits(_in_manifest_order(_in_namespace(workload, nics), manifest), workload.limits)
        if workload.tender not in (None, manifest.target):
            raise InvalidRequestError(
                f"tender {workload.tender} cannot run {workload.image}: expected {manifest.target}, "
                "which it is built for."
            )
        ports = _ports(workload, nics)
        # With all defaults filled in: a ceiling limits the task, however little of it the request contains.
        operator_policy.check(workload.policy, _effective_request(workload, image, nics, ports))
        tender = await self._tenders.find(manifest.target, manifest.abi_version)
        groups = await self._tenders.groups(manifest.target, nics=bool(nics))
        await self._protected(workload)
        _check_archives(workload)
        disks = [await self._disks.inspect(request) for request in workload.disks]
        check_total(disks)
        _check_loops(disks, tender)
        await self._limitable(workload)
        # A second time, for the resolved paths: a symbolic link can lead to any text.
        _fit_for_unit(_resolved(disks))
        parts = Parts(
            workload=workload,
            image=image,
            tender=tender,
            reservation=Reservation(task=workload.name),
            user=self._users.next_uid(),
            systemd=await self._units.release(),
            groups=groups,
            disks=disks,
            log_namespace=self._console.namespace(),
            resolver=await self._resolver(workload, nics),
        )
        plan = Plan(parts=parts, nics=nics, ports=ports)
        # Memory and properties do not depend on the reservation: refuse them before it is made. Arguments do.
        _ = replace(plan, parts=replace(parts, workload=replace(workload, arguments=()))).unit
        return plan

    async def _check_unit(self, workload: Workload) -> None:
        """Refuse the name of a declared task, and drop-ins that would change the unit."""
        name = workload.name
        own_task_name(name)
        if is_declared(name):
            raise TakenError(
                f"task name {name!r} is that of a declared task: expected another one.",
                f"Start that task (systemctl start {name}), or remove its file from /etc/solo5.",
            )
        unit = task_service(name) if workload.kind is UnitKind.SERVICE else task_scope(name)
        check_drop_ins(unit, declared=False)

    async def _image(self, workload: Workload) -> StoredImage:
        """Store the image; if the store is full, retry once after unused images are removed."""

        def admit(size: int) -> None:
            amounts = {f"{Resource.IMAGES}/new": size}
            self._users.check_claim(workload.name, Claim(tenant=workload.tenant, amounts=amounts))

        request = workload.image, workload.roots, workload.policy.image, admit
        try:
            return await self._images.take(*request)
        except StoreFullError:
            await self._make_room(dry_run=False)
            return await self._images.take(*request)

    async def _preview_image(self, workload: Workload) -> StoredImage:
        """Return what `_image` would return."""
        request = workload.image, workload.roots, workload.policy.image
        try:
            return await self._images.preview(*request)
        except StoreFullError:
            return await self._images.preview(*request, removable=await self._make_room(dry_run=True))

    async def _resolver(self, workload: Workload, nics: Sequence[NicRequest]) -> Resolver:
        """Return the workload's name servers and search domains, completed by those of its networks and the host.

        Those are of the versions of IP that the guest has.
        """
        by_dhcp = self._resolvers.by_dhcp([nic.network for nic in nics])
        if not (uses_servers(workload.arguments) or uses_search(workload.arguments) or by_dhcp):
            return workload.resolver
        primary = primary_nic([nic.nic for nic in nics])
        ordered = sorted(nics, key=lambda nic: nic.nic != primary)
        networks = [nic.network for nic in ordered]
        found = workload.resolver | await self._resolvers.of(networks)
        if workload.namespace:  # its leases show whether it has IPv6
            return found
        return reachable(found, self._resolvers.versions(networks)) if networks else found

    def _names(self, plan: Plan) -> GuestNames:
        """Return what the guest gets by DHCP besides its lease."""
        if not self._resolvers.by_dhcp([nic.network for nic in plan.nics]):
            return UNNAMED
        return GuestNames(resolver=plan.parts.resolver, hostname=plan.parts.workload.hostname)

    async def _protected(self, workload: Workload) -> None:
        """Refuse a security profile that systemd would silently ignore, since its module is not enabled."""
        needed = security_modules(workload.properties)
        enabled = await self._tenders.security_modules() if needed else ()
        for key, module in needed.items():
            if module not in enabled:
                raise InvalidRequestError(
                    f"unit property {key} has no effect on this host: expected a kernel with {module} enabled.",
                    "See /sys/kernel/security/lsm.",
                )

    async def _limitable(self, workload: Workload) -> None:
        """Refuse I/O limits that the kernel would not enforce, unless the operator permits it."""
        limited = [disk for disk in workload.disks if disk.io != NO_IO_LIMITS]
        if limited and not workload.policy.unenforced_io and "io" not in await self._usages.controllers():
            raise InvalidRequestError(
                f"disk {limited[0].disk} has I/O limits ({limited[0].io}), which this host does not enforce: expected "
                "the io controller of cgroup v2.",
                "See solo5ctl doctor; plugin.solo5.config.allow_missing_controllers permits limits without effect.",
            )

    @asynccontextmanager
    async def _reserved(self, plan: Plan) -> AsyncGenerator[Reservation, None]:
        name = plan.name
        if not plan.nics:
            yield Reservation(task=name)
            return
        try:
            reservation = await self._networks.reserve(
                name, plan.nics, plan.ports, self._names(plan), plan.parts.workload.namespace
            )
        except (HostError, asyncio.CancelledError):  # without a reply it may have been made nevertheless
            await undo(self._unreserve(name))
            raise
        try:
            yield reservation
        except _NameTakenError:  # the reservation belongs to the other start
            raise
        except BaseException:
            await undo(self._unreserve(name))
            raise

    async def _unreserve(self, name: TaskName) -> None:
        await self._networks.release(name)
        await self._networks.forget(name)

    @asynccontextmanager
    async def _attached(self, reservation: Reservation) -> AsyncGenerator[None, None]:
        """Attach before StartTransientUnit, without a process of solo5-network@.service. `_reserved` undoes it."""
        if reservation.leases:
            await self._networks.attach(reservation.task)
        yield

    @asynccontextmanager
    async def _files(self, plan: Plan, unit: str) -> AsyncGenerator[UnitFiles, None]:
        """Open the unit's stdin and stderr: the disk locks, since a tender never reads stdin, and a journal stream."""
        fds: list[int] = []
        try:
            if plan.disks:
                fds.append(await self._disks.lock(plan.disks, plan.name))
                await self._give(plan.disks, plan.parts.user)
            stdin = fds[0] if fds else None
            fds.append(await self._console.open_stderr(unit, await self.journald(plan.log_namespace)))
            yield UnitFiles(stdin=stdin, stderr=fds[-1])
        finally:  # PID 1 has its own copies
            for fd in fds:
                os.close(fd)

    async def namespace(self) -> str:
        """Start the journald of new tasks' journal namespace; return the namespace, empty for the host's journal."""
        return await self.journald(self._console.namespace())

    async def journald(self, namespace: str) -> str:
        """Start the journald of a namespace and return it: streams are opened before LogNamespace= would start it."""
        if namespace:
            await self._units.ensure_started(journald_of(namespace))
        return namespace

    @asynccontextmanager
    async def _started(self, plan: Plan, unit: TransientUnit, files: UnitFiles) -> AsyncGenerator[Invocation, None]:
        try:
            yield await self._start(plan, unit, files)
        except _NameTakenError:  # the unit belongs to the other start
            raise
        except BaseException:
            await undo(self._stop_and_discard(plan.name, unit.name))
            raise

    async def _stop_and_discard(self, name: TaskName, unit: str) -> None:
        """Undo the start of a unit, under the lock of the start."""
        await self._units.stop(unit)
        await self._discard(name, unit)

    @asynccontextmanager
    async def _finished(self, name: TaskName) -> AsyncGenerator[_Finished, None]:
        """Stop the unit of a start that has succeeded and is cancelled while its last steps are undone."""
        finished = _Finished()
        try:
            yield finished
        except BaseException:
            if finished.unit:
                await undo(self._stop_and_discard(name, finished.unit))
            raise

    async def _start(self, plan: Plan, unit: TransientUnit, files: UnitFiles) -> Invocation:
        name = plan.name
        try:
            with self._networks.start_mark(name) if plan.reservation.leases else nullcontext():
                return await self._units.start(unit, files)
        except TakenError as error:
            raise _NameTakenError(
                f"task name {name!r} has just been taken: expected a name that no task has.",
                f"See: systemctl status {unit.name}",
            ) from error
        except JobFailedError as error:
            # A tender that exits at once can fail its own start job.
            state = await self._units.state(name) if error.result == "failed" else None
            if state is None or not state.executed:
                raise await self._start_error(plan, error) from error
            # The tender was executed, and ended before the job did: the start succeeded, and the task has an outcome.
            return Invocation(invocation=state.invocation, main_pid=0, started=state.started, control_group="")

    async def _start_error(self, plan: Plan, error: JobFailedError) -> StartError:
        """Return the error of a failed job, with the last message of the unit that failed."""
        name = plan.name
        part, unit, namespace = ("tender", error.unit, plan.log_namespace)
        if error.result == "dependency":
            part, unit, namespace = ("network", network_service(name), "")
        messages = await self._console.failure_messages(unit, namespace)
        quoted = messages[-1] if messages else f"job result {error.result!r}"
        return StartError(f"task {name} did not start: its {part} failed: {quoted}", f"See: journalctl -u {unit}")


def _close(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)


def _given(disk: Disk) -> GivenDisk:
    return GivenDisk(disk.path, *disk.identity, disk.filesystem, disk.mount, disk.owner)


async def undo(undoing: Coroutine[object, object, None]) -> None:
    """Undo a step, also during a second cancellation. An error of it is dropped: the first error is reported."""
    with suppress(Solo5Error):
        await asyncio.shield(undoing)


def _fit_for_unit(texts: Iterable[tuple[str, str]]) -> None:
    """Refuse text that `bus.checked_call` would refuse, with an error that names the workload's field."""
    for what, text in texts:
        fault = unit_file_syntax(text)
        if fault:
            raise InvalidRequestError(
                f"{what} “{bounded(text, MAX_QUOTE)}” has {fault}: expected text without control characters and "
                "without a backslash at its end, which systemd would parse as unit file syntax."
            )


def _texts(workload: Workload) -> Iterator[tuple[str, str]]:
    yield from (("argument", argument) for argument in workload.arguments)
    yield from (("disk path", disk.path) for disk in workload.disks)
    yield from (("journal field", f"{key}={value}") for key, value in workload.log_fields)


def _check_archives(workload: Workload) -> None:
    """Refuse archives for a scope: systemd does not keep its tender, with the guest's memory, out of core dumps."""
    for disk in workload.disks:
        if workload.kind is UnitKind.SCOPE and disk.archive is not None:
            raise InvalidRequestError(
                f"disk {disk.disk} of a scope is an archive of files: expected a service, which dumps no core.",
                "Run the task as a service.",
            )


def _check_loops(disks: Iterable[Disk], tender: Tender) -> None:
    """Refuse a loop device where no filter keeps its tender from detaching it (LOOP_CLR_FD).

    The tender would read and write what is attached to the number next.
    """
    for disk in disks:
        if disk.device is not None and not tender.launcher and any(on.name.startswith("loop") for on in disk.devices):
            raise HostError(
                f"disk {disk.disk}: {disk.path!r} is a loop device, which a tender could have another file behind: "
                f"expected {LAUNCHER}, whose filter prevents it.",
                "Install solo5-confine (Debian), or use the file itself as the disk.",
            )


def _resolved(disks: Iterable[Disk]) -> Iterator[tuple[str, str]]:
    """Yield the resolved paths of disks."""
    yield from (("disk path", disk.path) for disk in disks)


def _default_nics(manifest: Manifest) -> tuple[NicRequest, ...]:
    return tuple(NicRequest(nic=name) for name in manifest.names(DeviceKind.NET_BASIC))


def _reserved_parts(parts: Parts, reservation: Reservation) -> Parts:
    """Return parts with a reservation; of a guest in a namespace, with the name servers that it has addresses for.

    Raises:
        InvalidRequestError: none is left.
    """
    resolver = parts.resolver
    if parts.workload.namespace and reservation.leases and uses_servers(parts.workload.arguments):
        resolver = reachable(resolver, _versions(reservation) or {4})
    return replace(parts, reservation=reservation, resolver=resolver)


def _versions(reservation: Reservation) -> frozenset[int]:
    """Return the versions of IP of the leased addresses."""
    return frozenset(address.version for lease in reservation.leases for address in lease.addresses)


def _in_namespace(workload: Workload, nics: Sequence[NicRequest]) -> Sequence[NicRequest]:
    """Return the NICs on the network of the workload's namespace, if it has one.

    Raises:
        InvalidRequestError: a NIC has a network of the host, or a scope would run in the caller's namespace.
    """
    if not workload.namespace:
        return nics
    if workload.kind is UnitKind.SCOPE:
        raise InvalidRequestError(
            f"task {workload.name} is a scope in network namespace {workload.namespace}: expected a service, which "
            "systemd executes there.",
            "Run it as a service, or without a network namespace.",
        )
    kept = (REDIRECT_NETWORK, NO_NETWORK)
    for nic in nics:
        if nic.network not in (DEFAULT_NETWORK, NAMESPACE_NETWORK, *kept):
            raise InvalidRequestError(
                f"NIC {nic.nic} is on network {nic.network}, which is not in network namespace {workload.namespace}: "
                "expected default, redirect or none.",
                "Remove the NIC's network, or run the task without a network namespace.",
            )
    return tuple(nic if nic.network in kept else replace(nic, network=NAMESPACE_NETWORK) for nic in nics)


def _effective_request(
    workload: Workload, image: StoredImage, nics: Sequence[NicRequest], ports: Sequence[PortRequest]
) -> operator_policy.EffectiveRequest:
    """Return the request with all defaults, and the facts of the image, filled in."""
    memory_max = workload.memory if workload.memory_max is None else workload.memory_max
    return operator_policy.EffectiveRequest(
        unit=workload.kind,
        tender=image.facts.manifest.target,
        memory=workload.memory,
        memory_max=None if memory_max == INFINITY else memory_max,
        nics={nic.nic: nic.network for nic in nics},
        disks=len(workload.disks),
        ports=_number_of_ports(ports),
        image=image.size,
        named_disks={disk.disk: disk.name for disk in workload.disks if disk.name is not None},
        new_disk=max((disk.create.size for disk in workload.disks if disk.create is not None), default=0),
    )


def _claim(plan: Plan) -> Claim:
    """Return what a task takes of the node. Addresses are the host's: a namespace of others has its own."""
    networks = [] if plan.parts.workload.namespace else [nic.network for nic in plan.nics]
    copies = [disk for disk in plan.disks if disk.backing is Backing.COPY]
    return Claim(
        tenant=plan.parts.workload.tenant,
        amounts={
            Resource.TASKS: 1,
            Resource.PORTS: _number_of_ports(plan.ports),
            Resource.COPIES: sum(disk.size for disk in copies),
            Resource.COPIED: sum(disk.copied for disk in copies),
            Resource.ARCHIVES: sum(disk.size for disk in plan.disks if disk.backing is Backing.ARCHIVE),
            f"{Resource.IMAGES}/{plan.image.sha256}": plan.image.size,
            **{f"{Resource.ADDRESSES}/{name}": count for name, count in Counter(networks).items()},
        },
    )


def _number_of_ports(ports: Sequence[PortRequest]) -> int:
    """Return the number of host ports; TCP and UDP of one port count once."""
    return len({(port.host_ip, port.host_port) for port in ports})


def _in_manifest_order(nics: Sequence[NicRequest], manifest: Manifest) -> tuple[NicRequest, ...]:
    """Return NICs in the order of the image's manifest."""
    names = manifest.names(DeviceKind.NET_BASIC)
    return tuple(sorted(nics, key=lambda nic: names.index(nic.nic)))


def _with_limits(nics: Sequence[NicRequest], limits: Limits) -> tuple[NicRequest, ...]:
    """Return the NICs, each with its own egress and rate limits or else the task's."""
    return tuple(replace(nic, limits=nic.limits.or_else(limits)) for nic in nics)


def _ports(workload: Workload, nics: Sequence[NicRequest]) -> tuple[PortRequest, ...]:
    """Return each published port with its NIC: the requested one, or else `service`, or else the image's first."""
    names = [nic.nic for nic in nics]
    implied = primary_nic(names)
    published = workload.publish if names else [publish for publish in workload.publish if not publish.implied]
    return tuple(publish.to(_checked_nic(publish, names, publish.nic or implied)) for publish in published)


def _checked_nic(publish: Publish, names: Sequence[DeviceName], nic: DeviceName | None) -> DeviceName:
    if nic is not None and nic in names:
        return nic
    if not names:
        raise InvalidRequestError(
            f"port {publish.host_port} is published, and the image has no NIC: expected no port, or an image with one.",
            "`solo5ctl image PATH` shows the devices of an image.",
        )
    raise InvalidRequestError(
        f"port {publish.host_port} is published to NIC {nic}: expected one of the image's NICs ({', '.join(names)}).",
        "Write it as NIC:HOSTPORT:PORT.",
    )
