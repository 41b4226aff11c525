"""Text and JSON output of a task, and its columns in lists. The JSON keys are stable and documented in solo5ctl(1)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from solo5_systemd.cli.render import moment, size, span
from solo5_systemd.engine.task import Phase, Task

if TYPE_CHECKING:
    from solo5_systemd.base.names import DeviceName
    from solo5_systemd.network.endpoints import Endpoints
    from solo5_systemd.network.model import Lease, LeaseRecord, Limits, PortRequest, Reservation
    from solo5_systemd.unit.outcome import Outcome


SECOND = 1_000_000

_OF_GUEST = {
    "hostname": "Hostname", "dns": "Name servers", "search": "Search domains", "ntp": "NTP servers", "hosts": "Hosts"
}  # fmt: skip
"""What a guest has by placeholders, as it is shown."""

_ENDINGS = {
    "stalled": "Hung and killed",
    "forbidden-system-call": "Forbidden call",
    "tender-refused": "Refused",
    "unknown": "Ended",
}
"""The column STATUS of each `unit.outcome.Ending` that is not shown as its value with blanks."""


def ending_word(ending: str) -> str:
    """Return the column STATUS of an `unit.outcome.Ending`, which a list of running tasks does not import."""
    return _ENDINGS.get(ending, ending.capitalize().replace("-", " "))


def status(task: Task, now: int, asleep: int = 0) -> str:
    """Return the column STATUS, in podman's format.

    Args:
        now: microseconds since the epoch.
        asleep: since when it sleeps or is dormant, in microseconds since the epoch; 0: it is awake, or over.
    """
    match task.phase:
        case Phase.STARTING | Phase.STOPPING | Phase.HUNG:
            return task.phase.value.capitalize()
        case Phase.RUNNING | Phase.FROZEN:
            if asleep and task.phase is Phase.RUNNING:  # no packet wakes a frozen one
                return f"Asleep {span((now - asleep) / SECOND)}"
            up = f"Up {span((now - task.started) / SECOND)}" if task.started else "Up"
            return f"{up} (frozen)" if task.phase is Phase.FROZEN else up
        case Phase.ENDED if asleep:
            return f"Dormant {span((now - asleep) / SECOND)}"
        case Phase.ENDED:
            return _ended(task, now)


def _ended(task: Task, now: int) -> str:
    word = "Ended" if task.started else "Not started"
    if task.outcome is not None:
        word = ending_word(task.outcome.ending)
        if task.outcome.ending == "exited":
            word = f"{word} ({task.outcome.exit_code})"
    return f"{word} {span((now - task.state.ended) / SECOND)} ago" if task.state.ended else word


def ports(endpoints: "Endpoints | None") -> str:
    """Return the column PORTS, in podman's format."""
    if endpoints is None:  # without a lease record: it has no NIC, or has ended
        return ""
    return ", ".join(_port(*endpoints.ports[first], count) for first, count in _ranges(endpoints.ports).items())


def addresses(endpoints: "Endpoints | None") -> str:
    """Return the column ADDRESS: the IPv4 address of each lease, or else its IPv6 address; "-" for one without."""
    return ", ".join(nic.address or nic.address6 or "-" for nic in endpoints.nics) if endpoints else ""


def port_lines(requests: "Sequence[PortRequest]") -> "Iterator[tuple[str, PortRequest]]":
    """Yield published ports as `HOSTIP:HOSTPORT->PORT/PROTOCOL`, a range as one, each with its first port."""
    ranges = _ranges([(*_ends(each), each.nic) for each in requests])
    for first, count in ranges.items():
        yield _port(*_ends(requests[first]), count), requests[first]


def _ends(request: "PortRequest") -> tuple[str, int, int, str]:
    return str(request.host_ip or ""), request.host_port, request.port, request.protocol.value


def _ranges(ports: "Iterable[tuple[Any, ...]]") -> dict[int, int]:
    """Return the index of the first port of each range, and the number of its ports; 1 for a port alone.

    Ports of one range, which have the same values after the third, may have others in between.
    """
    counts: dict[int, int] = {}
    expected: dict[tuple[Any, ...], int] = {}
    for index, (host_ip, host_port, port, *same) in enumerate(ports):
        first = expected.pop((host_ip, host_port, port, *same), index)
        expected[host_ip, host_port + 1, port + 1, *same] = first
        counts[first] = counts.get(first, 0) + 1
    return counts


