"""Convert Nomad's TaskConfig and a job's task options to the engine's Workload, or refuse them with one sentence."""

import posixpath
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, cast

from solo5_systemd.base.errors import InvalidRequestError, located
from solo5_systemd.base.names import DeviceName, NetworkName, TaskName, hash_of, task_name
from solo5_systemd.base.sanitize import MAX_NAME, bounded, name_for_unit
from solo5_systemd.network.model import Limits, NicRequest
from solo5_systemd.nomad import ports, volumes
from solo5_systemd.nomad.option_values import Logging, Pairs
from solo5_systemd.nomad.plugin_config import TIGHTENING, PluginConfig
from solo5_systemd.nomad.proto import driver_pb2 as wire
from solo5_systemd.nomad.task_options import DiskOptions, TaskOptions
from solo5_systemd.settings.network import DEFAULT_NETWORK
from solo5_systemd.settings.node_limits import tenant
from solo5_systemd.settings.resolver import Resolver, resolver
from solo5_systemd.storage.archive import archive_disk, member
from solo5_systemd.storage.io_limits import lowered
from solo5_systemd.storage.model import ArchiveRequest, DiskRequest, named_disk
from solo5_systemd.task.placeholders import COMMAND_LINE_MAX
from solo5_systemd.task.properties import parse_property
from solo5_systemd.task.property_types import INFINITY
from solo5_systemd.task.setting_values import check_reaches_guest
from solo5_systemd.task.settings import SETTINGS
from solo5_systemd.task.workload import MIB, Workload
from solo5_systemd.unit.confinement import USER
from solo5_systemd.unit.translate import TASKS_MAX

SHARED_SLICE = "solo5-shared.slice"
"""The slice of tasks without reserved cores. Its AllowedCPUs= follows Nomad's shared partition, by one call for all."""

RESERVED_SLICE = "solo5-reserved.slice"
"""The slice of tasks with reserved cores, each of which has an AllowedCPUs= of its own."""

QUIET = "--solo5:quiet"
"""The first argument by which Solo5's bindings print only aborts."""

OF_NOMAD = ("api.sock", ".nomad-mount")
"""What Nomad makes in each task's `secrets`: the socket of its API, and the mark of a mounted file system."""

_SLUG_MAX = 40
_UNFIT = re.compile(r"[^A-Za-z0-9_.]+", re.ASCII)


def workload_of(
    task: wire.TaskConfig,
    options: TaskOptions,
    plugin: PluginConfig,
    cores: int,
    served: Container[NetworkName] = (),
) -> Workload:
    """Return the workload of a task on a host with so many processors, and networks `served` by DHCP.

    Raises:
        InvalidRequestError: the job uses a feature that a unikernel or this driver does not support.
    """
    _refuse_unsupported(task)
    _refuse_placeholders_of_others(task, options)
    disks = tuple(_disks(task, options, plugin))
    volumes.check(task, (each for each in disks if options.block[each.disk].volume is not None))
    defaults = plugin.defaults
    linux, memory = task.resources.linux_resources, task.resources.allocated_resources.memory
    hard = defaults.cpu_hard_limit if options.cpu_hard_limit is None else options.cpu_hard_limit
    # A NIC that is not mentioned joins the default network.
    networks = {nic.network for nic in options.nic.values()} or {DEFAULT_NETWORK}
    by_dhcp = any(network in served for network in networks)
    for each in SETTINGS.values():
        if each.job and each.by_dhcp and attrgetter(each.field)(options.shared):
            check_reaches_guest(each, f"config.{each.job}", options.args, lambda: by_dhcp)
    quiet = defaults.quiet if options.quiet is None else options.quiet
    return replace(
        options.shared,
        name=name_of(task.id),
        image=host_path("unikernel", options.shared.image, task),
        roots=(task_directory(task), shared_directory(task), *plugin.image_paths),
        arguments=((QUIET,) if quiet else ()) + options.shared.arguments,
        memory=memory.memory_mb * MIB,
        memory_max=INFINITY if memory.memory_max_mb < 0 else memory.memory_max_mb * MIB or None,
        cpus=linux.PercentTicks * cores if hard and linux.PercentTicks > 0 else None,  # a part of all processors
        cpu_weight=cpu_weight(linux.cpu_shares),
        nics=tuple(
            NicRequest(
                nic=name,
                network=nic.network,
                ipv4=nic.ip,
                mac=nic.mac,
                ipv6=nic.ip6,
                limits=Limits(egress=nic.egress, rate=nic.rate, routes=nic.routes),
            )
            for name, nic in options.nic.items()
        ),
        namespace=ports.namespace(task),
        publish=tuple(ports.publish(task, options)),
        resolver=_resolver(task, options.args, by_dhcp=by_dhcp) | options.shared.resolver,
        port_labels=tuple((port.label, port.value) for port in ports.allocated(task)),
        disks=disks,
        tender=options.shared.tender or defaults.tender,
        kind=options.unit or defaults.unit,
        slice=RESERVED_SLICE if linux.cpuset_cpus else SHARED_SLICE,
        properties=_unit_properties(task, options, plugin),
        log_fields=(*options.labels, *log_fields(task)),
        tenant=tenant(task.namespace, task.job_id),
        policy=plugin,
        description=f"Nomad task {task.job_name or task.job_id}/{task.task_group_name}/{task.name}",
    )


