"""A workload, and what was decided for it, as one transient unit.

Beside the task's service stands a target, `solo5-outcome@NAME.target`, that does nothing but refer to it. systemd
unloads a unit that is inactive and that nobody refers to, and with it how it ended; the target keeps the ended
service loaded, whichever way it ended and whoever stopped it, until somebody removes the task. `RemainAfterExit=`
would keep a service that exited with 0, but as "active": its network would stay up, and its ports taken.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from solo5_systemd.block.model import Disk
from solo5_systemd.errors import InvalidRequestError
from solo5_systemd.image.manifest import StoredImage
from solo5_systemd.names import SLICE, network_service, outcome_target, task_scope, task_service
from solo5_systemd.network.model import Reservation
from solo5_systemd.text import NAME, bounded, name_for_unit
from solo5_systemd.unit.confinement import confinement, laying_down_privileges
from solo5_systemd.unit.exec_start import exec_start
from solo5_systemd.unit.log_fields import FACILITY, LOG_NAMESPACE, RATE_BURST, RATE_INTERVAL, assignment
from solo5_systemd.unit.placeholders import expand, placeholders
from solo5_systemd.unit.properties import OF_EXECUTION, Property, TransientUnit, parse_property
from solo5_systemd.unit.tender import Tender, command_line, guest_memory, sandbox_path
from solo5_systemd.workload import STOP_TIMEOUT, UnitKind, Workload

SECOND = 1_000_000
PERCENT = SECOND // 100
"""systemd (252 to 257) writes CPUQuota= as whole percents: a fraction would be lost at a daemon-reload."""

WITHOUT_LOCKS = "/dev/null/no-locks-on-its-disks"
"""No file can have this path, since /dev/null is no directory."""

LONGEST_PATH = 4096
TASKS_MAX = 16
"""hvt has a virtual processor's thread, one for network I/O, and one of the kernel's; the rest is room."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """All that was found out and decided before a unit can be written."""

    workload: Workload
    image: StoredImage
    tender: Tender
    reservation: Reservation
    user: int
    systemd: int
    disks: Sequence[Disk] = ()
    groups: Sequence[str] = ()
    log_namespace: str = ""

    @property
    def memory_mib(self) -> int:
        """The guest's memory, in MiB."""
        return guest_memory(self.workload.memory, self.image.facts)


def argv(parts: Parts) -> tuple[str, ...]:
    """What is executed: the tender's whole command line, in a scope behind what lays privileges down.

    Raises:
        InvalidRequestError: memory or arguments do not fit.
    """
    alone = parts.workload.kind is UnitKind.SCOPE
    values = placeholders(parts.workload.name, parts.memory_mib, parts.reservation.leases)
    line = command_line(
        tender=parts.tender.path,
        image=parts.image.path,
        memory_mib=parts.memory_mib,
        leases=parts.reservation.leases,
        disks=parts.disks,
        place=(lambda disk: disk.path) if alone else sandbox_path,
        arguments=expand(parts.workload.arguments, values),
    )
    return (*laying_down_privileges(parts.user, parts.groups), *line) if alone else line


def service(parts: Parts) -> TransientUnit:
    """The unit of a task that PID 1 runs.

    Raises:
        InvalidRequestError: memory, arguments or a unit property do not fit.
    """
    properties = (
        Property("Description", "s", _description(parts)),
        Property("Type", "s", "exec"),
        exec_start(argv(parts)),
        Property("Wants", "as", [outcome_target(parts.workload.name)]),
        *_network_dependency(parts),
        *_ending(),
        *_console(parts),
        *_locks(parts),
        *_resources(parts.workload),
        *confinement(
            parts.image.facts.manifest,
            user=parts.user,
            tender=parts.tender,
            image=parts.image.path,
            disks=parts.disks,
            groups=parts.groups,
            systemd=parts.systemd,
        ),
    )
    return TransientUnit(name=task_service(parts.workload.name), properties=_overlay(properties, parts.workload))


def scope(parts: Parts, pid: int) -> TransientUnit:
    """The unit of a task that its caller runs: accounted, limited and connected, not confined by PID 1.

    Raises:
        InvalidRequestError: a unit property is malformed, or one that a scope does not have.
    """
    for key, _ in parts.workload.properties:
        if key in OF_EXECUTION:
            raise InvalidRequestError(
                f"unit property {key} cannot be set for a scope: expected a property of systemd.resource-control(5).",
                "Run the task as a service, whose process systemd executes.",
            )
    properties = (
        Property("Description", "s", _description(parts)),
        Property("PIDs", "au", [pid]),
        *_network_dependency(parts),
        Property("TimeoutStopUSec", "t", int(STOP_TIMEOUT * SECOND)),
        *_resources(parts.workload),
    )
    return TransientUnit(
        name=task_scope(parts.workload.name),
        properties=_overlay(properties, parts.workload),
        marks=log_fields(parts),
    )