def _port(host_ip: str, host_port: int, port: int, protocol: str, count: int = 1) -> str:
    shown = f"[{host_ip}]" if ":" in host_ip else host_ip or "0.0.0.0"  # noqa: S104 - shown, never bound
    ours, theirs = (f"{first}-{first + count - 1}" if count > 1 else str(first) for first in (host_port, port))
    return f"{shown}:{ours}->{theirs}/{protocol}"


Disks = Sequence[Mapping[str, Any]]
"""The disks of a task, as far as they are known.

Each has `disk`, `backing`, `path`, `sha256`, the names of the `devices` under it, `io_limits`, and in `device_io` what
the task has read and written on the first of these devices; `full` if no space is left in its file system; `outdated`
of an archive, if its files would make another one now; `change`: what has been done to the file or device.
"""


Drops = Mapping["DeviceName", Mapping[str, int]]
"""The packets of each NIC that the packet filter has dropped, by rule."""

NO_DROPS: Drops = {}


def task_fields(
    task: Task, now: int, *, drops: Drops = NO_DROPS, disks: Disks = (), problems: Sequence[str] = (), awake: str = ""
) -> Iterator[tuple[str, str]]:
    """Yield the names and values that `inspect` shows; empty values are unknown.

    Args:
        problems: of its network.
        awake: what keeps it awake; empty: nothing, or it never sleeps.
    """
    yield "Name", task.name
    yield "Status", status(task, now, task.asleep)
    if task.outcome is not None:
        yield "Outcome", task.outcome.sentence
        if not task.outcome.clean:
            yield "Retry", "can help" if task.outcome.retry else f"cannot help: {task.outcome.futile}"
        if task.outcome.memory_peak is not None:
            yield "Memory peak", size(task.outcome.memory_peak)
    yield "Unit", task.state.unit
    yield "Image", task.image
    yield "SHA-256", task.sha256
    yield "Tender", task.state.tender
    yield "Memory", size(task.memory) if task.memory else ""
    yield "Started", moment(task.started) if task.started else ""
    if task.state.ended:
        yield "Ended", moment(task.state.ended)
    if task.state.main_pid:
        yield "Main PID", str(task.state.main_pid)
    if task.state.control_group:
        yield "CGroup", task.state.control_group
    if task.state.log_namespace:
        yield "Journal", f"namespace {task.state.log_namespace}"
    for placeholder, name in _OF_GUEST.items():
        if values := task.of_placeholder(placeholder):
            yield name, ", ".join(values)
    if task.network_namespace:
        yield "Network", f"namespace {task.network_namespace}"
    for disk in disks:
        yield "Disk", _disk_text(disk)
    for lease in task.reservation.leases if task.reservation else ():
        yield "NIC", f"{lease.nic} {lease_text(lease)}"
    for lease in task.reservation.leases if task.reservation else ():
        for key, texts in _record(lease.limits).items():
            yield key.capitalize(), f"{lease.nic} {' '.join(texts) or 'none'}"
    if task.reservation is not None and task.reservation.idle_s:
        yield (
            "Ends" if task.reservation.idle_stops else "Sleeps",
            f"after {task.reservation.idle_s} s without a packet" + (f"; {awake}" if awake else ""),
        )
    for nic, rules in drops.items():
        yield "Dropped", f"{nic} {', '.join(f'{rule} {count}' for rule, count in rules.items() if count) or 'none'}"
    for each in problems:
        yield "Problem", each
    for line, request in port_lines(task.reservation.ports if task.reservation else ()):
        yield "Port", f"{line} ({request.nic})"


def _disk_text(disk: Mapping[str, Any]) -> str:
    """Return a disk with the device under it, the limits, and what the task has read and written there."""
    text = f"{disk.get('disk', '')}: {disk.get('backing', '')}"
    text += f" {disk['path']}" if "path" in disk else ""
    io = disk.get("device_io", {})
    parts = (
        f"SHA-256 {disk['sha256']}" if "sha256" in disk else "",
        "older than its files" if disk.get("outdated") else "",
        disk.get("change", ""),
        f"on {' on '.join(disk['devices'])}" if "devices" in disk else "",
        " ".join(f"{key}={limit}" for key, limit in disk.get("io_limits", {}).items()),
        f"read {size(io['read_bytes'])}" if "read_bytes" in io else "",
        f"written {size(io['written_bytes'])}" if "written_bytes" in io else "",
        "no space is left in its file system" if disk.get("full") else "",
    )
    return ", ".join((text, *filter(None, parts)))


