"""The metric families, documented in docs/metrics.md; names and labels are stable.

They are written as OpenMetrics 1.0 or Prometheus 0.0.4, which node_exporter's textfile collector parses. In the latter
a counter's TYPE line has the `_total`, there is no UNIT and no EOF, and an unknown type such as `info` makes the parser
reject all of the file.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple

from solo5_systemd import __version__
from solo5_systemd.base.names import TaskName
from solo5_systemd.cgroup.usage import Io, Usage
from solo5_systemd.engine.task import Phase, Sample, Task
from solo5_systemd.network.drops import OF_GUESTS, OF_TAPS, of_nics
from solo5_systemd.network.endpoints import Endpoints
from solo5_systemd.network.use import NetworkUse, dropped_by_namespace

if TYPE_CHECKING:
    from solo5_systemd.storage.model import FailedDisk

Labels = Mapping[str, str]

Kind = Literal["counter", "gauge"]
"""The metric types in use; both formats have them."""


class Family(NamedTuple):
    """A metric family: its name without a counter's `_total`, and labels and value of each sample."""

    name: str
    kind: Kind
    help: str
    values: Sequence[tuple[Labels, float]]


def exposition(families: Iterable[Family], *, for_file: bool = False) -> str:
    """Return families as OpenMetrics 1.0, or for a file as Prometheus 0.0.4; those without samples are omitted."""
    text = "".join(_text(family, for_file=for_file) for family in families if family.values)
    return text if for_file else f"{text}# EOF\n"


def _text(family: Family, *, for_file: bool) -> str:
    name, unit = family.name, family.name.rpartition("_")[2]
    sample = f"{name}_total" if family.kind == "counter" else name
    if for_file:
        text = family.help.replace("\\", r"\\").replace("\n", r"\n")
        lines = [f"# HELP {sample} {text}\n# TYPE {sample} {family.kind}\n"]
    else:
        units = f"# UNIT {name} {unit}\n" if unit in ("bytes", "seconds") else ""
        lines = [f"# TYPE {name} {family.kind}\n{units}# HELP {name} {_quoted(family.help)}\n"]
    for labels, value in family.values:  # to Prometheus, an empty label is an absent one
        pairs = ",".join([f'{label}="{_quoted(text)}"' for label, text in labels.items() if text])
        lines.append(f"{sample}{{{pairs}}} {value}\n" if pairs else f"{sample} {value}\n")
    return "".join(lines)


@cache
def _quoted(text: str) -> str:
    """Return text escaped for double quotes; lone surrogates are replaced, as parsers reject invalid UTF-8."""
    whole = text.encode("utf-8", "replace").decode()
    return whole.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


Values = Iterable[tuple[Labels, float | None]]
"""Labels and value of each sample; samples with the value None (unknown) are omitted."""


def families(
    tasks: Sequence[Task],
    endpoints: Mapping[TaskName, Endpoints],
    samples: Mapping[TaskName, Sample],
    networks: Sequence[NetworkUse],
    full: "Sequence[FailedDisk]" = (),
) -> Iterator[Family]:
    """Yield the families of tasks that have not ended, of their resource usage, and of networks."""
    yield _known("solo5_build_info", "gauge", "Version of solo5-systemd; always 1.", [({"version": __version__}, 1)])
    yield from _task_families(tasks, endpoints)
    for name, kind, text, read in _SAMPLE_METRICS:
        found = (({"task": task, **labels}, value) for task, now in samples.items() for labels, value in read(now))
        yield _known(name, kind, text, found)
    yield _known(
        "solo5_task_disk_full",
        "gauge",
        "1 while no space is left in the file system of a disk that may need some; absent otherwise.",
        [({"task": each.task, "disk": each.disk}, 1) for each in full],
    )
    own = [network for network in networks if not network.namespace]
    # Of the others nothing is known: they have no range, no lease and no bridge yet.
    known = [network for network in own if network.up or network.leases or network.free is not None]
    for name, text, value in _NETWORK_METRICS:
        yield _known(name, "gauge", text, [({"network": network.name}, value(network)) for network in known])
    yield from _drop_families(endpoints, networks)


def _known(name: str, kind: Kind, text: str, values: Values) -> Family:
    """Return a family of the samples whose value is known."""
    return Family(name, kind, text, [(labels, value) for labels, value in values if value is not None])


