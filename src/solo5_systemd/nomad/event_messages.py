"""Texts of task events, one line each, as `nomad alloc status` shows them."""

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from signal import Signals

from solo5_systemd.base.sanitize import bounded
from solo5_systemd.network.endpoints import UNREPAIRED
from solo5_systemd.network.model import Lease, Reservation
from solo5_systemd.nomad.ports import published_nics
from solo5_systemd.storage.model import FailedDisk
from solo5_systemd.task.placeholders import SEARCH, SERVERS, used
from solo5_systemd.task.workload import MIB, Workload
from solo5_systemd.unit.outcome import Ending, Outcome
from solo5_systemd.unit.tender import Parts

LAST_LINES = 5
"""Console lines that an event quotes."""

NAMES_MAX = 200
"""Characters of the path of a disk, and of a list of names."""

QUOTED_LINE_MAX = 120
"""Characters of a quoted line."""


@dataclass(frozen=True, kw_only=True)
class TaskEvent:
    """A task event: a sentence for people, and the same facts as annotations for programs."""

    message: str
    annotations: Mapping[str, str] = field(default_factory=dict)


def preflight_passed(parts: Parts) -> TaskEvent:
    """Return the event of a passed preflight: image, tender, guest memory and devices."""
    tender, workload = parts.tender, parts.workload
    devices = ", ".join(parts.image.manifest.devices) or "no devices"
    return TaskEvent(
        message=(
            f"Preflight passed: {posixpath.basename(workload.image)} ({parts.image.sha256[:12]}) for "
            f"{tender.target} {tender.version}, ABI {tender.abi_version}; "
            f"{parts.memory_mib} of {workload.memory // MIB} MiB for the guest; {devices}"
        ),
        annotations={
            "image": workload.image,
            "image_sha256": parts.image.sha256,
            "tender": tender.path,
            "tender_version": tender.version,
            "abi": str(tender.abi_version),
            "guest_memory_mib": str(parts.memory_mib),
        },
    )


def leases_attached(leases: Sequence[Lease]) -> TaskEvent:
    """Return one event for the leases of all NICs, since Nomad keeps only ten events of a task."""
    sentences, annotations = list[str](), dict[str, str]()
    for lease in leases:
        addresses = " and ".join(map(str, lease.addresses)) or "no leased address"
        sentences.append(f"NIC {lease.nic} has {addresses} in network {lease.network}")
        facts = {"address": lease.ipv4, "address6": lease.ipv6, "mac": lease.mac, "tap": lease.tap}
        facts["network"] = lease.network
        annotations |= {f"nic.{lease.nic}.{key}": str(value) for key, value in facts.items() if value}
    return TaskEvent(message="; ".join(sentences), annotations=annotations)


def started(unit: str, invocation: str) -> TaskEvent:
    """Return the event of a started unit, with systemd's invocation ID."""
    return TaskEvent(
        message=f"Started {unit}, invocation {invocation or 'unknown'}",
        annotations={"unit": unit, "invocation": invocation},
    )


def limits(workload: Workload, reservation: Reservation | None) -> Iterator[TaskEvent]:
    """Yield an event for each use of the job's ports that this task cannot offer, and for what its guest is not given.

    Without a group network, whose name servers may be a CNI plugin's, the start is refused for these.
    """
    if workload.publish and reservation is None:
        yield TaskEvent(message="No port is published: the image has no NIC")
    nics = published_nics(reservation) if reservation is not None else ()
    if len(nics) > 1:
        listed = ", ".join(nics)
        yield TaskEvent(
            message=(
                f'No address for address_mode = "driver": NICs {listed} have published ports, '
                "and Nomad registers one address for all ports of a task"
            )
        )
    servers, search = workload.resolver.servers, workload.resolver.search
    for what, values, placeholder in (("name servers", servers, SERVERS), ("search domains", search, SEARCH)):
        if workload.namespace and values and placeholder not in used(workload.arguments):
            named = bounded(", ".join(map(str, values)), NAMES_MAX)
            yield TaskEvent(
                message=f"The guest does not get the {what} of its group ({named}): no argument has {{{placeholder}}}"
            )


def slow_start(step: str, seconds: float) -> TaskEvent:
    """Return the event of a start that is still at a step after some seconds."""
    return TaskEvent(message=f"Slow start: after {seconds:.0f} s still {step}", annotations={"step": step})


