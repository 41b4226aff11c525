"""From the files of a declaration to its task: `web.unikernel` and its drop-ins become a Workload."""

import posixpath
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from solo5_systemd.declared.keys import SECTION
from solo5_systemd.declared.passed_on import check_value
from solo5_systemd.declared.readiness import Ready, parse_ready
from solo5_systemd.declared.specifiers import HostNames, Specified, expand, specifiers
from solo5_systemd.declared.syntax import Assignment, Source, parse_file
from solo5_systemd.declared.time_span import parse_time_span
from solo5_systemd.declared.unit_keys import CHECKS, SERVICE_PASSED_ON, refusal, section_refusal
from solo5_systemd.declared.values import Values, effective, located
from solo5_systemd.errors import InvalidRequestError, SettingsError
from solo5_systemd.image.manifest import Target
from solo5_systemd.names import DeviceName, NetworkName, TaskName, device_name, task_name
from solo5_systemd.network.guest_limits import NO_LIMITS, Limits
from solo5_systemd.network.model import NicRequest
from solo5_systemd.options import assignments, disks, networks, quantities
from solo5_systemd.settings.hosts import hosts
from solo5_systemd.settings.model import DEFAULT_NETWORK
from solo5_systemd.settings.resolver import hostname, resolver
from solo5_systemd.storage.model import DiskRequest
from solo5_systemd.unit.log_fields import labels
from solo5_systemd.unit.placeholders import verbatim
from solo5_systemd.unit.property_types import INFINITY
from solo5_systemd.workload import DEFAULT_MEMORY, Publish, Workload

SUFFIX = ".unikernel"
NEWEST = 257
"""The newest release of systemd whose settings are known."""

UPDATE_MAX_S = 86400.0
"""Seconds; the longest Timeout=, Drain= and Watch=."""

_EXPANDED = frozenset({"Slice"})
"""Settings of [Service] that are part of the task and have specifiers; in others, `%` is a percentage."""

_TWICE = {"CPUQuota": "CPUs", "CPUWeight": "CPUWeight"}
"""Settings of [Service] that a key of [Unikernel] sets too."""


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """A task as it is declared.

    Attributes:
        name: of the unit without its suffix: `web`, or `web@1` for an instance of a template.
        workload: what to run.
        unit: the lines of [Unit] for systemd, in order, without those that another one has reset or overridden; an
            empty value resets all conditions, or all assertions.
        service: those of [Service], without the settings that are properties of the workload.
        install: those of [Install].
        ready: what makes an updated guest ready; None: not set.
        timeout: seconds in which an updated guest has to become ready; None: not set.
        drain: seconds that connections of an old guest may last after an update; None: not set.
        watch: seconds in which an updated guest must not end; None: not set.
        paths: of the files, the declaration first.
    """

    name: str
    workload: Workload
    unit: tuple[Assignment, ...] = ()
    service: tuple[Assignment, ...] = ()
    install: tuple[Assignment, ...] = ()
    ready: Ready | None = None
    timeout: float | None = None
    drain: float | None = None
    watch: float | None = None
    paths: tuple[str, ...] = ()

    @property
    def instance(self) -> str:
        """Return the instance of a template; empty without one."""
        return self.name.partition("@")[2]


def declared_task(name: str) -> TaskName:
    """Return the task of a declaration: `web` of `web`, `web@1` of an instance of the template `web@`.

    Raises:
        InvalidRequestError: malformed, or a template without its instance.
    """
    return task_name(name)


def parse_declaration(
    name: str,
    sources: Sequence[Source],
    *,
    host: HostNames,
    served: Collection[NetworkName] = (),
    systemd: int = NEWEST,
    specified: Specified | None = None,
) -> Declaration:
    """Return a declaration.

    Args:
        name: as of `declared_task`.
        sources: the file and its drop-ins, in the order in which they override each other.
        host: facts of the host, for specifiers.
        served: the networks with a DHCP server.
        systemd: release of systemd, such as 257, which ignores settings of later ones.
        specified: values of specifiers; None: those of the name.

    Raises:
        InvalidRequestError: the name is malformed.
        SettingsError: a file is malformed, with its path and the number of the line.
    """
    task = declared_task(name)
    lines = tuple(line for source in sources for line in parse_file(source))
    for line in lines:
        _check_place(line, systemd)
    sections = {section: [line for line in lines if line.section == section] for section in _SECTIONS}
    if specified is None:
        of_name = specifiers(name, host)
        specified = Specified(in_unit=of_name, at_start=of_name)
    of_service = effective(sections["Service"])
    values = Values(effective(sections[SECTION]), specified)
    passed_on = {
        "Unit": _passed_on(sections["Unit"]),
        "Service": [line for line in _passed_on(sections["Service"]) if line.key in SERVICE_PASSED_ON],
        "Install": _passed_on(sections["Install"]),
    }
    for line in sections["Unit"] + sections["Service"] + sections["Install"]:
        _check(name, line)
    return Declaration(
        name=name,
        workload=replace(
            _workload(task, values, sources, served), properties=_properties(of_service, values, specified.in_unit)
        ),
        unit=tuple(passed_on["Unit"]),
        service=tuple(passed_on["Service"]),
        install=tuple(passed_on["Install"]),
        ready=values.one("Ready", lambda text: parse_ready(text, "Ready="), None),
        timeout=values.one("Timeout", _update_time, None),
        drain=values.one("Drain", _update_time, None),
        watch=values.one("Watch", _update_time, None),
        paths=tuple(source.path for source in sources),
    )


