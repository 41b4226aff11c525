"""Decide what a start makes, or refuse it. No function here reads anything but its arguments.

`engine.facts` reads the facts and calls two of these checks itself as well: what is refused without a fact is refused
before that fact is read. A refusal is an InvalidRequestError, or a HostError if the host lacks what keeps tasks apart.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from solo5_systemd.base.errors import HostError, InvalidRequestError
from solo5_systemd.base.names import NetworkName, UnitKind, primary_nic
from solo5_systemd.base.sanitize import MAX_QUOTE, bounded, unit_file_syntax
from solo5_systemd.engine.task import Phase, Task
from solo5_systemd.image.manifest import StoredImage, match
from solo5_systemd.network.model import GuestNames, NicRequest, PortRequest, Request, Reservation
from solo5_systemd.settings.network import DEFAULT_NETWORK, NAMESPACE_NETWORK, NO_NETWORK
from solo5_systemd.settings.node_limits import Claim, Resource
from solo5_systemd.settings.resolver import Resolver, reachable
from solo5_systemd.storage.archive import check_total
from solo5_systemd.storage.io_limits import NO_IO_LIMITS
from solo5_systemd.storage.model import Backing
from solo5_systemd.task.placeholders import SEARCH, SERVERS, used
from solo5_systemd.task.properties import TransientUnit, security_modules
from solo5_systemd.task.property_types import INFINITY
from solo5_systemd.task.workload import MIB, Workload
from solo5_systemd.unit.state import UnitState
from solo5_systemd.unit.tender import LAUNCHER, Facts, Parts
from solo5_systemd.unit.translate import argv, scope, service

if TYPE_CHECKING:
    from solo5_systemd.task.policy import Ceilings, Policy


@dataclass(frozen=True, kw_only=True)
class Plan(Parts):
    """What a start makes: `solo5ctl run --dry-run` prints it, and `engine.start` executes it.

    It has no reservation at first (a preview: as it would be made now), and the user is the next one.

    Attributes:
        request: for its network, with all defaults filled in.
        lent: published ports that another guest has until they are moved, which are not reserved.
        nft: the firewall elements, as nft(8) commands; in a preview only.
    """

    request: Request
    lent: Sequence[PortRequest] = ()
    nft: str = ""
    pid: int = 0

    @property
    def unit(self) -> TransientUnit:
        """Return the transient unit."""
        return service(self) if self.workload.kind is UnitKind.SERVICE else scope(self, self.pid)

    @property
    def argv(self) -> tuple[str, ...]:
        """Return the command line to execute."""
        return argv(self)

    @property
    def claim(self) -> Claim:
        """Return what the task takes of the node. Addresses in a namespace of another program are not the node's."""
        networks = [] if self.workload.namespace else [nic.network for nic in self.request.nics]
        copies = [disk for disk in self.disks if disk.backing is Backing.COPY]
        return Claim(
            tenant=self.workload.tenant,
            amounts={
                Resource.TASKS: 1,
                Resource.PORTS: _number_of_ports(self.request.ports),
                Resource.COPIES: sum(disk.size for disk in copies),
                Resource.COPIED: sum(disk.copied for disk in copies),
                Resource.ARCHIVES: sum(disk.size for disk in self.disks if disk.backing is Backing.ARCHIVE),
                f"{Resource.IMAGES}/{self.image.sha256}": self.image.size,
                **{f"{Resource.ADDRESSES}/{name}": count for name, count in Counter(networks).items()},
            },
        )

    def reserved(self, reservation: Reservation) -> "Plan":
        """Return the plan with its reservation; in a namespace, with the name servers that its leases can reach."""
        resolver = self.resolver
        if self.workload.namespace and reservation.leases and SERVERS in used(self.workload.arguments):
            leased = (address for lease in reservation.leases for address in lease.addresses)
            resolver = reachable(resolver, frozenset(address.version for address in leased) or {4})
        return replace(self, reservation=reservation, resolver=resolver)

    def started(self, begun: UnitState) -> Task:
        """Return the started task, as far as it is known without a D-Bus call: a scope has no PID and start time."""
        return Task(
            state=begun,
            phase=Phase.RUNNING,
            reservation=self.reservation if self.reservation.leases else None,
        )


