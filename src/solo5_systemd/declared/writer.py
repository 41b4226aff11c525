"""From a task to its declaration: the inverse of `declaration.parse_declaration`."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields

from solo5_systemd.declared.declaration import Declaration, parse_declaration
from solo5_systemd.declared.keys import SECTION
from solo5_systemd.declared.readiness import Ready
from solo5_systemd.declared.specifiers import HostNames
from solo5_systemd.declared.syntax import Source
from solo5_systemd.declared.time_span import format_time_span
from solo5_systemd.errors import InvalidRequestError, SettingsError, Solo5Error
from solo5_systemd.network.guest_limits import Limits
from solo5_systemd.network.model import NicRequest
from solo5_systemd.sanitize import printable, unit_file_syntax
from solo5_systemd.settings.model import DEFAULT_NETWORK
from solo5_systemd.storage.model import ArchiveFormat, DiskRequest
from solo5_systemd.unit.log_fields import MAX_LABELS, label
from solo5_systemd.unit.property_types import SIZE
from solo5_systemd.workload import DEFAULT_MEMORY, Publish, Workload

Line = tuple[str, str]
"""A setting and its value as it is written."""

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@+=:,./{}~-")
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}


@dataclass(frozen=True, kw_only=True)
class Written:
    """What is written of a task.

    Attributes:
        workload: what to run; a task that a declaration cannot describe is refused.
        unit: settings of [Unit].
        service: settings of [Service] besides the properties of the workload.
        install: settings of [Install].
        ready: what makes an updated guest ready; None: not set.
        timeout: seconds; None: not set.
        drain: seconds; None: not set.
        watch: seconds; None: not set.
        comments: lines before the first section.
    """

    workload: Workload
    unit: Sequence[Line] = ()
    service: Sequence[Line] = ()
    install: Sequence[Line] = ()
    ready: Ready | None = None
    timeout: float | None = None
    drain: float | None = None
    watch: float | None = None
    comments: Sequence[str] = ()


def of_declaration(declaration: Declaration) -> Written:
    """Return what is written of a declaration that was read."""
    unit, service, install = (
        [(line.key, line.value) for line in lines]
        for lines in (declaration.unit, declaration.service, declaration.install)
    )
    return Written(
        workload=declaration.workload,
        unit=unit,
        service=service,
        install=install,
        ready=declaration.ready,
        timeout=declaration.timeout,
        drain=declaration.drain,
        watch=declaration.watch,
    )


def write_declaration(written: Written) -> str:
    """Return the text of a declaration, which `parse_declaration` reads as the same task.

    Raises:
        InvalidRequestError: a declaration cannot describe the task; the sentence has the reason.
    """
    workload = written.workload
    sections = {
        "Unit": list(written.unit),
        SECTION: list(_lines(written)),
        "Service": [*written.service, *workload.properties],
        "Install": list(written.install),
    }
    for key, value in (line for lines in sections.values() for line in lines):
        if syntax := unit_file_syntax(value):
            raise InvalidRequestError(
                f"task {workload.name} cannot be declared: {key}= has {syntax}, which a file cannot have there: "
                "expected other text."
            )
    parts = ["".join(f"# {printable(each)}\n" for each in written.comments)]
    parts += [_section(name, lines) for name, lines in sections.items() if lines]
    text = "\n".join(part for part in parts if part)
    _check(workload, text)
    return text


def _section(name: str, lines: Iterable[Line]) -> str:
    return "".join((f"[{name}]\n", *(f"{key}={value}\n" for key, value in lines)))


def _check(workload: Workload, text: str) -> None:
    """Check that a text is read as the task: a value that has no form in a declaration is not written another way."""
    source = Source(path=f"{workload.name}.unikernel", content=text.encode())
    served = [nic.network for nic in workload.nics] or [DEFAULT_NETWORK]
    try:
        found = parse_declaration(workload.name, [source], host=HostNames(), served=served).workload
    except SettingsError as error:
        raise InvalidRequestError(f"task {workload.name} cannot be declared: {error.sentence}", error.hint) from error
    lost = [field.name for field in fields(Workload) if getattr(found, field.name) != getattr(workload, field.name)]
    if lost:
        raise InvalidRequestError(
            f"task {workload.name} cannot be declared, since a declaration cannot describe its {' and '.join(lost)}: "
            "expected what solo5.unikernel(5) has a key for."
        )


def _lines(written: Written) -> Iterator[Line]:
    """Yield the keys of [Unikernel]; a default is left out."""
    workload = written.workload
    yield "Image", _whole(workload.image)
    yield from _list("Argument", workload.arguments)
    if workload.tender is not None:
        yield "Tender", workload.tender.value
    if workload.memory != DEFAULT_MEMORY:
        yield "Memory", SIZE.format(workload.memory)
    if workload.memory_max is not None:
        yield "MemoryMax", SIZE.format(workload.memory_max)
    if workload.cpus is not None:
        yield "CPUs", f"{workload.cpus:.6f}".rstrip("0").rstrip(".")
    if workload.cpu_weight is not None:
        yield "CPUWeight", str(workload.cpu_weight)
    yield from _networks(workload)
    yield from (("Block", _whole(_disk(disk))) for disk in workload.disks)
    yield from _journal(workload)
    if written.ready is not None:
        yield "Ready", _whole(str(written.ready))
    for key, seconds in (("Timeout", written.timeout), ("Drain", written.drain), ("Watch", written.watch)):
        if seconds is not None:
            yield key, format_time_span(round(seconds * 10**6))


def _networks(workload: Workload) -> Iterator[Line]:
    yield from (("Network", _nic(nic)) for nic in workload.nics)
    if workload.namespace:
        yield "NetworkNamespace", _whole(workload.namespace)
    yield from (("Publish", _publish(port)) for port in workload.publish)
    yield from _limits(workload.limits, "")
    for nic in workload.nics:
        yield from _limits(nic.limits, f"{nic.nic}=")
    yield from _list("DNS", map(str, workload.resolver.servers))
    yield from _list("DNSSearch", workload.resolver.search)
    if workload.hostname:
        yield "HostName", workload.hostname
    yield from _list("AddHost", map(str, workload.hosts))


def _nic(nic: NicRequest) -> str:
    behind = (("route", each) for each in nic.limits.routes)
    options = (("ip", nic.ipv4), ("ip6", nic.ipv6), ("mac", nic.mac), *behind)
    return ",".join((f"{nic.nic}={nic.network}", *(f"{key}={value}" for key, value in options if value is not None)))


def _publish(port: Publish) -> str:
    host = "" if port.host_ip is None else f"[{port.host_ip}]:" if port.host_ip.version == 6 else f"{port.host_ip}:"
    nic = "" if port.nic is None else f"{port.nic}:"
    return f"{nic}{host}{port.host_port}:{port.port}/{port.protocol}"


def _limits(limits: Limits, prefix: str) -> Iterator[Line]:
    if limits.egress is not None:
        yield from _list("Egress", [f"{prefix}{each}" for each in limits.egress or ("none",)])
    yield from _list("Rate", [f"{prefix}{each}" for each in str(limits.rate).split()])


def _disk(disk: DiskRequest) -> str:
    options = [f"sector-size={disk.sector_size}"] if disk.sector_size is not None else []
    if disk.archive is not None:
        names = disk.archive.credential or ",".join(member.path for member in disk.archive.members)
        default = ArchiveFormat.RAW if disk.archive.credential else ArchiveFormat.TAR
        options += [f"format={disk.archive.format}"] if disk.archive.format is not default else []
        options += ["strip"] if any(not member.name for member in disk.archive.members) else []
        what = f"credential:{names}" if disk.archive.credential else f"files:{names}"
        return ",".join((f"{disk.disk}={what}", *options))
    options += ["ephemeral"] if disk.private else []
    options += [f"size={SIZE.format(disk.create.size)}"] if disk.create is not None else []
    options += str(disk.io).split()
    return ",".join((f"{disk.disk}={disk.path if disk.name is None else f'disk:{disk.name}'}", *options))


def _journal(workload: Workload) -> Iterator[Line]:
    """Yield the labels, then the fields that are none: those of journald or Nomad."""
    count = 0
    while count < min(len(workload.log_fields), MAX_LABELS) and _is_label(*workload.log_fields[count]):
        count += 1
    pairs = [f"{name}={value}" for name, value in workload.log_fields]
    yield from (("Label", quoted_word(pair)) for pair in pairs[:count])
    yield from (("LogField", quoted_word(pair)) for pair in pairs[count:])


def _is_label(name: str, value: str) -> bool:
    try:
        label(name, value)
    except Solo5Error:
        return False
    return True


def _list(key: str, words: Iterable[str]) -> Iterator[Line]:
    """Yield one line with all words; none without any."""
    if written := " ".join(map(quoted_word, words)):
        yield key, written


def _whole(text: str) -> str:
    """Return a value that is all of its line."""
    return text.replace("%", "%%")


def quoted_word(text: str, plain: str = "%") -> str:
    """Return one word of a value (systemd.syntax(7)), quoted if it has to be; specifiers are not expanded.

    Args:
        text: the word.
        plain: characters that need no quotes, besides those that never do.
    """
    text = _whole(text)
    if text and all(char in _PLAIN or char in plain for char in text):
        return text
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    return char if char.isprintable() or 0xD800 <= ord(char) <= 0xDFFF else f"\\U{ord(char):08x}"
