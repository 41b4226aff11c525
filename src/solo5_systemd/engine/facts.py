"""Gather what a start depends on: all that it reads of the host, in one `Facts`.

`store_image` changes the image store, and nothing else is changed. `engine.plan` refuses before facts are read that its
refusal does not need.
"""

from solo5_systemd.base.declared_units import is_declared
from solo5_systemd.base.errors import StoreFullError, TakenError
from solo5_systemd.base.names import TaskName, UnitKind, own_task_name, task_scope, task_service
from solo5_systemd.engine.backends import Backends
from solo5_systemd.engine.plan import (
    check_workload,
    connections,
    needs_controllers,
    needs_resolver,
    resolver_networks,
)
from solo5_systemd.engine.queries import images_in_use
from solo5_systemd.host.drop_ins import check_drop_ins
from solo5_systemd.image.manifest import StoredImage
from solo5_systemd.image.store import ROOM_MIN_AGE_S
from solo5_systemd.settings.node_limits import Claim, Resource
from solo5_systemd.settings.resolver import UNSET
from solo5_systemd.task.properties import security_modules
from solo5_systemd.task.workload import MIB, Workload
from solo5_systemd.unit.tender import Facts


async def check_name(backends: Backends, workload: Workload) -> None:
    """Refuse the name of another task (TakenError), and drop-ins that set what the sandbox relies on (HostError)."""
    name = workload.name
    await check_free(backends, name)
    own_task_name(name)
    check_undeclared(name)
    check_drop_ins(task_service(name) if workload.kind is UnitKind.SERVICE else task_scope(name), declared=False)


def check_undeclared(name: TaskName) -> None:
    """Refuse the name of a declared task (TakenError)."""
    if is_declared(name):
        raise TakenError(
            f"task name {name!r} is that of a declared task: expected another one.",
            f"Start that task (systemctl start {name}), or remove its file from /etc/solo5.",
        )


async def check_free(backends: Backends, name: TaskName) -> None:
    """Refuse a name that has a unit; a declared task's own does not count.

    This is for an early error only: StartTransientUnit decides about concurrent starts of one name.
    """
    if await backends.units.is_taken(name):
        raise TakenError(f"task name {name!r} is taken.", f"Remove that task first: solo5ctl rm {name}")


async def gather(backends: Backends, workload: Workload, *, preview: bool = False) -> Facts:
    """Read all that a start depends on, and store the image; a preview stores nothing.

    Raises:
        Solo5Error: a fact cannot be read, or the plan refuses the workload already.
    """
    total_memory = await backends.usages.total_memory()
    check_workload(workload, total_memory)
    image = await store_image(backends, workload, preview=preview)
    nics, target = connections(workload, image).nics, image.manifest.target
    by_dhcp = backends.resolvers.by_dhcp([nic.network for nic in nics])
    named, networks = needs_resolver(workload, by_dhcp=by_dhcp), resolver_networks(nics)
    return Facts(
        total_memory=total_memory,
        image=image,
        tender=await backends.tenders.find(target),
        groups=await backends.tenders.groups(target, nics=bool(nics)),
        disks=[await backends.disks.inspect(disk, workload.tenant) for disk in workload.disks],
        user=backends.users.next_uid(),
        systemd=await backends.units.release(),
        log_namespace=backends.console.namespace(),
        security_modules=await backends.tenders.security_modules() if security_modules(workload.properties) else (),
        controllers=await backends.usages.controllers() if needs_controllers(workload) else (),
        by_dhcp=by_dhcp,
        resolver=await backends.resolvers.of(networks) if named else UNSET,
        ip_versions=backends.resolvers.versions(networks) if named and networks else frozenset(),
    )


async def store_image(backends: Backends, workload: Workload, *, preview: bool = False) -> StoredImage:
    """Store the image; if the store is full, retry once after unused images are removed. A preview stores nothing."""

    def admit(size: int) -> None:
        amounts = {f"{Resource.IMAGES}/new": size}
        backends.users.check_claim(workload.name, Claim(tenant=workload.tenant, amounts=amounts))

    largest = None if workload.policy is None else workload.policy.ceilings.image_mb * MIB
    request = workload.image, workload.roots, largest
    if preview:
        return await backends.images.preview(*request)
    try:
        return await backends.images.take(*request, admit)
    except StoreFullError:
        await backends.images.collect(await images_in_use(backends.units), min_age=ROOM_MIN_AGE_S)
        return await backends.images.take(*request, admit)
