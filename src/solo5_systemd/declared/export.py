"""From a task that runs to its declaration: `solo5ctl export`.

The start does not keep its request. What runs is read from the tender's command line, the lease record, the records of
disks, the unit's fields and its cgroup; what these do not have is a comment.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import DeviceName, Target, TaskName, device_name, disk_name
from solo5_systemd.declared.declaration import write_declaration
from solo5_systemd.network.model import Lease, NicRequest, Reservation
from solo5_systemd.storage.model import NAMED_DISKS, SECTOR_SIZE, Backing, DiskRequest, named_disk
from solo5_systemd.task.disks import disk as parse_disk
from solo5_systemd.task.log_fields import NETWORK_NAMESPACE, OF_PLACEHOLDERS
from solo5_systemd.task.placeholders import mirage, verbatim
from solo5_systemd.task.property_types import INFINITY
from solo5_systemd.task.workload import DEFAULT_MEMORY, Publish, Workload

_DEFAULT_WEIGHT = 100
_PAGE = 4096
_SECTOR = "--block-sector-size:"
_NOMAD = "NOMAD_"


@dataclass(frozen=True, kw_only=True)
class RunningTask:
    """What is known of a task that runs.

    Attributes:
        fields: of its journal lines.
        argv: of its tender.
        reservation: its leases and ports; None without NICs.
        disks: as their lock files have them.
        memory_max: bytes of its cgroup's memory.max; None: not known, INFINITY: no limit.
        cpus: processors of its cgroup's cpu.max; None: no limit.
        cpu_weight: of its cgroup's cpu.weight; None: not known.
    """

    name: TaskName
    fields: Mapping[str, str]
    argv: Sequence[str]
    reservation: Reservation | None = None
    disks: Sequence[Mapping[str, str]] = ()
    memory_max: int | None = None
    cpus: float | None = None
    cpu_weight: int | None = None


def exported(task: RunningTask) -> str:
    """Return the declaration of a task that runs.

    Raises:
        InvalidRequestError: its command line is not that of a tender, or a declaration cannot describe it.
    """
    if "--" not in task.argv or "SOLO5_IMAGE" not in task.fields:
        raise InvalidRequestError(
            f"task {task.name} runs no tender: it may be starting or ending.", f"See: solo5ctl inspect {task.name}"
        )
    notes = [f"Task {task.name} as it runs, written by solo5ctl export."]
    held = task.reservation or Reservation(task=task.name)
    arguments = tuple(_arguments(task.argv[list(task.argv).index("--") + 2 :], held.leases))
    fields = {key: value for key, value in task.fields.items() if not key.startswith(("SOLO5_", _NOMAD))}
    memory = int(task.fields.get("SOLO5_MEMORY", DEFAULT_MEMORY))
    workload = Workload(
        name=task.name,
        image=task.fields["SOLO5_IMAGE"],
        arguments=arguments,
        memory=memory,
        memory_max=_memory_max(task.memory_max, memory),
        cpus=task.cpus,
        cpu_weight=None if task.cpu_weight == _DEFAULT_WEIGHT else task.cpu_weight,
        nics=tuple(_nics(held, arguments)),
        idle_s=held.idle_s,
        idle_stops=held.idle_stops,
        namespace=_namespace(task, notes),
        publish=tuple(
            Publish(
                nic=port.nic, host_ip=port.host_ip, host_port=port.host_port, port=port.port, protocol=port.protocol
            )
            for port in held.ports
        ),
        disks=tuple(_disks(task, notes)),
        tender=Target(task.fields["SOLO5_TENDER"]) if "SOLO5_TENDER" in task.fields else None,
        log_fields=tuple(fields.items()),
    )
    _note_the_rest(task, workload, notes)
    return write_declaration(workload, notes)


def _arguments(words: Sequence[str], leases: Sequence[Lease]) -> Iterator[str]:
    """Yield the arguments, those of `{mirage}` and its like as this placeholder, and other braces doubled."""
    groups = {group: expanded for group, expanded in mirage(leases).items() if expanded}
    at = 0
    while at < len(words):
        group = next((name for name, each in groups.items() if tuple(words[at : at + len(each)]) == each), None)
        if group is None:
            yield verbatim(words[at])
            at += 1
        else:
            yield f"{{{group}}}"
            at += len(groups[group])


def _memory_max(found: int | None, memory: int) -> int | None:
    """Return MemoryMax= where it is not Memory=; the kernel has it in whole pages."""
    if found is None or found // _PAGE == memory // _PAGE:
        return None
    return found if found == INFINITY else max(found, memory)  # a declaration refuses less than Memory=


def _nics(reservation: Reservation, arguments: Iterable[str]) -> Iterator[NicRequest]:
    """Yield the NICs, with the addresses that an argument has literally."""
    text = " ".join(arguments)
    for lease in reservation.leases:
        yield NicRequest(
            nic=lease.nic,
            network=lease.network,
            ipv4=lease.address if lease.address and str(lease.address) in text else None,
            ipv6=lease.address6 if lease.address6 and str(lease.address6) in text else None,
            limits=lease.limits,
        )


def _namespace(task: RunningTask, notes: list[str]) -> str:
    path = task.fields.get(NETWORK_NAMESPACE, "")
    if path and _of_nomad(task):
        notes.append(
            f"It shares the network namespace {path} with its group, which ends with the allocation: left out."
        )
        return ""
    return path


def _of_nomad(task: RunningTask) -> bool:
    return any(key.startswith(_NOMAD) for key in task.fields)


def _disks(task: RunningTask, notes: list[str]) -> Iterator[DiskRequest]:
    sectors = dict(word.removeprefix(_SECTOR).split("=", 1) for word in task.argv if word.startswith(_SECTOR))
    for record in task.disks:
        name = record.get("disk", "")
        sector = int(sectors.pop(name, SECTOR_SIZE))
        if record.get("backing") == Backing.ARCHIVE:
            notes.append(f"Disk {name} is an archive of {record.get('path', 'files')}: add Block={name}=files:PATH.")
            continue
        yield replace(
            _request(device_name(name), record.get("path", "")),
            sector_size=sector,
            private=record.get("backing") == Backing.COPY,
            io=parse_disk(",".join((f"{name}=/", *record.get("io", "").split()))).io,
        )
    notes.extend(f"Disk {name} is not known: add Block={name}=FILE." for name in sectors)


def _request(disk: DeviceName, path: str) -> DiskRequest:
    """Return a request of a path, which is not parsed: a job may choose a name such as `a.img,ephemeral`."""
    directory, _, name = path.rpartition("/")
    return named_disk(disk, disk_name(name)) if directory == NAMED_DISKS else DiskRequest(disk=disk, path=path)


def _note_the_rest(task: RunningTask, workload: Workload, notes: list[str]) -> None:
    if _of_nomad(task):
        names = (task.fields.get(f"{_NOMAD}{part}", "") for part in ("JOB_NAME", "GROUP_NAME", "TASK_NAME"))
        notes.append(
            f"It is a task of Nomad ({'/'.join(names)}), which keeps it running: stop the job before this starts."
        )
        notes.append("Files of its allocation are removed with it: copy Image= and the files of Block= first.")
    if any(nic.ipv4 or nic.ipv6 for nic in workload.nics):
        notes.append("An address is in Argument= literally, so it is requested in Network=.")
    if task.fields.keys() & {*OF_PLACEHOLDERS.values()}:
        notes.append("Host name, name servers, search domains, NTP servers and hosts are in Argument= as at the start.")
    notes.append("Unit properties of --property or of a job are not known here: systemctl show has them.")
