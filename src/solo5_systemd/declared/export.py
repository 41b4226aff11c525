"""From a task that runs to its declaration: `solo5ctl export`; and to a static unit file: `solo5ctl export --unit`.

The start does not keep its request. What runs is read from the tender's command line, the lease record, the records of
disks, the unit's fields and its cgroup; what these do not have is a comment.

In a static unit file, which needs none of this project's programs, what PID 1 has of the task's unit stays as it is, so
the sandbox does. What each start makes is written out: the tender's command line, the addresses, the user, the paths of
image and disks. Only the network is a service's, which opens the way to a tap, and closes it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import (
    NETWORK_NAMESPACES,
    DeviceName,
    Target,
    TaskName,
    device_name,
    disk_name,
    network_service,
    task_service,
)
from solo5_systemd.base.sanitize import printable
from solo5_systemd.dbus.interfaces import RECORD, busctl_words
from solo5_systemd.declared.declaration import quoted_word, write_declaration
from solo5_systemd.network.model import Lease, NicRequest, Reservation
from solo5_systemd.settings.records import document
from solo5_systemd.storage.model import NAMED_DISKS, Backing, DiskRequest, named_disk
from solo5_systemd.task.disks import disk as parse_disk
from solo5_systemd.task.log_fields import DNS, DNS_SEARCH, HOSTNAME, HOSTS, NETWORK_NAMESPACE
from solo5_systemd.task.placeholders import mirage
from solo5_systemd.task.property_types import INFINITY
from solo5_systemd.task.workload import DEFAULT_MEMORY, Publish, Workload
from solo5_systemd.unit.confinement import USER
from solo5_systemd.unit.tender import DISKS, LAUNCHER

_DEFAULT_WEIGHT = 100
_PAGE = 4096
_SECTOR = "--block-sector-size:"
_NOMAD = "NOMAD_"


@dataclass(frozen=True, kw_only=True)
class RunningTask:
    """What is known of a task that runs.

    Attributes:
        name: of the task.
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
            f"the command line of task {task.name} is not that of a tender: expected one that runs."
        )
    notes = [f"Task {task.name} as it runs, written by solo5ctl export."]
    leases = task.reservation.leases if task.reservation else ()
    arguments = tuple(_arguments(task.argv[list(task.argv).index("--") + 2 :], leases))
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
        nics=tuple(_nics(task.reservation, arguments)),
        idle_s=task.reservation.idle_s if task.reservation else 0,
        idle_stops=task.reservation is not None and task.reservation.idle_stops,
        namespace=_namespace(task, notes),
        publish=tuple(_ports(task.reservation)),
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
            yield words[at].replace("{", "{{").replace("}", "}}")
            at += 1
        else:
            yield f"{{{group}}}"
            at += len(groups[group])


def _memory_max(found: int | None, memory: int) -> int | None:
    """Return MemoryMax= where it is not Memory=; the kernel has it in whole pages."""
    if found is None or found // _PAGE == memory // _PAGE:
        return None
    return found if found == INFINITY else max(found, memory)


def _nics(reservation: Reservation | None, arguments: Iterable[str]) -> Iterator[NicRequest]:
    """Yield the NICs, with the addresses that an argument has literally."""
    text = " ".join(arguments)
    if reservation is None:
        return
    for lease in reservation.leases:
        yield NicRequest(
            nic=lease.nic,
            network=lease.network,
            ipv4=lease.address if lease.address and str(lease.address) in text else None,
            ipv6=lease.address6 if lease.address6 and str(lease.address6) in text else None,
            limits=lease.limits,
        )