def plan(workload: Workload, facts: Facts) -> Plan:
    """Return what a start makes. Arguments are checked with the reservation."""
    check_workload(workload, facts.total_memory)
    request = connections(workload, facts.image)
    for key, module in security_modules(workload.properties).items():
        if module not in facts.security_modules:  # systemd would ignore the profile silently
            raise InvalidRequestError(
                f"unit property {key} has no effect on this host: expected a kernel with {module} enabled.",
                "See /sys/kernel/security/lsm.",
            )
    _check_disks(workload, facts)
    resolver = _resolver(workload, request.nics, facts)
    if facts.by_dhcp:
        request = replace(request, names=GuestNames(resolver=resolver, hostname=workload.hostname))
    found = Plan(
        **{**vars(facts), "resolver": resolver},
        workload=workload,
        reservation=Reservation(task=workload.name),
        request=request,
    )
    # Memory and properties do not depend on the reservation: refuse them before it is made. Arguments do.
    _ = replace(found, workload=replace(workload, arguments=())).unit
    return found


def check_workload(workload: Workload, total_memory: int) -> None:
    """Refuse a workload that cannot be started with any image."""
    _check_text(("argument", argument) for argument in workload.arguments)
    _check_text(("disk path", disk.path) for disk in workload.disks)
    _check_text(("journal field", f"{key}={value}") for key, value in workload.log_fields)
    if workload.memory > total_memory:
        raise InvalidRequestError(
            f"memory {workload.memory // MIB}M is more than this host has: expected at most {total_memory // MIB}M."
        )
    if workload.memory_max is not None and workload.memory_max < workload.memory:
        raise InvalidRequestError(
            f"memory_max {workload.memory_max // MIB}M is less than memory {workload.memory // MIB}M: "
            "expected as much or more."
        )
    if workload.kind is UnitKind.SCOPE:
        _check_scope(workload)


def _check_scope(workload: Workload) -> None:
    """Refuse what systemd does for a service alone."""
    if workload.namespace:
        raise InvalidRequestError(
            f"task {workload.name} is a scope in network namespace {workload.namespace}: expected a service, which "
            "systemd executes there.",
            "Run it as a service, or without a network namespace.",
        )
    if workload.idle_s:  # a stopped process whose caller ends gets SIGHUP (POSIX: orphaned process groups)
        raise InvalidRequestError(
            f"task {workload.name} is a scope, and to sleep: expected a service, whose tender is a child of PID 1.",
            "Run the task as a service.",
        )
    for disk in workload.disks:  # systemd does not keep a scope's tender, with the guest's memory, out of core dumps
        if disk.archive is not None:
            raise InvalidRequestError(
                f"disk {disk.disk} of a scope is an archive of files: expected a service, which dumps no core.",
                "Run the task as a service.",
            )


def connections(workload: Workload, image: StoredImage) -> Request:
    """Return the request for a network: NICs in the order of the image's manifest, with all defaults filled in."""
    manifest = image.manifest
    if workload.idle_s and not manifest.nics:
        raise InvalidRequestError(
            f"task {workload.name} is to sleep, and the image has no NIC, for whose packets it could be woken.",
            "Leave out its idle time.",
        )
    if workload.idle_stops and workload.namespace:
        raise InvalidRequestError(
            f"task {workload.name} is to end when it is idle, and has its NICs in network namespace "
            f"{workload.namespace}: expected the host's own, whose kernel announces the next packet.",
            "Let it sleep (IdleAction=sleep), or leave out the namespace.",
        )
    nics = workload.nics or tuple(NicRequest(nic=name) for name in manifest.nics)
    match(manifest, [nic.nic for nic in nics], [disk.disk for disk in workload.disks])
    if workload.namespace:
        nics = tuple(_in_namespace(workload, nic) for nic in nics)
    nics = tuple(
        replace(nic, limits=nic.limits.or_else(workload.limits))
        for nic in sorted(nics, key=lambda nic: manifest.nics.index(nic.nic))
    )
    if workload.tender not in (None, manifest.target):
        raise InvalidRequestError(
            f"tender {workload.tender} cannot run {workload.image}: expected {manifest.target}, which it is built for."
        )
    ports = _ports(workload, nics)
    if workload.policy is not None:
        check_policy(workload, workload.policy, image, nics, _number_of_ports(ports))
    return Request(
        nics=nics,
        ports=ports,
        namespace=workload.namespace,
        idle_s=workload.idle_s,
        idle_stops=workload.idle_stops,
    )


