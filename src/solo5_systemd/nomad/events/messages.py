"""What a task's events say: one line each, for whoever reads `nomad alloc status`."""

import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from solo5_systemd.engine.task import Preflight
from solo5_systemd.network.model import Lease, Reservation
from solo5_systemd.nomad.workload.ports import published_nics
from solo5_systemd.text import bounded
from solo5_systemd.workload import Publish

LAST_LINES = 5
"""Lines of a console that an event quotes."""

LONGEST_LINE = 120
"""Characters of each."""


@dataclass(frozen=True, kw_only=True)
class Announcement:
    """An event: the sentence that people read, and the same for programs."""

    message: str
    annotations: Mapping[str, str] = field(default_factory=dict)


def checked(preflight: Preflight) -> Announcement:
    """Nothing is made yet, and nothing stands in the way."""
    tender, devices = preflight.tender, ", ".join(map(str, preflight.manifest.devices)) or "no devices"
    return Announcement(
        message=(
            f"Preflight passed: {posixpath.basename(preflight.image)} ({preflight.sha256[:12]}) for "
            f"{tender.target} {tender.version}, ABI {tender.abi_version}; "
            f"{preflight.guest_memory} of {preflight.memory} MiB are the guest's; {devices}"
        ),
        annotations={
            "image": preflight.image,
            "image_sha256": preflight.sha256,
            "tender": tender.path,
            "tender_version": tender.version,
            "abi": str(tender.abi_version),
            "guest_memory_mib": str(preflight.guest_memory),
        },
    )


def leased(leases: Sequence[Lease]) -> Announcement:
    """All NICs in one event: Nomad keeps ten of a task."""
    told = (f"NIC {lease.nic} has {lease.ipv4.ip} in network {lease.network}" for lease in leases)
    return Announcement(message="; ".join(told), annotations=dict(chain.from_iterable(map(_lease, leases))))


def _lease(lease: Lease) -> Iterable[tuple[str, str]]:
    facts = {"address": str(lease.ipv4), "mac": lease.mac, "tap": lease.tap, "network": lease.network}
    return ((f"nic.{lease.nic}.{key}", value) for key, value in facts.items())


def started(unit: str, invocation: str) -> Announcement:
    return Announcement(
        message=f"Started {unit}, invocation {invocation or 'unknown'}",
        annotations={"unit": unit, "invocation": invocation},
    )


def unreached(publishes: Sequence[Publish], reservation: Reservation | None) -> Iterator[Announcement]:
    """Yield what a job's ports cannot be used for."""
    if publishes and reservation is None:
        yield Announcement(message="No port is published: the image has no NIC")
    nics = published_nics(reservation) if reservation is not None else ()
    if len(nics) > 1:
        named = ", ".join(nics)
        yield Announcement(
            message=f'No address for address_mode = "driver": ports lead to NICs {named}, and Nomad has one for all'
        )


def slow(doing: str, seconds: float) -> Announcement:
    return Announcement(
        message=f"The start is slow: after {seconds:.0f} s it is still {doing}", annotations={"step": doing}
    )


def ready(what: str, seconds: float) -> Announcement:
    return Announcement(message=f"Ready after {seconds:.1f} s: {what}", annotations={"ready": "true"})


def lost(what: str, why: str, *, restart: bool) -> Announcement:
    so = "; the task is ended, and its restart policy decides" if restart else ""
    return Announcement(message=f"No longer ready: {what}: {why}{so}", annotations={"ready": "false"})


def regained(what: str, seconds: float) -> Announcement:
    return Announcement(message=f"Ready again after {seconds:.0f} s: {what}", annotations={"ready": "true"})


def repaired(what: str) -> Announcement:
    return Announcement(message=f"Network repaired: {what}")


def without_effect(signal: str) -> Announcement:
    return Announcement(
        message=(
            f"{signal} was not sent: a unikernel has no signal handlers, and its tender would die of it. The task runs "
            'on unchanged; a template takes effect with change_mode = "restart"'
        ),
        annotations={"signal_not_sent": signal},
    )


def gap(lines: int) -> Announcement:
    return Announcement(
        message=f"journald left out {lines} lines of the console: more than its rate limit lets pass",
        annotations={"lines": str(lines)},
    )


def more(last: Announcement, held: int) -> Announcement:
    """The last of several that came too fast: how many came before it is all that is told of those."""
    return Announcement(message=f"{last.message} … and {held - 1} more just before", annotations=last.annotations)


def with_last_lines(announcement: Announcement, lines: Sequence[str]) -> Announcement:
    said = last_lines(lines)
    message = f"{announcement.message}. {said}" if said else announcement.message
    return Announcement(message=message, annotations=announcement.annotations)


def last_lines(lines: Sequence[str]) -> str:
    """The console's end as part of a sentence, empty where nothing was said."""
    quoted = ", ".join(f"“{printable(line)}”" for line in lines[-LAST_LINES:])
    return f"Last on its console: {quoted}" if quoted else ""


def printable(line: str) -> str:
    """A line of bounded length that steers no terminal, nor Nomad's tables, where `|` ends a column."""
    return bounded(line.strip().replace("|", "¦"), LONGEST_LINE)