_SECTIONS = ("Unit", SECTION, "Service", "Install")


def _check_place(line: Assignment, systemd: int) -> None:
    if reason := section_refusal(line.section):
        raise line.error(f"[{line.section}] {reason}.")
    if reason := refusal(line.section, line.key, systemd):
        raise line.error(f"{line.key}= {reason}.")


def _passed_on(lines: Sequence[Assignment]) -> tuple[Assignment, ...]:
    """Return the lines that count.

    systemd ignores an empty value of most settings, and cannot reset a dependency; so a reset is made here.
    """
    kept = {id(line) for own in effective(lines).values() for line in own}
    return tuple(line for line in lines if id(line) in kept or line.key in CHECKS)


def _check(name: str, line: Assignment) -> None:
    if line.key == "DefaultInstance" and "@" not in name:
        raise line.error("DefaultInstance= is of templates: expected a file such as web@.unikernel.")
    try:
        if line.value:
            check_value(line.key, line.value)
    except ValueError as error:
        raise line.error(f"{line} is not a value that systemd takes: expected {error}.") from error


def _properties(
    lines: Mapping[str, tuple[Assignment, ...]], values: Values, specified: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    """Return the settings of [Service] that are properties of the task, as with --property."""
    found = []
    for key, own in lines.items():
        if key in SERVICE_PASSED_ON:
            continue
        if key in _TWICE and values.given(_TWICE[key]):
            raise own[-1].error(f"{key}= is set in [Service], and {_TWICE[key]}= in [Unikernel]: expected one of both.")
        for line in own:
            text = located(line, lambda line=line: _property_value(line, specified))  # type: ignore[misc]
            found.append(located(line, lambda line=line, text=text: _property(line, text)))  # type: ignore[misc]
    return tuple(found)


def _property_value(line: Assignment, specified: Mapping[str, str]) -> str:
    return expand(line.value, specified) if line.key in _EXPANDED else line.value


def _property(line: Assignment, text: str) -> tuple[str, str]:
    return assignments.unit_property(f"{line.key}={text}", "[Service]")


def _workload(task: TaskName, values: Values, sources: Sequence[Source], served: Collection[NetworkName]) -> Workload:
    if not values.given("Image"):
        raise SettingsError(
            f"{sources[0].path}: Image= is missing: expected the path of a unikernel in [Unikernel].",
            "Add: Image=/srv/unikernels/NAME.hvt",
        )
    found = values.checked(("Network",), lambda: assignments.unique(_nics(values), lambda nic: nic.nic, "NIC"))
    nics, limits = _limited(found, values)
    arguments = (*values.each("Argument", str), *values.each("Verbatim", verbatim))
    _check_reaches_guest(values, arguments, nics, served)
    memory = values.one("Memory", lambda text: quantities.size(text, "Memory="), DEFAULT_MEMORY)
    return Workload(
        name=task,
        image=values.one("Image", _absolute_image, ""),
        arguments=arguments,
        memory=memory,
        memory_max=values.one("MemoryMax", lambda text: _memory_max(text, memory), None),
        cpus=values.one("CPUs", lambda text: quantities.cpus(text, "CPUs="), None),
        cpu_weight=values.one("CPUWeight", lambda text: quantities.cpu_weight(text, "CPUWeight="), None),
        nics=nics,
        namespace=values.one("NetworkNamespace", networks.namespace_path, ""),
        limits=limits,
        publish=values.checked(("Publish",), lambda: _published(values)),
        disks=values.checked(("Block",), lambda: assignments.unique(_disks(values), lambda disk: disk.disk, "disk")),
        tender=values.one("Tender", _tender, None),
        log_fields=(
            *values.checked(
                ("Label",),
                lambda: labels(values.each("Label", lambda text: assignments.journal_label(text, "Label="))),
            ),
            *values.each("LogField", lambda text: assignments.log_field(text, "LogField=")),
        ),
        resolver=values.checked(
            ("DNS", "DNSSearch"), lambda: resolver(values.each("DNS", str), values.each("DNSSearch", str))
        ),
        hostname=values.one("HostName", hostname, ""),
        hosts=values.checked(("AddHost",), lambda: hosts(values.each("AddHost", str))),
    )


def _nics(values: Values) -> tuple[NicRequest, ...]:
    return values.each("Network", lambda text: networks.nic(text, "Network="))


def _published(values: Values) -> tuple[Publish, ...]:
    ports = (port for some in values.each("Publish", lambda text: networks.publish(text, "Publish=")) for port in some)
    return assignments.unique(ports, networks.host_endpoint, "published port")


def _disks(values: Values) -> tuple[DiskRequest, ...]:
    return values.each("Block", _disk)


def _disk(text: str) -> DiskRequest:
    disk = disks.disk(text, "Block=")
    paths = [disk.path] if disk.archive is None else [each.path for each in disk.archive.members]
    for path in paths:
        if not path.startswith("/"):
            raise InvalidRequestError(f"Block= {text!r} has the relative path {path!r}: expected an absolute one.")
    if disk.archive is None:
        return replace(disk, path=_normal(disk.path))
    members = tuple(replace(each, path=_normal(each.path)) for each in disk.archive.members)
    return replace(disk, archive=replace(disk.archive, members=members))


def _absolute_image(text: str) -> str:
    if not text.startswith("/"):
        raise InvalidRequestError(
            f"Image= {text!r} is a relative path: expected an absolute one, such as /srv/web.hvt."
        )
    return _normal(text)


def _normal(path: str) -> str:
    """Return a path without `.`, `..` and doubled slashes; lexical, as for `solo5ctl run`."""
    return posixpath.normpath(f"/{path.lstrip('/')}")


def _memory_max(text: str, memory: int) -> int:
    most = INFINITY if text == "infinity" else quantities.size(text, "MemoryMax=")
    if most < memory:
        raise InvalidRequestError(f"MemoryMax= {text!r} is less than Memory=: expected as much or more, or infinity.")
    return most


def _tender(text: str) -> Target:
    known = tuple(target.value for target in Target)
    if text not in known:
        raise InvalidRequestError(f"Tender= {text!r} is unknown: expected {' or '.join(known)}.")
    return Target(text)


def _update_time(text: str) -> float:
    try:
        seconds = parse_time_span(text) / 10**6
    except ValueError as error:
        raise ValueError(f"is not a time: expected {error}") from error
    if seconds > UPDATE_MAX_S:
        raise ValueError("is too long: expected at most 1d")
    return seconds


def _limited(nics: Sequence[NicRequest], values: Values) -> tuple[tuple[NicRequest, ...], Limits]:
    """Return the NICs with limits of their own, and the limits of the others; `NIC=` before a value is for one NIC."""
    names = {nic.nic for nic in nics}
    by_nic: dict[DeviceName | None, tuple[list[str], list[str]]] = {}
    for at, (key, equals) in enumerate((("Egress", 1), ("Rate", 2))):
        for text in values.each(key, str):
            own, _, rest = text.partition("=") if text.count("=") >= equals else ("", "", text)
            nic = values.checked((key,), lambda own=own: device_name(own)) if own else None  # type: ignore[misc]
            if nic is not None and nic not in names:
                raise values.error(
                    key, f"{key}= {text!r} is for NIC {nic}, which no Network= names: expected one that is."
                )
            by_nic.setdefault(nic, ([], []))[at].append(rest)
    limits = {
        nic: values.checked(("Egress", "Rate"), lambda texts=texts: networks.limits(*texts))  # type: ignore[misc]
        for nic, texts in by_nic.items()
    }
    limited = (replace(limits.get(nic.nic, NO_LIMITS), routes=nic.limits.routes) for nic in nics)
    found = tuple(replace(nic, limits=each) for nic, each in zip(nics, limited, strict=True))
    return found, limits.get(None, NO_LIMITS)


_KEYS_FOR_GUEST = {"--dns": "DNS", "--dns-search": "DNSSearch", "--hostname": "HostName", "--add-host": "AddHost"}


def _check_reaches_guest(
    values: Values, arguments: Sequence[str], nics: Sequence[NicRequest], served: Collection[NetworkName]
) -> None:
    given = [option for option, key in _KEYS_FOR_GUEST.items() if values.given(key)]
    lacking = networks.without_placeholder(given, arguments)
    joined = {nic.network for nic in nics} or {DEFAULT_NETWORK}
    for missing in lacking:
        if not (missing.by_dhcp and joined & set(served)):
            key = _KEYS_FOR_GUEST[missing.option]
            error = networks.no_effect(f"{key}=", missing)
            raise values.error(key, error.sentence, error.hint)