def logging_of(task: wire.TaskConfig, options: TaskOptions, plugin: PluginConfig) -> Logging:
    """Return the console's destination. The log files of a job with `logs { disabled = true }` are /dev/null."""
    if plugin.disable_log_collection or task.stdout_path in ("", "/dev/null"):
        return Logging.JOURNALD
    return options.logging or plugin.defaults.logging


def task_directory(task: wire.TaskConfig) -> str:
    """Return the task's own directory, which has `local` and `secrets`."""
    return posixpath.join(task.alloc_dir, task.name)


def shared_directory(task: wire.TaskConfig) -> str:
    """Return the directory that all tasks of the allocation share: NOMAD_ALLOC_DIR."""
    return posixpath.join(task.alloc_dir, "alloc")


def image_candidates(options: TaskOptions, task: wire.TaskConfig, plugin: PluginConfig) -> tuple[str, ...]:
    """Return the candidate paths of the image, of which the first that exists is used.

    A relative path is looked up in the task's directory, then in each of `image_paths`; raises as `host_path`.
    """
    image = options.shared.image
    directories = () if image.startswith("/") else plugin.image_paths
    others = (posixpath.normpath(posixpath.join(directory, image)) for directory in directories)
    return (host_path("unikernel", image, task), *others)


def cpu_weight(shares: int) -> int:
    """Return CPUWeight= (1–10000) for Nomad's `cpu` in MHz: a tenth, so that the shares of tasks keep their ratio."""
    return max(1, min(10000, round(shares / 10)))


def log_fields(task: wire.TaskConfig) -> Iterator[tuple[str, str]]:
    """Yield the fields of every journal line of the task, for `journalctl NOMAD_JOB_NAME=web`."""
    # Nomad refuses only NUL in the names of job, group and task: these are escaped.
    yield "NOMAD_NAMESPACE", name_for_unit(task.namespace)
    yield "NOMAD_JOB_NAME", name_for_unit(task.job_name)
    yield "NOMAD_JOB_ID", name_for_unit(task.job_id)
    yield "NOMAD_GROUP_NAME", name_for_unit(task.task_group_name)
    yield "NOMAD_TASK_NAME", name_for_unit(task.name)
    yield "NOMAD_ALLOC_ID", task.alloc_id
    yield "NOMAD_ALLOC_DIR", shared_directory(task)


def _refuse_unsupported(task: wire.TaskConfig) -> None:
    if task.name in ("", ".", "..", "alloc") or "/" in task.name:  # Nomad makes a directory of this name
        raise InvalidRequestError(
            f"task name {task.name!r} is outside of the task's directory: expected a name that is one of a directory.",
            "Rename the task.",
        )
    if task.user not in ("", USER):
        raise InvalidRequestError(
            f"task {task.name} sets user {task.user!r}: every task runs as a user of its own.",
            "Leave user out.",
        )
    if task.mounts and "CSI_ENDPOINT" in task.env:  # set by Nomad for a task with a csi_plugin block
        raise InvalidRequestError(
            f"task {task.name} has a csi_plugin block: a unikernel has no socket that Nomad could call.",
            "Run the CSI plugin by a driver for containers.",
        )
    if task.devices:
        where = task.devices[0].task_path or task.devices[0].host_path
        raise InvalidRequestError(
            f"task {task.name} has a device ({where}): a unikernel has no file system to mount it in.",
            'Give it a disk: config { block "NAME" { source = "…" } }',
        )
    mode = task.network_isolation_spec.mode  # HOST without the message
    if mode not in (wire.NetworkIsolationSpec.HOST, wire.NetworkIsolationSpec.GROUP):
        name = wire.NetworkIsolationSpec.NetworkIsolationMode.Name(mode)
        raise InvalidRequestError(
            f"task {task.name} is in a group with a network of mode {name}: expected HOST or GROUP.",
            'Use network { mode = "host" }, "bridge" or "cni/NAME".',
        )


