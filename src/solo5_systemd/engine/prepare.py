"""Prepare the unit of a declared task, which PID 1 starts next: all of a start but StartTransientUnit.

What a start holds by descriptors of its process (locks of disks, of bind mounts, of private copies), PID 1 has to hold
here, since the process ends before the task does: they are returned, and stored with the preparing unit.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from solo5_systemd.base.declared_units import declared_service
from solo5_systemd.base.errors import InvalidRequestError, Solo5Error, TakenError
from solo5_systemd.base.names import task_service
from solo5_systemd.declared.unit_file import DEVICE_NODES
from solo5_systemd.declared.update_request import next_task
from solo5_systemd.engine.backends import Backends
from solo5_systemd.engine.facts import check_free, gather
from solo5_systemd.engine.plan import Plan, plan
from solo5_systemd.engine.start import Steps, Undo
from solo5_systemd.engine.stop import discard
from solo5_systemd.host.drop_ins import check_drop_ins
from solo5_systemd.network.model import NicRequest, PortRequest, Reservation
from solo5_systemd.network.remembered_addresses import LastRequest, declaration_digest, read_request, write_request
from solo5_systemd.task.workload import Workload
from solo5_systemd.unit.tender import Facts, Parts


async def prepare_start(
    backends: Backends, workload: Workload, report: Callable[[str], None]
) -> tuple[Parts, Sequence[int]]:
    """Make all that the unit of a task needs; undone if it fails.

    Args:
        report: is called with what the operator has to know of a preparation that succeeds.

    Returns:
        The parts of the unit, with disks at paths that only root can change, and descriptors, to be kept until the task
        has ended.

    Raises:
        Solo5Error: the task cannot start.
    """
    await check_free(backends, workload.name)
    check_drop_ins(declared_service(workload.name), declared=True)
    facts = await gather(backends, workload)
    _check_devices(workload, facts)
    planned = plan(workload, facts)
    async with Undo() as undoing:
        steps = _Preparation(backends, planned, undoing, report)
        await steps.hold_image()
        await steps.allocate_user(adopt=True)
        await steps.reserve()
        undoing.on_failure(steps.release_disks)
        undoing.on_failure(steps.remove_new_files)
        await steps.make_disks()
        bound = await steps.bind_disks()
        locks: list[int] = []
        undoing.close_on_failure(locks)
        await steps.take_disks(locks)
        await backends.units.start_journald(steps.plan.log_namespace)
        await steps.attach()
        return replace(steps.plan, disks=bound), [*(backends.disks.descriptors(bound) if bound else ()), *locks]


def _check_devices(workload: Workload, facts: Facts) -> None:
    """Refuse a block device to which the unit, written before it was looked at, does not give the tender access.

    systemd from 255 on executes no program of a unit with a blank in a path of DeviceAllow=.
    """
    declared = {request.disk: request.path for request in workload.disks}
    for disk in facts.disks:
        path = declared[disk.disk]
        if disk.device is not None and (not path.startswith(DEVICE_NODES) or " " in path):
            raise InvalidRequestError(
                f"disk {disk.disk} is a block device at {path!r}: expected a path below {DEVICE_NODES} without blanks, "
                "since systemd gives a unit access to no other.",
                f"Write {disk.path!r}." if disk.path.startswith(DEVICE_NODES) else "",
            )


class _Preparation(Steps):
    """The steps of one preparation."""

    def __init__(self, backends: Backends, planned: Plan, undoing: Undo, report: Callable[[str], None]) -> None:
        super().__init__(backends, planned, undoing)
        self._report = report

    async def reserve(self) -> None:
        """Reserve the addresses that the task had last, if it can have them; they are its own from then on.

        A restart keeps the lease. A changed request replaces it.
        """
        if not self.plan.request.nics:
            await self._networks.release(self._name)
            return
        self.plan = replace(self.plan, lent=await self._lent_ports())
        self.undo.on_failure(self.unreserve, by_name=True)
        lost = ""
        try:
            last = read_request(self._name)
        except Solo5Error as error:
            self._report(f"the addresses that the task had last are not known: {error}")
            last = LastRequest()
        wanted = tuple(map(last.with_addresses, self.plan.request.nics))
        try:
            reservation = await self._renewed(wanted)
        except (TakenError, InvalidRequestError) as error:  # another task's by now, or not of the network any more
            if wanted == tuple(self.plan.request.nics):
                raise
            lost = error.sentence
            reservation = await self._renewed(self.plan.request.nics)
        now = replace(reservation.request, names=self.plan.request.names)
        kept = LastRequest(**vars(now), declaration=declaration_digest(self._name))
        if kept != last:
            write_request(self._name, kept)
        if lost:
            has = ", ".join(str(address) for lease in reservation.leases for address in lease.addresses)
            self._report(f"the task has another address than before, {has}: {lost}")
        self.plan = self.plan.reserved(reservation)

    async def _renewed(self, nics: Sequence[NicRequest]) -> Reservation:
        had = await self._networks.reservation(self._name) is not None
        try:
            return await self.request_reservation(nics)
        except TakenError:
            if not had:
                raise
        await self._networks.release(self._name)
        return await self.request_reservation(nics)

    async def _lent_ports(self) -> Sequence[PortRequest]:
        """Return the ports that the guest beside the task has during an update; the task gets them back later.

        A guest beside it that has ended, or has other ports than are declared by now, is left of an update that failed:
        it is removed.
        """
        try:
            beside = next_task(self._name)
            found = await self._networks.record(beside)
        except InvalidRequestError:  # the name is too long: there is none
            return ()
        if found is None or not found.reservation.ports or found.lender != self._name:
            return ()
        held = found.reservation
        if {*held.ports} == {*self.plan.request.ports} and await self._units.is_running(beside):
            return held.ports
        await discard(self._backends, beside, unit=task_service(beside))
        return ()