def _task_families(tasks: Sequence[Task], endpoints: Mapping[TaskName, Endpoints]) -> Iterator[Family]:
    phases = Counter(task.phase for task in tasks)
    counted = [({"phase": phase.value}, phases[phase]) for phase in Phase if phase is not Phase.ENDED]
    yield _known("solo5_tasks", "gauge", "Number of tasks by phase.", counted)
    infos = [(_info_labels(task), 1) for task in tasks]
    yield _known("solo5_task_info", "gauge", "Labels of a task; always 1.", infos)
    started = [({"task": task.name}, task.started / 1e6) for task in tasks if task.started]
    yield _known("solo5_task_start_time_seconds", "gauge", "Start time of the task since the epoch.", started)
    nics = [
        ({"task": task.name, "nic": nic, "network": network, "ipv4": ipv4, "ipv6": ipv6, "tap": tap}, 1)
        for task in tasks
        if task.name in endpoints
        for nic, network, ipv4, tap, ipv6 in endpoints[task.name].nics
    ]
    yield _known("solo5_task_nic_info", "gauge", "Labels of a NIC's lease; always 1.", nics)
    known = {task.name for task in tasks}
    sleepers = [(name, each) for name, each in endpoints.items() if name in known or each.waits]

    def of_sleep(name: str, kind: Kind, text: str, read: Callable[[Endpoints], float]) -> Family:
        return _known(name, kind, text, [({"task": task}, read(each)) for task, each in sleepers])

    text = "1 while the task sleeps, else 0."
    yield of_sleep("solo5_task_asleep", "gauge", text, lambda each: int(each.asleep > 0 and not each.waits))
    text = "1 while the task has no process and waits, else 0."
    yield of_sleep("solo5_task_dormant", "gauge", text, lambda each: int(each.waits))
    yield of_sleep("solo5_task_wakes", "counter", "Wakes of the task.", lambda each: each.wakes)
    text = "Time asleep or dormant, up to the last wake."
    yield of_sleep("solo5_task_slept_seconds", "counter", text, lambda each: each.slept / 1e6)


def _info_labels(task: Task) -> Labels:
    fields = task.state.log_fields
    return {
        "task": task.name,
        "unit": task.state.unit,
        "image": task.image.rpartition("/")[2],
        "image_sha256": task.sha256,
        "tender": task.state.tender,
        "nomad_namespace": fields.get("NOMAD_NAMESPACE", ""),
        "nomad_job": fields.get("NOMAD_JOB_NAME", ""),
        "nomad_group": fields.get("NOMAD_GROUP_NAME", ""),
        "nomad_task": fields.get("NOMAD_TASK_NAME", ""),
        "nomad_alloc_id": fields.get("NOMAD_ALLOC_ID", ""),
    }


def _drop_families(endpoints: Mapping[TaskName, Endpoints], networks: Sequence[NetworkUse]) -> Iterator[Family]:
    counted = dropped_by_namespace(network for network in networks if network.up)
    of_tasks = [
        ({"task": task, "nic": nic, "rule": rule}, count)
        for task, found in endpoints.items()
        for nic, rules in of_nics(found.nics, counted.get(found.namespace, {})).items()
        for rule, count in rules.items()
    ]
    text = "Packets of a NIC dropped by a rule of the packet filter."
    yield _known("solo5_task_network_filtered_packets", "counter", text, of_tasks)
    of_networks = [
        ({"network": name, "rule": rule}, count)
        for name, dropped in counted.get("", {}).items()
        for rule, count in dropped.by_rule().items()
        if rule not in (*OF_GUESTS, *OF_TAPS)  # these are counted by NIC above
    ]
    text = "Packets from or to a network dropped by a rule of the packet filter."
    yield _known("solo5_network_filtered_packets", "counter", text, of_networks)


_NETWORK_METRICS: Sequence[tuple[str, str, Callable[[NetworkUse], int | None]]] = (
    ("solo5_network_leases", "Leases.", lambda network: network.leases),
    ("solo5_network_free_addresses", "Free addresses.", lambda network: network.free),
    ("solo5_network_up", "1 if the network's bridge exists, else 0.", lambda network: int(network.up)),
)


def _gauge(name: str, text: str, read: Callable[[Usage], float | None]) -> "_Metric":
    return name, "gauge", text, lambda now: [({}, read(now.usage))]