# --- unit properties: the job's, which may only lower the operator's limits, and its reserved cores ---


Assignments = Sequence[tuple[str, str]]

USUAL: Mapping[str, str] = {"TasksMax": str(TASKS_MAX), "LimitCORE": "0", "LimitNOFILE": "524288"}
"""Limits that apply if the operator sets none; that of file descriptors is systemd's (systemd-system.conf(5)).

All other properties are unlimited by default, so a job can only lower them.
"""

_LIMITS = {*TIGHTENING, "LimitMEMLOCK"} - {"SystemCallFilter"}
_OF_DEVICES = frozenset("IOReadBandwidthMax IOReadIOPSMax IOWriteBandwidthMax IOWriteIOPSMax".split())
_ADDING_UP = _OF_DEVICES | {"SystemCallFilter"}


def _unit_properties(task: wire.TaskConfig, options: TaskOptions, plugin: PluginConfig) -> Pairs:
    found = merged_properties(options.properties, plugin.defaults.properties, plugin.allowed_properties)
    if cpus := task.resources.linux_resources.cpuset_cpus:
        # Reserved cores are the scheduler's decision: no property may override them.
        return (*((key, text) for key, text in found if key != "AllowedCPUs"), ("AllowedCPUs", cpus))
    return found


def merged_properties(job: Assignments, operator: Assignments, allowed: Iterable[str]) -> Pairs:
    """Return the properties of job and operator, in the order in which they must be set.

    A job may lower a limit, and raise none. Raises InvalidRequestError.
    """
    names, base = {*allowed}, {**USUAL, **dict(operator)}
    for key, text in job:
        if key not in names:
            raise InvalidRequestError(
                f"config.properties.{key} may not be set by a job: expected one of {', '.join(sorted(names))}.",
                "The operator allows more in plugin.solo5.config.allowed_properties.",
            )
        if key in base and _is_looser(key, text, base[key]):
            raise InvalidRequestError(
                f"config.properties.{key} is {text!r}: expected no more than {base[key]!r}, which holds without it.",
                f"The operator raises it in plugin.solo5.config.defaults.properties.{key}.",
            )
    # Assignments of the others add up in systemd, so that the operator's must stay.
    replaced = {key for key, _ in job} - _ADDING_UP
    return (*((key, text) for key, text in operator if key not in replaced), *job)


def _is_looser(key: str, text: str, base: str) -> bool:
    """Return whether a job's limit is above the operator's; limits of different devices are independent."""
    given, held = (cast("Any", parse_property(key, each).value) for each in (text, base))
    if key in _OF_DEVICES:
        [(device, most)], [(limited, least)] = given, held
        return bool(device == limited and most > least)
    return key in _LIMITS and bool(given > held)


# --- devices -----------------------------------------------------------------------------------------------------


def _disks(task: wire.TaskConfig, options: TaskOptions, plugin: PluginConfig) -> Iterator[DiskRequest]:
    """Yield the disks, those with a device with their I/O limits and the operator's."""
    for name, disk in options.block.items():
        if disk.files:
            yield _archive(name, disk, task)
            continue
        limits = lowered(disk.io, plugin.ceilings.io, f'config.block "{name}".io')
        yield replace(_disk(name, disk, task, plugin), io=limits)


def _disk(name: DeviceName, disk: DiskOptions, task: wire.TaskConfig, plugin: PluginConfig) -> DiskRequest:
    if disk.volume is not None:
        return volumes.disk_request(task, name, disk)
    if disk.disk is not None:
        return named_disk(name, disk.disk, sector_size=disk.sector_size, create=disk.size, private=disk.private)
    own, shared = task_directory(task), shared_directory(task)
    return DiskRequest(
        disk=name,
        path=host_path(f'block "{name}".source', disk.source, task),
        sector_size=disk.sector_size,
        roots=(own, shared, *plugin.block_paths),
        allocation=(own, shared),
        holder=_holder(task),
        private=disk.private,
    )


