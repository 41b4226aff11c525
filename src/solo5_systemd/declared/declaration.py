"""From the files of a declaration to its task: `web.unikernel` and its drop-ins become a Workload.

A key of [Unikernel] has the value of the last file that sets it; its parser is that of `solo5ctl run`.
"""

import posixpath
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, fields, replace
from itertools import combinations
from types import MappingProxyType
from typing import TypeVar

from solo5_systemd.base.errors import InvalidRequestError, SettingsError, Solo5Error
from solo5_systemd.base.names import NetworkName, task_name
from solo5_systemd.base.sanitize import printable, unit_file_syntax
from solo5_systemd.declared.syntax import (
    Assignment,
    Source,
    expand,
    parse_file,
    specifiers,
    split_words,
)
from solo5_systemd.declared.unit_keys import (
    CHECK_OF,
    CHECKS,
    LISTS,
    SECTIONS,
    SERVICE_PASSED_ON,
    refusal,
)
from solo5_systemd.declared.update_request import (
    READY_TIMEOUT_S,
    UPDATE_DRAIN_S,
    UPDATE_WATCH_S,
    UpdateRequest,
    parse_ready,
    update_time,
)
from solo5_systemd.network.model import IpAddress, share_address
from solo5_systemd.settings.network import DEFAULT_NETWORK
from solo5_systemd.task.networks import host_endpoint
from solo5_systemd.task.properties import parse_property
from solo5_systemd.task.property_types import quoted
from solo5_systemd.task.quantities import value_of
from solo5_systemd.task.setting_values import Parse, Values, texts, workload
from solo5_systemd.task.settings import KEYS, SECTION, SETTINGS, stops_when_idle
from solo5_systemd.task.workload import Workload

T = TypeVar("T")

SUFFIX = ".unikernel"
NEWEST = 257
"""The newest release of systemd whose settings are known."""

_TWICE = {"CPUQuota": "CPUs", "CPUWeight": "CPUWeight"}
"""Settings of [Service] that a key of [Unikernel] sets too."""


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """A task as it is declared; or a template, as it is read for a stand-in of its instances.

    Attributes:
        workload: its name is that of the unit without the suffix: `web`, or `web@1`.
        unit: the lines of [Unit] for systemd, in order, without those that another one has reset or overridden; an
            empty value resets all conditions, or all assertions.
        service: those of [Service], without the settings that are properties of the workload.
        update: what an update has that is not requested otherwise.
        stand_ins: the words in the place of `%i` and `%I`, with these; empty: it is no template.
    """

    workload: Workload
    unit: tuple[Assignment, ...] = ()
    service: tuple[Assignment, ...] = ()
    install: tuple[Assignment, ...] = ()
    update: UpdateRequest = field(default_factory=UpdateRequest)
    path: str = ""
    stand_ins: Mapping[str, str] = field(default_factory=dict)

    def text(self, text: str) -> str:
        """Return text of the unit file with the specifiers in the place of the stand-ins."""
        for word, specifier in self.stand_ins.items():
            text = text.replace(word, specifier)
        return text


def effective(assignments: Iterable[Assignment]) -> Mapping[str, tuple[Assignment, ...]]:
    """Return the assignments of one section that count, by key.

    An empty assignment removes those before it. Of a setting that is no list, the last file's counts.

    Raises:
        SettingsError: a setting that is no list is twice in one file.
    """
    found: dict[str, list[Assignment]] = {}
    for each in assignments:
        if not each.value:
            found.pop(each.key, None)
            continue
        own = found.setdefault(each.key, [])
        if each.key not in LISTS:
            if own and own[-1].path == each.path:
                raise each.error(
                    f"{each.key}= is given twice, before in line {own[-1].line}: expected it once in a file."
                )
            own.clear()
        own.append(each)
    return {key: tuple(own) for key, own in found.items()}