def needs_controllers(workload: Workload) -> bool:
    """Return whether the controllers of cgroup v2 decide about a start: disks have limits, which must be enforced."""
    is_strict = workload.policy is not None and not workload.policy.allow_missing_controllers
    return is_strict and any(disk.io != NO_IO_LIMITS for disk in workload.disks)


def needs_resolver(workload: Workload, *, by_dhcp: bool) -> bool:
    """Return whether the guest gets name servers or search domains."""
    return bool({SERVERS, SEARCH} & used(workload.arguments)) or by_dhcp


def resolver_networks(nics: Sequence[NicRequest]) -> Sequence[NetworkName]:
    """Return the networks of NICs, that of the primary one first: its name servers are those of the guest."""
    primary = primary_nic([nic.nic for nic in nics])
    return [nic.network for nic in sorted(nics, key=lambda nic: nic.nic != primary)]


def _resolver(workload: Workload, nics: Sequence[NicRequest], facts: Facts) -> Resolver:
    """Return the workload's name servers and search domains, completed by those of its networks and the host.

    Those are of the versions of IP that the guest has. In a namespace, its leases show these.
    """
    if not needs_resolver(workload, by_dhcp=facts.by_dhcp):
        return workload.resolver
    found = workload.resolver | facts.resolver
    return found if workload.namespace or not nics else reachable(found, facts.ip_versions)


def _check_text(texts: Iterable[tuple[str, str]]) -> None:
    """Refuse text that `bus.unit_file_text` would refuse, with an error that names the workload's field."""
    for what, text in texts:
        fault = unit_file_syntax(text)
        if fault:
            raise InvalidRequestError(
                f"{what} “{bounded(text, MAX_QUOTE)}” has {fault}: expected text without control characters and "
                "without a backslash at its end, which systemd would parse as unit file syntax."
            )


def _check_disks(workload: Workload, facts: Facts) -> None:
    check_total(facts.disks)
    launched = bool(facts.tender.launcher)
    for disk in facts.disks:
        # No filter keeps the tender from detaching it (LOOP_CLR_FD): it would have what is attached to the number next.
        if disk.device is not None and not launched and any(on.startswith("loop") for on in disk.devices.values()):
            raise HostError(
                f"{disk} is a loop device, which a tender could have another file behind: "
                f"expected {LAUNCHER}, whose filter prevents it.",
                "Install solo5-confine (Debian), or use the file itself as the disk.",
            )
    if needs_controllers(workload) and "io" not in facts.controllers:
        limited = next(disk for disk in workload.disks if disk.io != NO_IO_LIMITS)
        raise InvalidRequestError(
            f"disk {limited.disk} has I/O limits ({limited.io}), which this host does not enforce: expected "
            "the io controller of cgroup v2.",
            "See solo5ctl doctor; plugin.solo5.config.allow_missing_controllers permits limits without effect.",
        )
    _check_text(("disk path", disk.path) for disk in facts.disks)  # resolved: a symbolic link can have any text


def _in_namespace(workload: Workload, nic: NicRequest) -> NicRequest:
    """Return a NIC on the network of the workload's namespace; one on `none` as it is."""
    if nic.network == NO_NETWORK:
        return nic
    if nic.network not in (DEFAULT_NETWORK, NAMESPACE_NETWORK):
        raise InvalidRequestError(
            f"NIC {nic.nic} is on network {nic.network}, which is not in network namespace {workload.namespace}: "
            "expected default or none.",
            "Remove the NIC's network, or run the task without a network namespace.",
        )
    return replace(nic, network=NAMESPACE_NETWORK)


def _number_of_ports(ports: Sequence[PortRequest]) -> int:
    """Return the number of host ports; TCP and UDP of one port count once."""
    return len({(port.host_ip, port.host_port) for port in ports})