def _archive(name: DeviceName, disk: DiskOptions, task: wire.TaskConfig) -> DiskRequest:
    """Return a disk with files of the task: of `local`, `secrets` and the directory that tasks share, `alloc`."""
    own, shared = task_directory(task), shared_directory(task)
    secrets = posixpath.join(own, "secrets")
    members = []
    for file in disk.files:
        first, _, rest = posixpath.normpath(file).partition("/")
        path = posixpath.join(shared, rest) if first == "alloc" else posixpath.join(own, file)
        members.append(member(file, posixpath.normpath(path), strip=disk.strip))
    archive = archive_disk(
        name,
        ArchiveRequest(
            members=tuple(members),
            excluded=tuple(posixpath.join(secrets, each) for each in OF_NOMAD),
            format=disk.format,
        ),
        sector_size=disk.sector_size,
        roots=(posixpath.join(own, "local"), secrets, shared),
    )
    return replace(archive, holder=_holder(task))


def _holder(task: wire.TaskConfig) -> str:
    """Return the holder of the disks of an allocation; see `storage.owner`."""
    return f"job {task.namespace}/{task.job_id}"


def host_path(what: str, path: str, task: wire.TaskConfig) -> str:
    """Return a path of the host, relative ones from the task's directory; raises InvalidRequestError for a NUL."""
    if "\0" in path:
        raise InvalidRequestError(f"config.{what} {path!r} is not a path: it contains a NUL byte.")
    return posixpath.normpath(posixpath.join(task_directory(task), path))


# --- name servers ------------------------------------------------------------------------------------------------


def _resolver(task: wire.TaskConfig, arguments: Sequence[str], *, by_dhcp: bool) -> Resolver:
    """Return the name servers and search domains of `network { dns }`.

    Nomad passes the block of the group or, without one, what a CNI plugin returned.
    """
    where = f"task {task.name} is in a group with network.dns"
    if task.dns.options:
        raise InvalidRequestError(
            f"{where}.options ({bounded(', '.join(task.dns.options), MAX_NAME)}): a unikernel has no resolv.conf.",
            "Remove options, and pass what the guest takes among args.",
        )
    for name, key, values in (("DNS", "servers", task.dns.servers), ("DNSSearch", "searches", task.dns.searches)):
        # In a group with a network of its own they may be a CNI plugin's, not the job's: an event reports them instead.
        if values and not ports.namespace(task):
            check_reaches_guest(SETTINGS[name], f"{where}.{key}, which", arguments, lambda: by_dhcp)
    with located("network.dns"):
        return resolver(task.dns.servers, task.dns.searches)


ARGS_MAX = 4 * COMMAND_LINE_MAX
"""Characters of `args`, in which placeholders and doubled braces are longer than what they stand for."""

_OF_DISPATCH = "NOMAD_META_"
"""What the environment variables begin with whose values a dispatcher of the job may choose."""


def _refuse_placeholders_of_others(task: wire.TaskConfig, options: TaskOptions) -> None:
    """Refuse braces in `args` that a dispatcher has chosen: Nomad has put the value there; they name placeholders."""
    text = "\0".join(options.args)  # which no variable has
    if len(text) > ARGS_MAX:
        raise InvalidRequestError(
            f"config.args has {len(text)} characters: expected at most {ARGS_MAX}. A tender takes {COMMAND_LINE_MAX} "
            "bytes, with placeholders replaced."
        )
    for name, value in sorted(task.env.items(), reverse=True):  # NOMAD_META_json is there as NOMAD_META_JSON, too
        if name.startswith(_OF_DISPATCH) and {*value} & {*"{}"} and value in text:
            raise InvalidRequestError(
                f"config.args has the value of {name}, in which braces would be placeholders: expected it in verbatim.",
                'Write verbatim = ["--NAME=${' + name + '}"] in the job; these arguments follow args, as they are.',
            )


# --- name --------------------------------------------------------------------------------------------------------


def name_of(task_id: str) -> TaskName:
    """Return the task's name on this host, such as `web-3fa85f64-9c1185a5c5e9`, from Nomad's task ID alone.

    So stop and destroy need no stored state. Task and allocation are for readers, and the hash makes it unique. An ID
    is `ALLOCATION/TASK/RANDOM`, new for each start; any other text has a name, too.
    """
    allocation, _, rest = task_id.partition("/")
    task = rest.rpartition("/")[0] or allocation
    return task_name("-".join((_slug(task) or "task", _slug(allocation)[:8] or "none", hash_of(task_id, 12))))


def _slug(text: str) -> str:
    return _UNFIT.sub("_", text)[:_SLUG_MAX].lstrip("_.")