def lease_text(lease: "Lease") -> str:
    """Return a lease in one line."""
    six = f"{lease.ipv6}, gateway {lease.gateway6 or '-'}, " if lease.ipv6 else ""
    four = f"{lease.ipv4 or 'no leased address'}, gateway {lease.gateway4 or '-'}, "
    return (
        f"on {lease.network}: {four if lease.ipv4 or not six else ''}{six}"
        f"MAC {lease.mac}, MTU {lease.mtu}, {lease.tap} in {lease.bridge}"
    )


def task_json(
    task: Task, *, drops: Drops = NO_DROPS, disks: Disks = (), problems: Sequence[str] = (), awake: str = ""
) -> dict[str, object]:
    """Return a task as a JSON object, with the arguments of `task_fields`; unknown values are absent."""
    held = task.reservation
    document: dict[str, object] = {
        "name": task.name,
        "phase": "dormant" if task.dormant else task.phase.value,
        "kind": task.state.kind.value,
        "unit": task.state.unit,
        "invocation_id": task.state.invocation,
        "image": task.image,
        "image_sha256": task.sha256,
        "tender": task.state.tender,
        "memory": task.memory,
        "pid": task.state.main_pid,
        "started": moment(task.started) if task.started else "",
        "ended": moment(task.state.ended) if task.state.ended else "",
        "dormant_since" if task.dormant else "asleep_since": moment(task.asleep) if task.asleep else "",
        "control_group": task.state.control_group,
        "log_namespace": task.state.log_namespace,
        "network_namespace": task.network_namespace,
        "hostname": "".join(task.of_placeholder("hostname")),
        "dns": list(task.of_placeholder("dns")),
        "dns_search": list(task.of_placeholder("search")),
        "ntp": list(task.of_placeholder("ntp")),
        "hosts": list(task.of_placeholder("hosts")),
        "idle_s": held.idle_s if held else 0,
        "awake_because": awake if held else "",
        "idle_action": "stop" if held and held.idle_stops else "",
        "outcome": outcome_json(task.outcome) if task.outcome else {},
        "disks": [dict(disk) for disk in disks],
        "network_problems": [*problems],
    }
    known = {key: value for key, value in document.items() if value} | reservation_json(held)
    if drops:
        known["drops"] = {nic: dict(rules) for nic, rules in drops.items()}
    # Those of --label, --log-field and Nomad.
    own = {key: value for key, value in task.state.log_fields.items() if not key.startswith("SOLO5_")}
    return known | {"log_fields": own}


def waiting_json(record: "LeaseRecord") -> dict[str, object]:
    """Return a dormant task as a JSON object, with the keys that a running one has as well."""
    held = record.reservation
    known = {"name": held.task, "phase": "dormant", "dormant_since": moment(record.asleep), "idle_s": held.idle_s}
    return known | reservation_json(held)


def outcome_json(outcome: "Outcome") -> dict[str, object]:
    """Return an outcome as a JSON object; unknown values are absent."""
    document: dict[str, object] = {
        "ending": outcome.ending.value,
        "sentence": outcome.sentence,
        "clean": outcome.clean,
        "retry": outcome.retry,
        "retry_reason": outcome.futile or None,
        "exit_status": outcome.shell_status,
        "exit_code": outcome.exit_code,
        "signal": None if outcome.signal is None else int(outcome.signal),
        "memory_peak": outcome.memory_peak,
        "full_disks": [
            {"disk": each.disk, "path": each.path, "free": each.free}
            for each in outcome.failed_disks
            if each.free is not None
        ]
        or None,
        "lost_disks": [{"disk": each.disk, "path": each.path} for each in outcome.failed_disks if each.free is None]
        or None,
    }
    return {key: value for key, value in document.items() if value is not None}


def reservation_json(reservation: "Reservation | None") -> dict[str, object]:
    """Return the keys `nics` and `ports`; both are empty lists without a reservation."""
    leases = reservation.leases if reservation else ()
    published = reservation.ports if reservation else ()
    return {"nics": [*map(_lease_json, leases)], "ports": [*map(port_json, published)]}


def _lease_json(lease: "Lease") -> dict[str, object]:
    """Return a lease as a JSON object, with the keys of its limits: `egress`, `rate`, `routes`."""
    document = _record(lease)
    limits: dict[str, object] = document.pop("limits", {})
    return {"ipv4": None, "gateway4": None, **document, **limits}


def _record(value: "Lease | Limits | PortRequest") -> dict[str, Any]:
    from solo5_systemd.settings.records import document

    return document(value)


def port_json(request: "PortRequest") -> dict[str, object]:
    """Return a published port as a JSON object."""
    return {"host_ip": "0.0.0.0"} | _record(request)  # noqa: S104 - shown, never bound