def ready(evidence: str, seconds: float) -> TaskEvent:
    """Return the event of a guest that became ready `seconds` after its unit started."""
    return TaskEvent(message=f"Ready after {seconds:.1f} s: {printable(evidence)}", annotations={"ready": "true"})


def not_ready(endpoint: str, failure: str, *, restart: bool) -> TaskEvent:
    """Return the event of a loss; `restart`: the driver stops the task because of it."""
    consequence = "; the task is stopped, and its restart policy applies" if restart else ""
    return TaskEvent(message=f"No longer ready: {endpoint}: {failure}{consequence}", annotations={"ready": "false"})


def ready_again(evidence: str, seconds: float) -> TaskEvent:
    """Return the event of a guest that is ready `seconds` after its loss."""
    return TaskEvent(message=f"Ready again after {seconds:.0f} s: {evidence}", annotations={"ready": "true"})


def network_repaired(what: str) -> TaskEvent:
    """Return the event of a repair of the task's network by solo5-networkd, or of what it cannot repair."""
    return TaskEvent(message=f"Network {what}" if what.startswith(UNREPAIRED) else f"Network repaired: {what}")


def sleep_changed(reason: str, *, asleep: bool) -> TaskEvent:
    """Return the event of a task that sleeps, or is woken by a packet or a request."""
    if asleep:
        return TaskEvent(message=f"Asleep: {reason}; the next packet wakes it")
    return TaskEvent(message=f"Woken by {reason}", annotations={"woken_by": reason})


def signal_not_sent(number: int) -> TaskEvent:
    """Return the event of a signal that is withheld, since it would kill the tender."""
    named = {each.value: each.name for each in Signals}  # most real-time signals have no name
    signal = named.get(number, f"signal {number}")
    return TaskEvent(
        message=(
            f"{signal} was not sent: a unikernel has no signal handlers, and the signal would kill its tender. "
            'The task runs on unchanged; a template takes effect with change_mode = "restart"'
        ),
        annotations={"signal_not_sent": signal},
    )


def full_disk(disk: FailedDisk, *, is_full: bool) -> TaskEvent:
    """Return the event of a disk whose file system has become full under its running guest, or has space again."""
    where = f"disk {disk.disk} ({bounded(disk.path, NAMES_MAX)})"
    if not is_full:
        return TaskEvent(message=f"Space is left again in the file system of {where}")
    return TaskEvent(
        message=(
            f"No space is left in the file system of {where}: the guest gets an I/O error where it writes for the "
            "first time. Free space on the host"
        ),
        annotations={"full_disks": disk.disk},
    )


def lines_dropped(lines: int) -> TaskEvent:
    """Return the event of console lines that journald dropped."""
    return TaskEvent(
        message=f"journald dropped {lines} lines of the console: its rate limit was exceeded",
        annotations={"lines": str(lines)},
    )


def last_lines(lines: Sequence[str]) -> str:
    """Return a phrase that quotes the last `LAST_LINES` console lines; empty without lines."""
    quoted = ", ".join(f"“{printable(line)}”" for line in lines[-LAST_LINES:])
    return f"Last console lines: {quoted}" if quoted else ""


def printable(line: str) -> str:
    """Return a line without control characters, and with `¦` for `|`, which ends a column in tables of Nomad."""
    return bounded(line.strip().replace("|", "¦"), QUOTED_LINE_MAX)


def exit_event(outcome: Outcome) -> TaskEvent:
    """Return the event of the task's end, with its last console lines; annotations of unknown values are absent."""
    details: dict[str, object] = {
        "outcome": outcome.ending.value,
        "exit_code": outcome.exit_code,
        "signal": None if outcome.signal is None else int(outcome.signal),
        "retry": "true" if outcome.retry else "false",
        "retry_reason": outcome.futile or None,
        "oom_killed": "true" if outcome.ending is Ending.OUT_OF_MEMORY else None,
        "memory_peak": outcome.memory_peak,
        "full_disks": " ".join(each.disk for each in outcome.failed_disks if each.free is not None) or None,
        "lost_disks": " ".join(each.disk for each in outcome.failed_disks if each.free is None) or None,
    }
    annotations = {key: str(value) for key, value in details.items() if value is not None}
    sentence, quoted = outcome.verdict, last_lines(outcome.last_lines)
    message = sentence[:1].upper() + sentence[1:] + (f". {quoted}" if quoted else "")
    return TaskEvent(message=message, annotations=annotations)
