"""From the files of a declaration to its task: `web.unikernel` and its drop-ins become a Workload."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from solo5_systemd.base.errors import SettingsError
from solo5_systemd.base.names import NetworkName, TaskName, task_name
from solo5_systemd.declared.readiness import Ready, parse_ready
from solo5_systemd.declared.specifiers import HostNames, Specified, expand, specifiers
from solo5_systemd.declared.syntax import Assignment, Source, parse_file
from solo5_systemd.declared.unikernel_section import Declared, effective, located
from solo5_systemd.declared.unit_keys import CHECKS, SERVICE_PASSED_ON, check_value, refusal, section_refusal
from solo5_systemd.task.assignments import unit_property
from solo5_systemd.task.option_table import SECTION
from solo5_systemd.task.settings import stops_when_idle, workload
from solo5_systemd.task.time_span import parse_time_span
from solo5_systemd.task.workload import Workload

SUFFIX = ".unikernel"
NEWEST = 257
"""The newest release of systemd whose settings are known."""

READY_TIMEOUT_S = 20.0
"""The default of Timeout=; a reload may end sooner."""

UPDATE_DRAIN_S = 60.0
"""The default of Drain=."""

UPDATE_WATCH_S = 10.0
"""The default of Watch=."""

UPDATE_MAX_S = 86400.0
"""Seconds; the longest Timeout=, Drain= and Watch=."""

_EXPANDED = frozenset({"Slice"})
"""Settings of [Service] that are part of the task and have specifiers; in others, `%` is a percentage."""

_ENDED_BY_SIGTERM = ("always", "on-success")
"""Values of Restart= with which systemd starts again what SIGTERM has ended."""

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
        timeout: seconds in which an updated guest has to become ready.
        drain: seconds that connections of an old guest may last after an update.
        watch: seconds in which an updated guest must not end.
        paths: of the files, the declaration first.
    """

    name: str
    workload: Workload
    unit: tuple[Assignment, ...] = ()
    service: tuple[Assignment, ...] = ()
    install: tuple[Assignment, ...] = ()
    ready: Ready | None = None
    timeout: float = READY_TIMEOUT_S
    drain: float = UPDATE_DRAIN_S
    watch: float = UPDATE_WATCH_S
    paths: tuple[str, ...] = ()

    @property
    def instance(self) -> str:
        """Return the instance of a template; empty without one."""
        return self.name.partition("@")[2]


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
        name: `web`, or `web@1` of an instance of the template `web@`.
        sources: the file and its drop-ins, in the order in which they override each other.
        host: facts of the host, for specifiers.
        served: the networks with a DHCP server.
        systemd: release of systemd, such as 257, which ignores settings of later ones.
        specified: values of specifiers; None: those of the name.

    Raises:
        InvalidRequestError: the name is malformed.
        SettingsError: a file is malformed, with its path and the number of the line.
    """
    task = task_name(name)
    lines = tuple(line for source in sources for line in parse_file(source))
    for line in lines:
        _check_place(line, systemd)
    sections = {section: [line for line in lines if line.section == section] for section in _SECTIONS}
    if specified is None:
        of_name = specifiers(name, host)
        specified = Specified(in_unit=of_name, at_start=of_name)
    of_service = effective(sections["Service"])
    values = Declared(effective(sections[SECTION]), specified)
    passed_on = {
        "Unit": _passed_on(sections["Unit"]),
        "Service": [line for line in _passed_on(sections["Service"]) if line.key in SERVICE_PASSED_ON],
        "Install": _passed_on(sections["Install"]),
    }
    for line in sections["Unit"] + sections["Service"] + sections["Install"]:
        _check(name, line)
    values.checked("IdleAction", lambda: _check_idle(name, values, of_service.get("Restart", ())))
    return Declaration(
        name=name,
        workload=replace(
            _workload(task, values, sources, served), properties=_properties(of_service, values, specified.in_unit)
        ),
        unit=tuple(passed_on["Unit"]),
        service=tuple(passed_on["Service"]),
        install=tuple(passed_on["Install"]),
        ready=values.one("Ready", parse_ready, None),
        timeout=values.one("Timeout", update_time, READY_TIMEOUT_S),
        drain=values.one("Drain", update_time, UPDATE_DRAIN_S),
        watch=values.one("Watch", update_time, UPDATE_WATCH_S),
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


def _check_idle(name: str, values: Declared, restart: Sequence[Assignment]) -> None:
    if not values.one("IdleAction", stops_when_idle, False):
        return
    if "@" in name:
        raise ValueError("is not for a template or an instance: expected it in a file without '@'")
    if restart and restart[-1].value in _ENDED_BY_SIGTERM:
        raise ValueError(
            f"is of no use with Restart={restart[-1].value}, which starts the task again at once: expected "
            "Restart=on-failure"
        )


def _properties(
    lines: Mapping[str, tuple[Assignment, ...]], values: Declared, specified: Mapping[str, str]
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
    return unit_property(f"{line.key}={text}", "[Service]")


def _workload(task: TaskName, values: Declared, sources: Sequence[Source], served: Collection[NetworkName]) -> Workload:
    if not values.given("Image"):
        raise SettingsError(
            f"{sources[0].path}: Image= is missing: expected the path of a unikernel in [Unikernel].",
            "Add: Image=/srv/unikernels/NAME.hvt",
        )
    return workload(task, values, lambda: served)


def update_time(text: str, _: str = "") -> float:
    """Return the seconds of Timeout=, Drain= or Watch=, or of an option like them.

    Raises:
        ValueError: malformed, or longer than a day; the message is the end of a sentence.
    """
    try:
        seconds = parse_time_span(text) / 10**6
    except ValueError as error:
        raise ValueError(f"is not a time: expected {error}") from error
    if seconds > UPDATE_MAX_S:
        raise ValueError("is too long: expected at most 1d")
    return seconds