def _ports(workload: Workload, nics: Sequence[NicRequest]) -> tuple[PortRequest, ...]:
    """Return each published port with its NIC: the requested one, or else `service`, or else the image's first."""
    names = [nic.nic for nic in nics]
    implied, ports = primary_nic(names), []
    for publish in workload.publish:
        nic = publish.nic or implied
        if nic in names:
            ports.append(publish.to(nic))
        elif names:
            raise InvalidRequestError(
                f"port {publish.host_port} is published to NIC {nic}: "
                f"expected one of the image's NICs ({', '.join(names)}).",
                "Write it as NIC:HOSTPORT:PORT.",
            )
        elif not publish.implied:
            raise InvalidRequestError(
                f"port {publish.host_port} is published, and the image has no NIC: expected no port, or an image with "
                "one.",
                "`solo5ctl image PATH` shows the devices of an image.",
            )
    return tuple(ports)


_CEILINGS = "The operator sets it in plugin.solo5.config.ceilings."


def check_policy(
    workload: Workload, policy: "Policy", image: StoredImage, nics: Sequence[NicRequest], ports: int
) -> None:
    """Check a workload against its policy.

    Args:
        workload: with all defaults filled in: a ceiling limits the task, however little of it the request contains.
    """
    _check_ceilings(workload, policy.ceilings, image, nics, ports)
    tender = image.manifest.target
    if workload.kind not in policy.allowed_units:
        raise InvalidRequestError(
            f"unit type {workload.kind} is not allowed on this node: expected {' or '.join(policy.allowed_units)}.",
            f'The operator can add "{workload.kind}" to plugin.solo5.config.allowed_units.',
        )
    if policy.allowed_tenders and tender not in policy.allowed_tenders:
        raise InvalidRequestError(
            f"tender {tender}, which the image is built for, is not allowed on this node: "
            f"expected {' or '.join(policy.allowed_tenders)}.",
            "The operator sets it in plugin.solo5.config.allowed_tenders.",
        )
    for disk in workload.disks:
        patterns = policy.allowed_disks
        if disk.name is not None and not any(fnmatchcase(disk.name, each) for each in patterns):
            raise InvalidRequestError(
                f"disk {disk.disk}: named disk {disk.name!r} is not allowed on this node: expected one that matches "
                f"{' or '.join(patterns) or 'a pattern, and there is none'}.",
                "The operator sets the patterns in plugin.solo5.config.allowed_disks.",
            )
    for nic in nics:
        if policy.networks and nic.network not in (*policy.networks, NO_NETWORK):
            raise InvalidRequestError(
                f"network {nic.network} of NIC {nic.nic} is not allowed on this node: "
                f"expected one of {', '.join(policy.networks)}.",
                f"Set the network of NIC {nic.nic}.",
            )


def _check_ceilings(
    workload: Workload, ceilings: "Ceilings", image: StoredImage, nics: Sequence[NicRequest], ports: int
) -> None:
    memory_max = workload.memory if workload.memory_max is None else workload.memory_max
    most = ceilings.memory_mb
    if most is not None and memory_max == INFINITY:
        raise InvalidRequestError(f"memory_max is unlimited: expected at most {most}M, this node's ceiling.", _CEILINGS)
    new_disk = max((disk.create or 0 for disk in workload.disks), default=0)
    for what, value, ceiling, unit in (
        ("memory", workload.memory // MIB, most, "M"),
        ("memory_max", memory_max // MIB, most, "M"),
        ("the number of NICs", len(nics), ceilings.nics, ""),
        ("the number of disks", len(workload.disks), ceilings.blocks, ""),
        ("the number of ports", ports, ceilings.ports, ""),
        ("the size of the image in bytes", image.size, ceilings.image_mb * MIB, ""),
        ("the size of a new disk in bytes", new_disk, ceilings.disk_mb * MIB, ""),
    ):
        if ceiling is not None and value > ceiling:
            raise InvalidRequestError(
                f"{what} is {value}{unit}: expected at most {ceiling}{unit}, this node's ceiling.", _CEILINGS
            )
