"""Prepare the unit of a declared task, which PID 1 starts next: all of a start but StartTransientUnit.

What a start holds by descriptors of its process (locks of disks, of bind mounts, of private copies), PID 1 has to hold
here, since the process ends before the task does: they are returned, and stored with the preparing unit.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from solo5_systemd.declared.update import next_task
from solo5_systemd.engine.start import MakeRoom, Plan, Starter, undo
from solo5_systemd.engine.task import NoCallbacks
from solo5_systemd.errors import InvalidRequestError, TakenError
from solo5_systemd.files.declared_units import declared_service
from solo5_systemd.host.drop_ins import check_drop_ins
from solo5_systemd.names import TaskName, task_service
from solo5_systemd.network.model import NicRequest, PortRequest, Reservation
from solo5_systemd.storage.model import Disk, DiskRequest, MadeDisk
from solo5_systemd.unit.tender import device_options, lasting_path
from solo5_systemd.unit.translate import each_argument
from solo5_systemd.workload import Workload

if TYPE_CHECKING:
    from solo5_systemd.engine.backends import Backends


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What the unit of a declared task finds.

    Attributes:
        plan: of the start.
        disks: at paths that only root can change.
        held: descriptors, to be kept until the task has ended.
    """

    plan: Plan
    disks: Sequence[Disk] = ()
    held: Sequence[int] = ()

    @property
    def devices(self) -> Sequence[str]:
        """Return the tender's options."""
        parts = self.plan.parts
        return device_options(parts.memory_mib, parts.reservation.leases, self.disks, lasting_path)

    @property
    def arguments(self) -> Sequence[str]:
        """Return one text for each argument of the workload; that of `{mirage}` has several words."""
        return each_argument(self.plan.parts)


class Preparer(Starter):
    """Prepares declared tasks.

    Args:
        backends: of the host.
        make_room: removes unused images from the image store, and returns their SHA-256.
        remembered: returns requests with the addresses that a task had last.
        remember: keeps the addresses of a reservation.
        report: logs a sentence about the task.
    """

    def __init__(
        self,
        backends: "Backends",
        make_room: MakeRoom,
        *,
        remembered: Callable[[Sequence[NicRequest]], Sequence[NicRequest]],
        remember: Callable[[Reservation], None],
        report: Callable[[str], None],
    ) -> None:
        super().__init__(backends, make_room)
        self._remembered = remembered
        self._remember = remember
        self._report = report

    async def prepare(self, workload: Workload) -> Prepared:
        """Make all that the unit of a task needs; undone if it fails.

        Raises:
            Solo5Error: the task cannot start.
        """
        async with self._prepared(workload, NoCallbacks()) as plan:
            made: list[tuple[DiskRequest, MadeDisk]] = []
            held: list[int] = []
            try:
                disks = [
                    await self._make(request, disk, made) if disk.planned else disk
                    for request, disk in zip(plan.parts.workload.disks, plan.disks, strict=True)
                ]
                bound = await self._disks.bind(disks)
                held = [each.descriptor for _, each in made if each.descriptor >= 0]
                held += [bound.descriptor] if bound.descriptor >= 0 else []
                if disks:
                    held.append(await self._disks.lock(disks, plan.name))
                    await self._give(disks, plan.parts.user)
                await self.journald(plan.log_namespace)
                async with self._attached(plan.reservation):
                    pass
            except BaseException:
                for request, each in made:
                    await undo(self._remove(request, each))
                    await undo(self._disks.release(each))
                raise
            plan = replace(plan, parts=replace(plan.parts, disks=disks))
            return Prepared(plan=plan, disks=bound.disks, held=held)

    async def _check_unit(self, workload: Workload) -> None:
        """Do not refuse the task's own name."""
        check_drop_ins(declared_service(workload.name), declared=True)

    async def _check_free(self, name: TaskName) -> None:
        """Adopt the user of the task's last start: no other start of this name can be in progress."""

    @asynccontextmanager
    async def _reserved(self, plan: Plan) -> AsyncGenerator[Reservation, None]:
        """Reserve the addresses that the task had last, if it can have them; they are its own from then on.

        A restart keeps the lease. A changed request replaces it.
        """
        if not plan.nics:
            await self._networks.release(plan.name)
            yield Reservation(task=plan.name)
            return
        lent = await self._lent_ports(plan)
        try:
            reservation = await self._reserve(replace(plan, ports=()) if lent else plan)
            yield replace(reservation, ports=tuple(lent) or reservation.ports)
        except BaseException:
            await undo(self._unreserve(plan.name))
            raise

    async def _lent_ports(self, plan: Plan) -> Sequence[PortRequest]:
        """Return the ports that the guest beside the task has during an update; the task gets them back later.

        A guest beside it that has ended, or has other ports than are declared by now, is left of an update that failed:
        it is removed.
        """
        try:
            beside = next_task(plan.name)
            held = await self._networks.reservation(beside)
        except InvalidRequestError:  # the name is too long: there is none
            return ()
        if held is None or not held.ports or await self._networks.lender(beside) != plan.name:
            return ()
        if {*held.ports} == {*plan.ports} and await self._units.is_running(beside):
            return held.ports
        await self._units.stop(task_service(beside))
        await self.discard(beside, unit=task_service(beside))
        return ()

    async def _reserve(self, plan: Plan) -> Reservation:
        wanted = tuple(self._remembered(plan.nics))
        lost = ""
        try:
            reservation = await self._renewed(plan, wanted)
        except (TakenError, InvalidRequestError) as error:  # another task's by now, or not of the network any more
            if wanted == tuple(plan.nics):
                raise
            lost = error.sentence
            reservation = await self._renewed(plan, plan.nics)
        self._remember(reservation)
        if lost:
            now = ", ".join(str(address) for lease in reservation.leases for address in lease.addresses)
            self._report(f"the task has another address than before, {now}: {lost}")
        return reservation

    async def _renewed(self, plan: Plan, nics: Sequence[NicRequest]) -> Reservation:
        request = plan.name, nics, plan.ports, self._names(plan), plan.parts.workload.namespace
        had = await self._networks.reservation(plan.name) is not None
        try:
            return await self._networks.reserve(*request)
        except TakenError:
            if not had:
                raise
        await self._networks.release(plan.name)
        return await self._networks.reserve(*request)
