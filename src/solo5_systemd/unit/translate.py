"""Translate a workload and its reservation to a transient unit.

Memory, arguments and unit properties that are out of bounds are an InvalidRequestError of each function.
A target, `solo5-outcome@NAME.target`, keeps the ended service loaded (docs/decisions/outcome-target.md).
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from signal import SIGHUP, SIGTERM
from typing import cast

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import (
    SLICE,
    Target,
    UnitKind,
    network_service,
    outcome_target,
    task_namespace,
    task_scope,
    task_service,
)
from solo5_systemd.base.sanitize import MAX_NAME, bounded, name_for_unit
from solo5_systemd.storage.io_limits import NO_IO_LIMITS, IoLimits
from solo5_systemd.storage.model import Backing, Disk
from solo5_systemd.task.log_fields import FACILITY, LOG_NAMESPACE, NETWORK_NAMESPACE, OF_PLACEHOLDERS, assignment
from solo5_systemd.task.placeholders import expand, placeholders, used
from solo5_systemd.task.properties import (
    DISK_LIMITS,
    LIMITS,
    Property,
    TransientUnit,
    exec_start,
    parse_property,
    scope_lacks,
    unit_property,
)
from solo5_systemd.task.property_types import INFINITY
from solo5_systemd.task.workload import DEFAULT_MEMORY, STOP_TIMEOUT_S, Workload
from solo5_systemd.unit.confinement import FILE_SIZE, confinement, scope_command
from solo5_systemd.unit.tender import Parts, sandbox_path

SECOND = 1_000_000
PERCENT = SECOND // 100
"""Microseconds. systemd (252 to 257) serializes CPUQuota= in whole percents; a daemon-reload loses a fraction."""

NO_DISK_LOCKS = "/dev/null/no-locks-on-its-disks"
"""A path that cannot exist, since /dev/null is not a directory."""

MAX_PATH = 4096
TASKS_MAX = 16
"""hvt has a VCPU thread, a thread for network I/O, and a thread of the kernel's; the rest is a margin."""


RATE_INTERVAL_US = 2_000_000
"""LogRateLimitIntervalSec= of a task, in microseconds."""

RATE_BURST = 2000
"""LogRateLimitBurst= of a task: lines per stream and interval. journald multiplies it by the space that it may still
use (burst_modulate() of systemd): 4 times with 4 GiB, 6 times with 1 TiB. The relay forwards 30 000 lines a second."""


def argv(parts: Parts) -> tuple[str, ...]:
    """Return the command line to execute: the tender's; in a scope preceded by nsenter(1), setpriv(1) and the launcher.

    In a service the launcher is the program of ExecStart=, with this command line: it executes what that begins with.
    """
    is_scope = parts.workload.kind is UnitKind.SCOPE
    options = parts.device_options((lambda disk: disk.path) if is_scope else sandbox_path)
    line = (parts.tender.path, *options, "--", parts.image.path, *guest_arguments(parts))
    if not is_scope:
        return line
    launcher = filter(None, (parts.tender.launcher,))
    return (*scope_command(parts.user, parts.groups, parts.reservation.namespace), *launcher, *line)


def guest_arguments(parts: Parts) -> tuple[str, ...]:
    """Return the arguments of the guest."""
    return expand(parts.workload.arguments, _values(parts), parts.reservation.leases)


def _values(parts: Parts) -> Mapping[str, str]:
    return placeholders(
        parts.workload.name,
        parts.memory_mib,
        parts.reservation.leases,
        ports=parts.reservation.ports,
        labels=parts.workload.port_labels,
        resolver=parts.resolver,
        hostname=parts.workload.hostname,
        # Their gateway is known with the leases, as all that arguments have.
        hosts=parts.workload.hosts if "hosts" in used(parts.workload.arguments) else (),
    )


def service(parts: Parts) -> TransientUnit:
    """Return the service of a task."""
    properties = [
        unit_property("Description", _description(parts)),
        exec_start(argv(parts), parts.tender.launcher, parts.systemd),
        unit_property("Wants", [outcome_target(parts.workload.name)]),
        unit_property("IgnoreOnIsolate", True),  # no target wants it, and it outlives rescue mode, as a scope does
        unit_property("TimeoutStartUSec", 30 * SECOND),  # for a caller that waits
        *io_properties(parts.disks, dict(parts.workload.properties)),
        *_process(parts, parts.user),
    ]
    if parts.reservation.leases:  # a scope has no such dependency: systemd cannot start it again
        network = [network_service(parts.workload.name)]
        properties += unit_property("Requires", network), unit_property("After", network)
    if parts.disks:
        # A stdin that cannot be opened, for starts without the descriptor of the disk locks. PID 1 holds that from
        # StartTransientUnit() until the service has ended, restarts included: a later start (`systemctl start`) has no
        # locks, and fails with 208, EXIT_STDIN.
        properties.append(unit_property("StandardInputFile", NO_DISK_LOCKS))
    return TransientUnit(name=task_service(parts.workload.name), properties=_overlay(properties, parts.workload))