class Declared(Values):
    """The values of [Unikernel].

    Args:
        in_unit: the specifiers in values that are part of the unit file.
        at_start: those in values of keys with `at_start`.
    """

    def __init__(
        self,
        assignments: Mapping[str, tuple[Assignment, ...]],
        in_unit: Mapping[str, str],
        at_start: Mapping[str, str],
    ) -> None:
        self._assignments = assignments
        self._in_unit, self._at_start = in_unit, at_start

    def given(self, name: str) -> bool:
        """Return whether a key is set."""
        return name in self._assignments

    def located(self, name: str) -> AbstractContextManager[None]:
        """Return a context manager: an error of its block is that of the key's last line."""
        return located(self._assignments[name][-1]) if self.given(name) else nullcontext()

    def shown(self, name: str) -> str:
        """Return the key as it is written."""
        return f"{name}="

    def path(self, text: str) -> str:
        """Return an absolute path without `.`, `..` and doubled slashes; lexical, as for `solo5ctl run`."""
        if not text.startswith("/"):
            raise ValueError("is a relative path: expected an absolute one, such as /srv/web.hvt")
        return posixpath.normpath(f"/{text.lstrip('/')}")

    def parsed(self, name: str, parse: Parse[T]) -> Iterator[T]:
        """Yield the values of a key; raises SettingsError where one is invalid."""
        setting = SETTINGS[name]
        values = self._at_start if setting.at_start else self._in_unit
        for line in self._assignments.get(name, ()):
            with located(line):
                words = split_words(line.value) if setting.has_words else (line.value,)
                found = [value_of(parse, expand(word, values), self.shown(name)) for word in words]
            yield from found


@contextmanager
def located(line: Assignment) -> Iterator[None]:
    """Turn a Solo5Error of the block, or a ValueError with the end of a sentence, into the SettingsError of a line."""
    try:
        yield
    except SettingsError:  # has its line already
        raise
    except Solo5Error as error:
        raise line.error(error.sentence, error.hint) from error
    except ValueError as error:
        raise line.error(f"{line} {error}.") from error


def parse_declaration(
    name: str,
    sources: Sequence[Source],
    *,
    host: Mapping[str, str] = MappingProxyType({}),
    served: Collection[NetworkName] = (),
    systemd: int = NEWEST,
    in_unit: Mapping[str, str] | None = None,
    at_start: Mapping[str, str] | None = None,
) -> Declaration:
    """Return a declaration.

    Args:
        name: `web`, or `web@1` of an instance of the template `web@`.
        sources: the file and its drop-ins, in the order in which they override each other.
        host: the specifiers of the host, as of `files.host_names`.
        served: the networks with a DHCP server.
        systemd: its release, such as 257, which ignores settings of later ones.
        in_unit, at_start: as of `Declared`; None: the specifiers of the name.

    Raises:
        InvalidRequestError: the name is malformed.
        SettingsError: a file is malformed, with its path and the number of the line.
    """
    task = task_name(name)
    lines = tuple(line for source in sources for line in parse_file(source))
    for line in lines:
        if sentence := refusal(line.section, line.key, systemd):
            raise line.error(sentence)
    sections = {section: [line for line in lines if line.section == section] for section in SECTIONS}
    in_unit, at_start = in_unit or specifiers(name, host), at_start or specifiers(name, host)
    effects = {section: effective(own) for section, own in sections.items()}
    values = Declared(effects[SECTION], in_unit, at_start)
    for line in sections["Unit"] + sections["Service"] + sections["Install"]:
        _check(name, line)
    with values.located("IdleAction"):
        _check_idle(name, values, effects["Service"].get("Restart", ()))
    if not values.given("Image"):
        raise SettingsError(
            f"{sources[0].path}: Image= is missing: expected the path of a unikernel in [Unikernel].",
            "Add: Image=/srv/unikernels/NAME.hvt",
        )
    found = workload(task, values, lambda: served)

    def passed_on(section: str) -> tuple[Assignment, ...]:
        # systemd ignores an empty value of most settings, and cannot reset a dependency; so a reset is made here.
        kept = {id(line) for own in effects[section].values() for line in own}
        return tuple(line for line in sections[section] if id(line) in kept or line.key in CHECKS)

    return Declaration(
        workload=replace(found, properties=_properties(effects["Service"], values, in_unit)),
        unit=passed_on("Unit"),
        service=tuple(line for line in passed_on("Service") if line.key in SERVICE_PASSED_ON),
        install=passed_on("Install"),
        update=UpdateRequest(
            ready=values.one("Ready", parse_ready, None),
            timeout=values.one("Timeout", update_time, READY_TIMEOUT_S),
            drain=values.one("Drain", update_time, UPDATE_DRAIN_S),
            watch=values.one("Watch", update_time, UPDATE_WATCH_S),
        ),
        path=sources[0].path,
    )


def _check(name: str, line: Assignment) -> None:
    if line.key == "DefaultInstance" and "@" not in name:
        raise line.error("DefaultInstance= is of templates: expected a file such as web@.unikernel.")
    try:
        if line.value and line.key in CHECK_OF:
            CHECK_OF[line.key](line.value)
    except ValueError as error:
        raise line.error(f"{line} is not a value that systemd takes: expected {error}.") from error