def _description(parts: Parts) -> str:
    if parts.workload.description is not None:
        return name_for_unit(parts.workload.description)
    image = bounded(parts.workload.image.rpartition("/")[2], NAME)
    return f"Solo5 unikernel {image} ({parts.image.facts.manifest.target})"


def _network_dependency(parts: Parts) -> Iterator[Property]:
    if parts.reservation.leases:
        network = network_service(parts.workload.name)
        yield Property("Requires", "as", [network])
        yield Property("After", "as", [network])


def _ending() -> Iterator[Property]:
    yield Property("KillSignal", "i", 15)
    yield Property("TimeoutStartUSec", "t", 30 * SECOND)
    yield Property("TimeoutStopUSec", "t", int(STOP_TIMEOUT * SECOND))
    # hvt that loses its console's reader and ignores SIGPIPE becomes a zombie leader that nothing ends.
    yield Property("IgnoreSIGPIPE", "b", False)


def _console(parts: Parts) -> Iterator[Property]:
    yield Property("StandardOutput", "s", "journal")
    if parts.log_namespace:
        yield Property("LogNamespace", "s", parts.log_namespace)
    yield Property("SyslogIdentifier", "s", parts.workload.name)
    yield Property("SyslogFacility", "i", FACILITY)
    # A guest's "<3>…" is its text, not a priority.
    yield Property("SyslogLevelPrefix", "b", False)
    yield Property("LogRateLimitIntervalUSec", "t", RATE_INTERVAL)
    yield Property("LogRateLimitBurst", "u", RATE_BURST)
    yield Property("LogExtraFields", "aay", [assignment(k, v) for k, v in log_fields(parts).items()])


def _locks(parts: Parts) -> Iterator[Property]:
    """Yield what stdin is where the descriptor that holds the disks' locks is not given: a file that cannot be opened.

    PID 1 has that descriptor from StartTransientUnit() on until the service has ended, restarts included. A start later
    on, by whatever means, would have no locks; so it ends with 208, EXIT_STDIN.
    """
    if parts.disks:
        yield Property("StandardInputFile", "s", WITHOUT_LOCKS)


def log_fields(parts: Parts) -> Mapping[str, str]:
    """What `ps` later reads from the unit, and what every line of a service's console carries in the journal."""
    return {
        "SOLO5_TASK": parts.workload.name,
        "SOLO5_IMAGE": name_for_unit(parts.workload.image, LONGEST_PATH),
        "SOLO5_IMAGE_SHA256": parts.image.sha256,
        "SOLO5_TENDER": f"{parts.image.facts.manifest.target}",
        "SOLO5_MEMORY": str(parts.workload.memory),
        **({LOG_NAMESPACE: parts.log_namespace} if parts.log_namespace else {}),
        **dict(parts.workload.log_fields),
    }


def _resources(workload: Workload) -> Iterator[Property]:
    yield parse_property("Slice", workload.slice or SLICE)
    yield Property("MemoryMax", "t", workload.memory if workload.memory_max is None else workload.memory_max)
    yield Property("MemorySwapMax", "t", 0)
    yield Property("TasksMax", "t", TASKS_MAX)
    if workload.disks:  # the kernel counts blocks only for those of whom systemd says so
        yield Property("IOAccounting", "b", True)
    if workload.cpus is not None:
        yield Property("CPUQuotaPerSecUSec", "t", math.ceil(workload.cpus * SECOND / PERCENT) * PERCENT)
    if workload.cpu_weight is not None:
        yield Property("CPUWeight", "t", workload.cpu_weight)


def _overlay(ours: Iterable[Property], workload: Workload) -> tuple[Property, ...]:
    """The operator's properties over ours: replaced where it was one value, sent after it where it adds up."""
    adds_up = {"SystemCallFilter"}
    theirs = [parse_property(key, value) for key, value in workload.properties]
    replaced = {p.name for p in theirs} - adds_up
    return (*(p for p in ours if p.name not in replaced), *theirs)