def _counter(name: str, text: str, read: Callable[[Usage], float | None]) -> "_Metric":
    return name, "counter", text, lambda now: [({}, read(now.usage))]


def _by_disk(name: str, text: str, read: Callable[[Io], float | None]) -> "_Metric":
    def values(now: Sample) -> Values:
        return [
            ({"device": device, "disks": ",".join(now.disks.get(device, ()))}, read(io))
            for device, io in (now.usage.disks or {}).items()
        ]

    return name, "counter", text, values


def _by_nic(way: Literal["receive", "transmit"], count: str, text: str) -> "_Metric":
    def values(now: Sample) -> Values:
        counters = {nic: each.received if way == "receive" else each.sent for nic, each in now.nics.items()}
        return [({"nic": nic}, getattr(each, count)) for nic, each in counters.items()]

    return f"solo5_task_network_{way}_{count}", "counter", text, values


def _by_resource(name: str, kind: Literal["some", "full"], text: str) -> "_Metric":
    def values(now: Sample) -> Values:
        pressure = (now.usage.pressure or {}).items()
        return [({"resource": resource}, _seconds(each.get(kind, {}).get("total"))) for resource, each in pressure]

    return name, "counter", text, values


def _seconds(microseconds: float | None) -> float | None:
    return None if microseconds is None else microseconds / 1e6


_Metric = tuple[str, Kind, str, Callable[[Sample], Values]]

_SAMPLE_METRICS: Sequence[_Metric] = (
    (
        *("solo5_task_cpu_seconds", "counter", "CPU time of guest and tender."),
        lambda now: [({"mode": mode}, _seconds(getattr(now.usage.cpu, mode))) for mode in ("user", "system")],
    ),
    _counter("solo5_task_cpu_periods", "Elapsed periods of the CPU quota.", lambda u: u.cpu.periods),
    _counter("solo5_task_cpu_throttled_periods", "Throttled periods.", lambda u: u.cpu.throttled_periods),
    _counter("solo5_task_cpu_throttled_seconds", "Throttled time.", lambda u: _seconds(u.cpu.throttled)),
    _gauge("solo5_task_memory_rss_bytes", "Resident memory of guest and tender.", lambda u: u.memory.rss),
    _gauge("solo5_task_memory_cache_bytes", "Page cache.", lambda u: u.memory.cache),
    _gauge("solo5_task_memory_kernel_bytes", "Kernel memory of the task.", lambda u: u.memory.kernel),
    _gauge("solo5_task_memory_swap_bytes", "Swapped memory.", lambda u: u.memory.swap),
    _gauge("solo5_task_memory_usage_bytes", "Memory charged to the cgroup.", lambda u: u.memory.current),
    _gauge("solo5_task_memory_peak_bytes", "Highest memory usage so far.", lambda u: u.memory.peak),
    _gauge("solo5_task_memory_limit_bytes", "Memory limit; absent without a limit.", lambda u: u.memory.limit),
    _counter("solo5_task_oom_kills", "Processes killed by the OOM killer.", lambda u: u.memory.oom_kills),
    _gauge("solo5_task_processes", "Processes and threads.", lambda u: u.processes),
    _by_disk("solo5_task_block_read_bytes", "Bytes read from a host device.", lambda io: io.read_bytes),
    _by_disk("solo5_task_block_written_bytes", "Bytes written to a host device.", lambda io: io.written_bytes),
    _by_disk("solo5_task_block_reads", "Read operations on a host device.", lambda io: io.reads),
    _by_disk("solo5_task_block_writes", "Write operations on a host device.", lambda io: io.writes),
    _by_nic("receive", "bytes", "Bytes received by the guest."),
    _by_nic("receive", "packets", "Frames received by the guest."),
    _by_nic("receive", "errors", "Receive errors of the guest."),
    _by_nic("receive", "drops", "Frames dropped because the guest did not read them in time."),
    _by_nic("transmit", "bytes", "Bytes sent by the guest."),
    _by_nic("transmit", "packets", "Frames sent by the guest."),
    _by_nic("transmit", "errors", "Transmit errors of the guest."),
    _by_nic("transmit", "drops", "Frames of the guest dropped by the host."),
    _by_resource("solo5_task_pressure_waiting_seconds", "some", "Time in which some thread waited for the resource."),
    _by_resource("solo5_task_pressure_stalled_seconds", "full", "Time in which all threads waited for the resource."),
)