def declared(parts: Parts, image_source: str, user: str) -> tuple[Property, ...]:
    """Return those properties of a declared task's service that no start changes: all but its command and relations.

    No caller waits for its start, which may be one of many at a boot: its timeout is PID 1's `DefaultTimeoutStartSec=`.

    Args:
        parts: its image, disks and reservation have the constant paths of declared tasks.
        image_source: path outside of the sandbox, where each start puts its image.
        user: name of the task's user, which each start makes.
    """
    return _overlay(tuple(_process(parts, user, image_source)), parts.workload)


def _process(parts: Parts, user: int | str, image_source: str = "") -> Iterator[Property]:
    """Yield the properties of a service by which PID 1 executes the tender, limits and confines it."""
    yield unit_property("Type", "exec")  # the start job fails if the tender cannot be executed
    if parts.image.manifest.nics:  # else PID 1 makes an empty namespace
        yield unit_property("NetworkNamespacePath", task_namespace(parts.workload.name))
    # hvt catches SIGTERM and exits with 1, which would leave the unit failed. SIGHUP ends it by default, and is a clean
    # end for systemd (systemd.service(5), SuccessExitStatus=), as SIGTERM is, which ends spt.
    yield unit_property("KillSignal", (SIGHUP if parts.tender.target is Target.HVT else SIGTERM).value)
    yield unit_property("TimeoutStopUSec", int(STOP_TIMEOUT_S * SECOND))
    # Else hvt becomes a zombie leader, which only SIGKILL ends, when the reader of its console closes the pipe.
    yield unit_property("IgnoreSIGPIPE", False)
    # The kernel pipes a core dump into the program of kernel.core_pattern whatever LimitCORE= is (core(5)): it has no
    # memory, unless LimitCORE= permits core files and no archive may be in one.
    limits = [parse_property(key, text).value for key, text in parts.workload.properties if key == "LimitCORE"]
    if not any(limits) or any(disk.archive for disk in parts.workload.disks):
        yield unit_property("CoredumpFilter", 0)
    yield from _console(parts)
    yield from _resources(parts)
    yield from confinement(parts, user, image_source)


def scope(parts: Parts, pid: int) -> TransientUnit:
    """Return the scope of a task that its caller executes: accounted and limited, but not confined by PID 1."""
    for key, _ in parts.workload.properties:
        if scope_lacks(key):
            raise InvalidRequestError(
                f"unit property {key} cannot be set for a scope: expected a property of systemd.resource-control(5).",
                "Run the task as a service, whose process systemd executes.",
            )
    properties = (
        unit_property("Description", _description(parts)),
        unit_property("PIDs", [pid]),
        unit_property("TimeoutStopUSec", int(STOP_TIMEOUT_S * SECOND)),
        *_resources(parts),
        *io_properties(parts.disks, dict(parts.workload.properties)),
    )
    return TransientUnit(
        name=task_scope(parts.workload.name),
        properties=_overlay(properties, parts.workload),
        marks=log_fields(parts),
    )


def _description(parts: Parts) -> str:
    if parts.workload.description is not None:
        return name_for_unit(parts.workload.description)
    image = bounded(parts.workload.image.rpartition("/")[2], MAX_NAME)
    return f"Solo5 unikernel {image} ({parts.image.manifest.target})"


def log_fields(parts: Parts) -> Mapping[str, str]:
    """Return the fields that `solo5ctl ps` reads from the unit, and that each line of its console carries."""
    shares_namespace = parts.workload.namespace and parts.reservation.leases
    return {
        "SOLO5_TASK": parts.workload.name,
        "SOLO5_IMAGE": name_for_unit(parts.workload.image, MAX_PATH),
        "SOLO5_IMAGE_SHA256": parts.image.sha256,
        "SOLO5_TENDER": f"{parts.image.manifest.target}",
        "SOLO5_MEMORY": str(parts.workload.memory),
        **({LOG_NAMESPACE: parts.log_namespace} if parts.log_namespace else {}),
        **({NETWORK_NAMESPACE: parts.workload.namespace} if shares_namespace else {}),
        **dict(_of_placeholders(parts)),
        **dict(parts.workload.log_fields),
    }


def _of_placeholders(parts: Parts) -> Iterator[tuple[str, str]]:
    """Yield the fields of what `placeholders` has put into the arguments, for `solo5ctl inspect`."""
    if found := used(parts.workload.arguments) & OF_PLACEHOLDERS.keys():
        values = _values(parts)
        yield from ((field, values.get(name, "")) for name, field in OF_PLACEHOLDERS.items() if name in found)


def _console(parts: Parts) -> Iterator[Property]:
    """Yield the properties that connect a task's stdout and stderr to the journal."""
    yield unit_property("StandardOutput", "journal")
    if parts.log_namespace:
        yield unit_property("LogNamespace", parts.log_namespace)
    yield unit_property("SyslogIdentifier", parts.workload.name)
    yield unit_property("SyslogFacility", FACILITY)
    # "<3>…" in a guest's output is text, not a priority.
    yield unit_property("SyslogLevelPrefix", False)
    yield unit_property("LogRateLimitIntervalUSec", RATE_INTERVAL_US)
    yield unit_property("LogRateLimitBurst", RATE_BURST)
    yield unit_property("LogExtraFields", [assignment(key, value) for key, value in log_fields(parts).items()])


