"""`solo5ctl export`: prints the declaration of a task.

The start does not keep its request: what runs is read, and what that does not show is a comment.
"""

from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from solo5_systemd.base.errors import InvalidRequestError, host_errors
from solo5_systemd.base.names import DeviceName, Target, UnitKind, device_name, disk_name, task_name
from solo5_systemd.base.vanishing_files import read
from solo5_systemd.cgroup.hierarchy import unified
from solo5_systemd.cli.context import CommandContext
from solo5_systemd.cli.parser import Parser
from solo5_systemd.declared.declaration import write_declaration
from solo5_systemd.declared.files import read_sources
from solo5_systemd.engine.task import Task
from solo5_systemd.network.model import Lease, NicRequest, Reservation
from solo5_systemd.settings.network import DEFAULT_NETWORK, NAMESPACE_NETWORK
from solo5_systemd.storage.locks import Record, records_of_tasks
from solo5_systemd.storage.model import NAMED_DISKS, SECTOR_SIZE, Backing, DiskRequest, named_disk
from solo5_systemd.task.disks import disk as parse_disk
from solo5_systemd.task.log_fields import OF_PLACEHOLDERS
from solo5_systemd.task.placeholders import mirage, verbatim
from solo5_systemd.task.property_types import INFINITY
from solo5_systemd.task.settings import SETTINGS
from solo5_systemd.task.workload import Publish, Workload

EPILOG = """\
What the running task does not show is a comment. To declare it:

  solo5ctl export web > web.unikernel
  solo5ctl rm --force web
  install -m 0644 web.unikernel /etc/solo5/ && systemctl daemon-reload && systemctl enable --now web
"""

_PROC = "/proc"
_PAGE = 4096
_SECTOR = "--block-sector-size:"
_NOMAD = "NOMAD_"


def configure(parser: Parser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("name", metavar="NAME", type=task_name, help="name of a task that runs or is dormant")
    parser.add_output_options(json=False)


def execute(arguments: Namespace, context: CommandContext) -> int:
    context.require_root()
    task = context.query(lambda engine: engine.task(arguments.name))
    if task.dormant:  # no process has its command line; the files of its declaration are one as well
        texts = ((each.path, each.content.decode("utf-8-sig", "replace")) for each in read_sources(task.name))
        text = "\n".join(f"# {path}\n{text}" for path, text in texts)
    else:
        text = exported(task)
    context.screen.write(text)
    return 0


def exported(task: Task) -> str:
    """Return the declaration of a task that runs.

    Raises:
        InvalidRequestError: it does not run, is a scope, or a declaration cannot describe it.
        HostError: it ended meanwhile.
    """
    if task.state.kind is UnitKind.SCOPE:
        raise InvalidRequestError(f"task {task.name} is a scope, which ends with its caller: expected a service.")
    if not task.state.main_pid:
        raise InvalidRequestError(f"task {task.name} does not run.", "Tasks that run: solo5ctl ps")
    with host_errors(f"the command line of task {task.name} cannot be read"):
        line = Path(_PROC, str(task.state.main_pid), "cmdline").read_bytes()
    argv = [word.decode("utf-8", "surrogateescape") for word in line.split(b"\0")[:-1]]
    if "--" not in argv or not task.image:
        raise InvalidRequestError(
            f"task {task.name} runs no tender: it may be starting or ending.", f"See: solo5ctl inspect {task.name}"
        )
    notes = [f"Task {task.name} as it runs, written by solo5ctl export."]
    held = task.reservation or Reservation(task=task.name)
    arguments = tuple(_arguments(argv[argv.index("--") + 2 :], held.leases))
    fields = {key: value for key, value in task.state.log_fields.items() if not key.startswith(("SOLO5_", _NOMAD))}
    group = f"{unified()}{task.state.control_group}"
    weight = _number(f"{group}/cpu.weight")
    workload = Workload(
        name=task.name,
        image=task.image,
        arguments=arguments,
        memory=task.memory,
        memory_max=_memory_max(f"{group}/memory.max", task.memory),
        cpus=_cpus(f"{group}/cpu.max"),
        cpu_weight=None if str(weight) == SETTINGS["CPUWeight"].default else weight,
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
        disks=tuple(_disks(task, argv, notes)),
        tender=Target(task.state.tender) if task.state.tender else None,
        log_fields=tuple(fields.items()),
    )
    _note_the_rest(task, workload, notes)
    return write_declaration(workload, notes)


def _words(path: str) -> list[str]:
    """Return the words of a cgroup's file; empty without it."""
    return (read(path) or b"").decode("ascii", "replace").split()


def _number(path: str) -> int | None:
    return next((int(word) for word in _words(path) if word.isdigit()), None)


def _cpus(path: str) -> float | None:
    words = _words(path)
    # The first word is `max` without a quota.
    return int(words[0]) / int(words[1]) if len(words) == 2 and words[0].isdigit() else None


def _memory_max(path: str, memory: int) -> int | None:
    """Return MemoryMax= where it is not Memory=; the kernel has it in whole pages."""
    if _words(path) == ["max"]:
        return INFINITY
    found = _number(path)
    # A declaration refuses less than Memory=.
    return None if found is None or found // _PAGE == memory // _PAGE else max(found, memory)


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


def _nics(reservation: Reservation, arguments: Iterable[str]) -> Iterator[NicRequest]:
    """Yield the NICs, with the addresses that an argument has literally.

    The network of a namespace is `default` in it, and so where the namespace is left out.
    """
    text = " ".join(arguments)
    for lease in reservation.leases:
        yield NicRequest(
            nic=lease.nic,
            network=DEFAULT_NETWORK if lease.network == NAMESPACE_NETWORK else lease.network,
            ipv4=lease.address if lease.address and str(lease.address) in text else None,
            ipv6=lease.address6 if lease.address6 and str(lease.address6) in text else None,
            limits=lease.limits,
        )


def _namespace(task: Task, notes: list[str]) -> str:
    path = task.network_namespace
    if path and _of_nomad(task):
        notes.append(
            f"It shares the network namespace {path} with its group, which ends with the allocation: left out."
        )
        return ""
    return path


def _of_nomad(task: Task) -> bool:
    return any(key.startswith(_NOMAD) for key in task.state.log_fields)


def _disks(task: Task, argv: Sequence[str], notes: list[str]) -> Iterator[DiskRequest]:
    sectors = dict(word.removeprefix(_SECTOR).split("=", 1) for word in argv if word.startswith(_SECTOR))
    for record in records_of_tasks().get(task.name, Record()).disks:
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
    is_named = directory == str(Path(NAMED_DISKS).resolve())
    return named_disk(disk, disk_name(name)) if is_named else DiskRequest(disk=disk, path=path)


def _note_the_rest(task: Task, workload: Workload, notes: list[str]) -> None:
    fields = task.state.log_fields
    if _of_nomad(task):
        names = (fields.get(f"{_NOMAD}{part}", "") for part in ("JOB_NAME", "GROUP_NAME", "TASK_NAME"))
        notes.append(
            f"It is a task of Nomad ({'/'.join(names)}), which keeps it running: stop the job before this starts."
        )
        notes.append("Files of its allocation are removed with it: copy Image= and the files of Block= first.")
    if any(nic.ipv4 or nic.ipv6 for nic in workload.nics):
        notes.append("An address is in Argument= literally, so it is requested in Network=.")
    if fields.keys() & {*OF_PLACEHOLDERS.values()}:
        notes.append("Host name, name servers, search domains, NTP servers and hosts are in Argument= as at the start.")
    notes.append("Unit properties of --property or of a job are not known here: systemctl show has them.")