def _ports(reservation: Reservation | None) -> Iterator[Publish]:
    for port in reservation.ports if reservation else ():
        yield Publish(
            nic=port.nic, host_ip=port.host_ip, host_port=port.host_port, port=port.port, protocol=port.protocol
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
        sector = int(sectors.pop(name, "512"))
        if record.get("backing") == Backing.ARCHIVE:
            notes.append(f"Disk {name} is an archive of {record.get('path', 'files')}: add Block={name}=files:PATH.")
            continue
        yield replace(
            _request(device_name(name), record.get("path", "")),
            sector_size=None if sector == 512 else sector,
            private=record.get("backing") == Backing.COPY,
            io=parse_disk(",".join((f"{name}=/", *record.get("io", "").split())), "Block=").io,
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
    if set(task.fields) & {DNS, DNS_SEARCH, HOSTNAME, HOSTS}:
        notes.append("Name servers, search domains, host name and hosts are in Argument= as they were at the start.")
    notes.append("Unit properties of --property or of a job are not known here: systemctl show has them.")


_OURS = ("solo5-prepare@", "solo5-outcome", "solo5-network@")
_DEPENDENCIES = frozenset({"Wants", "Requires", "After"})
_OF_A_START = frozenset(
    {
        *("SourcePath", "AssertPathExists"),
        *("EnvironmentFile", "ExecStart", "ExecReload", "RootDirectoryStartOnly", "User"),
        *("StandardInput", "StandardError", "NetworkNamespacePath", "PrivateNetwork"),
    }
)
_SHA256 = "SOLO5_IMAGE_SHA256="
"""Of an image that may be replaced."""

_CALL = ("/usr/bin/busctl", "--quiet", "call", "org.solo5.Network1", "/org/solo5/Network1", "org.solo5.Network1")
_REQUESTS = "/run/solo5/network/requests"
"""With what a restart of a task by systemd attaches again; each start of a static unit reserves anew."""

_OUTSIDE = "/usr/bin/nsenter --mount=/proc/1/ns/mnt -- /bin/sh"
"""A shell in the host's mount namespace: PID 1 gives one of its own to each process of a unit with RootDirectory=."""

_REMOVE_NAMESPACE = "umount --lazy {path} 2>/dev/null || :; rm --force {path}"
_MAKE_NAMESPACE = (
    f"{_REMOVE_NAMESPACE}; mkdir --parents {NETWORK_NAMESPACES}; touch {{path}}; "
    "mount --bind /proc/self/ns/net {path}; ip link set lo down; "
    "for each in /proc/sys/net/ipv6/conf/all /proc/sys/net/ipv6/conf/default; do "
    "[ ! -e $each ] || echo 1 >$each/disable_ipv6; done"
)
"""PID 1 makes the namespace with the unit's first process, and solo5-networkd finds it by its path."""


def exported_unit(task: RunningTask, text: str) -> str:
    """Return the unit file of a task that runs.

    Args:
        text: of the unit file that PID 1 has for it, transient or not.

    Raises:
        InvalidRequestError: the task has what a static unit cannot have.
    """
    _check(task)
    sections: dict[str, list[str]] = {"Unit": [], "Service": [], "Install": []}
    section = ""
    for line in text.split("\n"):  # not splitlines(): a value may have what only Unicode takes for the end of a line
        if line.startswith("["):
            section = line.strip("[]")
        elif section in sections and (kept := _kept(line)) and kept not in sections[section]:
            sections[section].append(kept)
    starts = tuple(f"ExecStart=@{quote}{LAUNCHER}{quote} " for quote in ("", '"'))  # releases of systemd differ
    launcher = f"@{LAUNCHER} " if any(line.startswith(starts) for line in text.split("\n")) else ""
    image = task.argv[list(task.argv).index("--") + 1]
    sections["Service"] = list(_bound(sections["Service"], image, task))
    if not sections["Install"]:
        sections["Install"] = ["WantedBy=multi-user.target"]
    comments = "".join(f"# {printable(line)}\n" for line in _comments(task))
    # The bus alone would start the service, too, within its limit of activations for all users together.
    needs = "dbus.socket solo5-networkd.service" if task.reservation else "dbus.socket"
    body = (
        ("[Unit]", *sections["Unit"], f"Wants={needs}", f"After={needs}"),
        ("[Service]", *_programs(task, launcher), f"User={USER}", *sections["Service"]),
        ("[Install]", *sections["Install"]),
    )
    return comments + "\n" + "\n\n".join("\n".join(lines) for lines in body) + "\n"


def _check(task: RunningTask) -> None:
    made = next((each["disk"] for each in task.disks if each.get("backing") in (Backing.COPY, Backing.ARCHIVE)), "")
    for refused, sentence in (
        (made, f"disk {made} of task {task.name} is made at each start: expected a file or a block device."),
        (
            task.fields.get(NETWORK_NAMESPACE),
            f"the network of task {task.name} is in a namespace of other programs, which may end with them: expected a "
            "NIC in the host's.",
        ),
        (
            "@" in task.name,
            f"task {task.name} is an instance of a template, whose file has specifiers: expected a task of its own.",
        ),
    ):
        if refused:
            raise InvalidRequestError(sentence, "Without --unit, the declaration has it.")


def _kept(line: str) -> str:
    """Return a line of the unit file without what is this project's; empty: nothing is left."""
    key, equals, value = line.partition("=")
    if not equals or line.startswith("#") or key in _OF_A_START or _SHA256 in line:
        return ""
    if key in _DEPENDENCIES:
        words = [word for word in value.split() if not word.startswith(_OURS)]
        return f"{key}={' '.join(words)}" if words else ""
    return line


def _bound(lines: Iterable[str], image: str, task: RunningTask) -> Iterator[str]:
    """Yield the settings of [Service], with the image and the disks bound from where they are on the host."""
    sources = {image: task.fields["SOLO5_IMAGE"]}
    sources |= {f"{DISKS}/{each['disk']}": each["path"] for each in task.disks}
    for line in lines:
        key, _, value = line.partition("=")
        there = value.removesuffix(":norbind").rpartition(":")[2] if key.startswith("Bind") else ""
        if there in sources:
            yield f"{key}={_path(sources[there])}:{there}:norbind"
        else:
            yield line


def _programs(task: RunningTask, launcher: str) -> Iterator[str]:
    """Yield what is executed: root's part before the tender, the tender, and what follows its end."""
    yield from (f"ExecStartPre=+/usr/bin/chown {USER} {_word(each['path'])}" for each in task.disks)
    yield "PrivateNetwork=yes"
    if task.reservation and task.reservation.leases:
        path = task.reservation.namespace
        yield f"ExecStartPre=+{_OUTSIDE} -ec {_word(_MAKE_NAMESPACE.format(path=path))}"
        yield f"ExecStartPre=+{' '.join(map(_word, (*_CALL, 'Reserve', *_reserve(task.reservation))))}"
        yield f"ExecStartPre=+/usr/bin/systemctl start {network_service(task.name)}"
        yield f"ExecStopPost=+{' '.join((*_CALL, 'Release', 's', task.name))}"
        yield f"ExecStopPost=+/usr/bin/rm --force {_REQUESTS}/{task.name}.json"
        yield f"ExecStopPost=+{_OUTSIDE} -c {_word(_REMOVE_NAMESPACE.format(path=path))}"
    yield f"ExecStart={launcher}{' '.join(map(_word, task.argv))}"
    yield "RootDirectoryStartOnly=yes"


def _reserve(reservation: Reservation) -> Iterator[str]:
    """Yield the signature and the arguments of Reserve for busctl(1)."""
    yield f"s{RECORD}"
    yield reservation.task
    yield from busctl_words(document(reservation.request), RECORD)


def _comments(task: RunningTask) -> Iterator[str]:
    unit = task_service(task.name)
    yield f"Task {task.name} as it runs, written by solo5ctl export --unit, for /etc/systemd/system/{unit}."
    yield "With this name, solo5-networkd keeps its network as long as it runs, and solo5ctl ps has it."
    if task.reservation and task.reservation.leases:
        yield "Its addresses and ports are fixed. Each start reserves them, and fails where another task has one."
    if task.disks:
        yield "Its disks are not locked: nothing else may write to them."
    if _of_nomad(task):
        yield "It is a task of Nomad: stop the job before this starts, and copy the image, which is removed with it."


def _path(path: str) -> str:
    """Return a path for BindPaths= (systemd.exec(5)), where a colon separates."""
    return quoted_word(path).replace(":", "\\:")


def _word(text: str) -> str:
    """Return one word of a command line (systemd.service(5), COMMAND LINES)."""
    return quoted_word(text.replace("$", "$$"), plain="%$()")