def _resources(parts: Parts) -> Iterator[Property]:
    workload = parts.workload
    yield parse_property("Slice", workload.slice or SLICE)
    most = workload.memory if workload.memory_max is None else workload.memory_max
    yield unit_property("MemoryMax", most if most == INFINITY else most - parts.archived)
    yield unit_property("MemorySwapMax", 0)
    yield unit_property("TasksMax", TASKS_MAX)
    if workload.disks:  # without it, io.stat of the cgroup does not exist
        yield unit_property("IOAccounting", True)
    if workload.cpus is not None:
        yield unit_property("CPUQuotaPerSecUSec", math.ceil(workload.cpus * SECOND / PERCENT) * PERCENT)
    if workload.cpu_weight is not None:
        yield unit_property("CPUWeight", workload.cpu_weight)


def io_properties(disks: Sequence[Disk], names: Iterable[str]) -> Iterator[Property]:
    """Yield the I/O limits of all disks: of a unit, one of a kind for each device (`io.max` of its cgroup).

    The path is /dev/block/MAJOR:MINOR, which systemd takes as it is: the path of a disk could resolve to another device
    by then, or have characters that a unit file cannot have.

    Raises:
        InvalidRequestError: a limited disk has no device, disks of one device have different limits, or a property
            beside limits devices, too.
    """
    limits = _by_device([disk for disk in disks if disk.backing is not Backing.ARCHIVE])
    if limits and (taken := sorted(set(names) & set(DISK_LIMITS.values()))):
        raise InvalidRequestError(
            f"unit property {taken[0]} is set, and an I/O limit of a disk: expected one of both, since systemd would "
            "let one of them replace the other.",
            "Remove the property, or the limits of the disks.",
        )
    for key, directive in DISK_LIMITS.items():
        value = [(f"/dev/block/{number}", getattr(each, key)) for number, each in limits.items()]
        if known := [(device, limit) for device, limit in value if limit is not None]:
            yield unit_property(directive, known)


def _by_device(disks: Sequence[Disk]) -> dict[str, IoLimits]:
    """Return the limits of each device with a limited disk."""
    found: dict[str, Disk] = {}
    for disk in disks:
        if not disk.devices:
            if disk.io != NO_IO_LIMITS:
                raise InvalidRequestError(
                    f"{disk} has I/O limits ({disk.io}), and no block device: expected a "
                    "device, or a file of a file system that is on one.",
                    "A file in memory, of a network, of an overlay, or on several devices cannot be limited.",
                )
            continue
        number, name = [*disk.devices.items()][-1]
        other = found.setdefault(number, disk)
        if other.io != disk.io:
            texts = [f"{each.disk} ({str(each.io) or 'no limit'})" for each in (other, disk)]
            raise InvalidRequestError(
                f"disks {' and '.join(texts)} are on one "
                f"device, {name}: expected equal I/O limits, since the kernel limits a task by device."
            )
    return {number: disk.io for number, disk in found.items() if disk.io != NO_IO_LIMITS}


def _overlay(defaults: Sequence[Property], workload: Workload) -> tuple[Property, ...]:
    """Return the properties of the unit, overridden by the workload's; lists that accumulate are appended to."""
    cumulative = {"SystemCallFilter"}
    requested = [_lowered(parse_property(key, value), defaults) for key, value in workload.properties]
    replaced = {p.name for p in requested} - cumulative
    return (*(p for p in defaults if p.name not in replaced), *requested)


def _lowered(requested: Property, defaults: Iterable[Property]) -> Property:
    """Return a requested property; of the size of files, the lower limit of both, since disks have quotas."""
    ours = [each for each in defaults if each.name == requested.name == FILE_SIZE]
    return min((requested, *ours), key=lambda each: cast("int", each.value))


def unenforced(workload: Workload, controllers: Collection[str]) -> dict[str, str]:
    """Return the limits of a workload that the kernel will not enforce, each with its missing controller.

    Args:
        workload: its memory counts as a limit unless it is the default.
        controllers: of the unified hierarchy.
    """
    needed = ((name, LIMITS[name]) for name in _limits(workload) if name in LIMITS)
    return {name: controller for name, controller in needed if controller not in controllers}


def _limits(workload: Workload) -> Iterator[str]:
    if workload.memory != DEFAULT_MEMORY:
        yield "MemoryMax"
    if workload.cpus is not None:
        yield "CPUQuota"
    if workload.cpu_weight is not None:
        yield "CPUWeight"
    yield from (name for name, _ in workload.properties)
    yield from (
        DISK_LIMITS[key] for disk in workload.disks for key, value in vars(disk.io).items() if value is not None
    )