def _check_idle(name: str, values: Declared, restart: Sequence[Assignment]) -> None:
    if not values.one("IdleAction", stops_when_idle, False):
        return
    if "@" in name:
        raise ValueError("is not for a template or an instance: expected it in a file without '@'")
    if restart and restart[-1].value in ("always", "on-success"):  # also of what SIGTERM has ended
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
        if key in SERVICE_PASSED_ON:  # the unit file has these lines as they are written
            continue
        if key in _TWICE and values.given(_TWICE[key]):
            raise own[-1].error(f"{key}= is set in [Service], and {_TWICE[key]}= in [Unikernel]: expected one of both.")
        for line in own:
            with located(line):
                text = expand(line.value, specified) if key == "Slice" else line.value  # in others, % is a percentage
                parse_property(key, text)
            found.append((key, text))
    return tuple(found)


def conflicts(declarations: Iterable[Declaration]) -> Iterator[str]:
    """Yield a sentence for each pair of tasks of which only one can run at a time: of a port, an address, a MAC.

    Each file for itself is in order, so it is a warning of `solo5ctl doctor`, and an error of the second start.
    """
    claims: defaultdict[object, list[tuple[Declaration, str, IpAddress | None]]] = defaultdict(list)
    for declaration in declarations:
        for port in declaration.workload.publish:
            what = f"published port {host_endpoint(port)}"
            claims[port.protocol, port.host_port].append((declaration, what, port.host_ip))
        for nic in declaration.workload.nics:
            texts = (("address", nic.ipv4), ("address", nic.ipv6), ("MAC address", nic.mac))
            for what in (f"{kind} {value} of network {nic.network}" for kind, value in texts if value is not None):
                claims[what].append((declaration, what, None))
    for same in claims.values():
        for (one, what, address), (other, _, its) in combinations(same, 2):
            if one is not other and share_address(address, its):
                yield f"{what} is in {one.path} and in {other.path}: only one of both tasks can run at a time."


def write_declaration(workload: Workload, comments: Iterable[str] = ()) -> str:
    """Return the text that `parse_declaration` reads as the same task; raises InvalidRequestError if none does."""
    install = [("WantedBy", "multi-user.target")]  # so that `systemctl enable` has an effect
    sections = {SECTION: list(_lines(workload)), "Service": workload.properties, "Install": install}
    for key, value in (line for lines in sections.values() for line in lines):
        if syntax := unit_file_syntax(value):
            raise InvalidRequestError(
                f"task {workload.name} cannot be declared: {key}= has {syntax}, which a file cannot have there: "
                "expected other text."
            )
    parts = ["".join(f"# {printable(each)}\n" for each in comments)]
    for name, lines in sections.items():
        parts.append("".join((f"[{name}]\n", *(f"{key}={value}\n" for key, value in lines))) if lines else "")
    text = "\n".join(part for part in parts if part)
    _check_is_read_as(workload, text)
    return text


def _check_is_read_as(workload: Workload, text: str) -> None:
    """Check that a text is read as the task: a value that has no form in a declaration is not written another way."""
    source = Source(path=f"{workload.name}.unikernel", content=text.encode())
    # Whether these have a DHCP server is checked when the file is read, with the settings.
    served = [nic.network for nic in workload.nics] or [DEFAULT_NETWORK]
    try:
        found = parse_declaration(workload.name, [source], served=served).workload
    except SettingsError as error:
        raise InvalidRequestError(f"task {workload.name} cannot be declared: {error.sentence}", error.hint) from error
    lost = [field.name for field in fields(Workload) if getattr(found, field.name) != getattr(workload, field.name)]
    if lost:
        raise InvalidRequestError(
            f"task {workload.name} cannot be declared, since a declaration cannot describe its {' and '.join(lost)}: "
            "expected what solo5.unikernel(5) has a key for."
        )


def _lines(workload: Workload) -> Iterator[tuple[str, str]]:
    """Yield the keys of [Unikernel] with their values; a default is left out."""
    for name, values in texts(workload):
        lines = [value.replace("%", "%%") for value in values]
        if KEYS[name].has_words:
            lines = [*map(quoted, lines)]
            if name not in ("Label", "LogField"):  # each has a line of its own
                lines = [" ".join(lines)]
        yield from ((name, line) for line in lines)
