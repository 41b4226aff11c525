"""The settings of a task as a workload, and a workload as settings: one reader and one writer for every language.

A language has `Values`: where the texts of a setting are, and how an error names them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain, takewhile
from typing import TypeVar

from solo5_systemd.base.errors import InvalidRequestError, Solo5Error
from solo5_systemd.base.names import DeviceName, NetworkName, Target, TaskName, device_name
from solo5_systemd.network.model import Limits, NicRequest
from solo5_systemd.settings.addresses import Routes
from solo5_systemd.settings.egress import NONE, Egress, egress
from solo5_systemd.settings.network import DEFAULT_NETWORK
from solo5_systemd.settings.rate import UNLIMITED, rate
from solo5_systemd.settings.resolver import hostname, hosts, resolver
from solo5_systemd.task.disks import disk, disk_text
from solo5_systemd.task.log_fields import FIELD_NAME, MAX_LABELS, label, labels
from solo5_systemd.task.networks import host_endpoint, namespace_path, nic, nic_text, publish, publish_text
from solo5_systemd.task.placeholders import HOSTNAME, HOSTS, SEARCH, SERVERS, used, verbatim
from solo5_systemd.task.properties import parse_property
from solo5_systemd.task.property_types import INFINITY, SIZE
from solo5_systemd.task.quantities import cpus, idle_time, integer, size
from solo5_systemd.task.settings import SETTINGS
from solo5_systemd.task.workload import DEFAULT_MEMORY, Workload

T = TypeVar("T")
R = TypeVar("R")
Parse = Callable[[str], T]
"""Takes a text; raises as the parsers of `task.quantities`."""


class Values(ABC):
    """The settings of a task in one language, by the names of `task.settings`."""

    @abstractmethod
    def given(self, name: str) -> bool:
        """Return whether a setting is given."""

    @abstractmethod
    def shown(self, name: str) -> str:
        """Return how a setting is written, such as `--net` or `Network=`; empty: it cannot be."""

    @abstractmethod
    def parsed(self, name: str, parse: Parse[T]) -> Iterator[T]:
        """Yield the values of a setting; raises Solo5Error where one is invalid."""

    def one(self, name: str, parse: Parse[T], default: T) -> T:
        """Return the value of a setting that is no list; raises as `parsed`."""
        return next(self.parsed(name, parse), default)

    def each(self, name: str, parse: Parse[T]) -> tuple[T, ...]:
        """Return the values of a list; raises as `parsed`."""
        return tuple(self.parsed(name, parse))

    def combined(self, name: str, parse: Parse[T], combine: Callable[[Iterator[T]], R]) -> R:
        """Return the result of a function of the values of a list; its error is that of the setting."""
        with self.located(name):
            return combine(self.parsed(name, parse))

    def located(self, name: str) -> AbstractContextManager[None]:  # noqa: ARG002
        """Return a context manager: an error of its block is that of a setting."""
        return nullcontext()

    def path(self, text: str) -> str:
        """Return a path of the host in full, where that is known; a parser."""
        return text


def workload(task: TaskName, values: Values, served: Callable[[], Collection[NetworkName]]) -> Workload:
    """Return the workload that the settings of a task describe.

    Args:
        served: returns the networks with a DHCP server; called where a setting may reach the guest by DHCP alone.

    Raises:
        Solo5Error: a setting is invalid, or has no effect; the sentence names it.
    """
    requests = values.combined("Network", nic, lambda found: unique(found, lambda each: each.nic, "NIC"))
    nics, limits = _limited(requests, values)
    idle_s, idle_stops = values.one("IdleSec", idle_time, 0), values.one("IdleAction", stops_when_idle, False)
    if idle_stops and not idle_s:
        with values.located("IdleAction"):
            raise InvalidRequestError(f"{values.shown('IdleAction')} has no effect: expected an idle time as well.")
    arguments = values.each("Argument", str)
    memory = values.one("Memory", size, DEFAULT_MEMORY)
    found = Workload(
        name=task,
        image=values.one("Image", values.path, ""),
        arguments=(*arguments, *map(verbatim, values.each("Verbatim", str))),
        tender=values.one("Tender", _tender, None),
        memory=memory,
        memory_max=values.one("MemoryMax", partial(_memory_max, memory=memory), None),
        cpus=values.one("CPUs", cpus, None),
        cpu_weight=values.one("CPUWeight", partial(integer, low=1, high=10_000), None),
        nics=nics,
        limits=limits,
        idle_s=idle_s,
        idle_stops=idle_stops,
        namespace=values.one("NetworkNamespace", namespace_path, ""),
        publish=values.combined(
            "Publish", publish, lambda found: unique(chain.from_iterable(found), host_endpoint, "published port")
        ),
        resolver=values.combined("DNS", str, lambda found: resolver(found, ()))
        | values.combined("DNSSearch", str, lambda found: resolver((), found)),
        hostname=values.one("HostName", hostname, ""),
        hosts=values.combined("AddHost", str, hosts),
        disks=values.combined(
            "Block",
            lambda text: disk(text, values.path),
            lambda found: unique(found, lambda disk: disk.disk, "disk"),
        ),
        log_fields=(
            *values.combined("Label", journal_label, labels),
            *values.each("LogField", log_field),
        ),
        properties=values.each("Property", unit_property),
    )
    _check_reaches_guest(values, arguments, nics, served)
    return found


def texts(task: Workload) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the settings that `workload` reads as this task, with the texts of their values; a default is left out.

    The arguments of `Verbatim` are among those of `Argument`, with their braces doubled; properties are left out.
    """
    written: Mapping[str, Sequence[str]] = {
        "Image": [task.image],
        "Argument": task.arguments,
        "Tender": [task.tender] if task.tender is not None else [],
        "Memory": [SIZE.format(task.memory)] if task.memory != DEFAULT_MEMORY else [],
        "MemoryMax": [SIZE.format(task.memory_max)] if task.memory_max is not None else [],
        "CPUs": [f"{task.cpus:.6f}".rstrip("0").rstrip(".")] if task.cpus is not None else [],
        "CPUWeight": [str(task.cpu_weight)] if task.cpu_weight is not None else [],
        "Network": [*map(nic_text, task.nics)],
        "NetworkNamespace": [task.namespace] if task.namespace else [],
        "Publish": [*map(publish_text, task.publish)],
        "Egress": _for_each(task, lambda each: [] if each.egress is None else [*map(str, each.egress)] or [NONE]),
        "Rate": _for_each(task, lambda limits: str(limits.rate).split()),
        "IdleSec": [str(task.idle_s)] if task.idle_s else [],
        "IdleAction": ["stop"] if task.idle_stops else [],
        "DNS": [*map(str, task.resolver.servers)],
        "DNSSearch": task.resolver.search,
        "HostName": [task.hostname] if task.hostname else [],
        "AddHost": [*map(str, task.hosts)],
        "Block": [*map(disk_text, task.disks)],
        **_journal(task.log_fields),
    }
    yield from ((name, values) for name in SETTINGS if (values := written.get(name)))


def unit_property(text: str) -> tuple[str, str]:
    """Parse KEY=VALUE, a settable unit property (task/properties.py)."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ValueError("has no value: expected KEY=VALUE, such as TasksMax=32")
    parse_property(key, value)
    return key, value


def _tender(text: str) -> Target:
    if text not in tuple(Target):
        raise ValueError(f"is unknown: expected {' or '.join(Target)}")
    return Target(text)


def stops_when_idle(text: str) -> bool:
    """Return whether a value of IdleAction= is stop; a parser."""
    if text not in ("sleep", "stop"):
        raise ValueError("is unknown: expected sleep or stop")
    return text == "stop"


def _memory_max(text: str, memory: int) -> int:
    most = INFINITY if text == "infinity" else size(text)
    if most < memory:
        raise ValueError("is less than the task's memory: expected as much or more, or infinity")
    return most


def unique(values: Iterable[T], key: Callable[[T], Hashable], what: str) -> tuple[T, ...]:
    """Return the values if their keys are unique; `what`: the noun for the key in the error.

    Raises:
        InvalidRequestError: two values have the same key.
    """
    seen: dict[Hashable, T] = {}
    for value in values:
        if key(value) in seen:
            raise InvalidRequestError(f"{what} {key(value)} is given twice: expected once.")
        seen[key(value)] = value
    return tuple(seen.values())


# -- limits of NICs ------------------------------------------------------------------------------------------------


def _limited(nics: Sequence[NicRequest], values: Values) -> tuple[tuple[NicRequest, ...], Limits]:
    """Return the NICs with limits of their own, and the limits of the others; `NIC=` before a value is for one NIC."""
    names = {each.nic for each in nics}
    egresses: dict[DeviceName | None, Egress] = _by_nic(values, "Egress", 1, names, egress)
    rates = _by_nic(values, "Rate", 2, names, rate)
    if values.given("Egress") and not egresses:  # an empty list of a job permits no connection
        egresses[None] = ()

    def of(nic: DeviceName | None, routes: Routes = ()) -> Limits:
        return Limits(egress=egresses.get(nic), rate=rates.get(nic, UNLIMITED), routes=routes)

    return tuple(replace(each, limits=of(each.nic, each.limits.routes)) for each in nics), of(None)


def _by_nic(
    values: Values, name: str, equals: int, nics: Collection[DeviceName], parse: Callable[[Sequence[str]], T]
) -> dict[DeviceName | None, T]:
    """Return the lists of a setting by NIC; None: of all NICs without one. `equals`: signs in an entry for one NIC."""
    lists: dict[DeviceName | None, list[str]] = {}
    for text in values.each(name, str):
        own, _, rest = text.partition("=") if text.count("=") >= equals else ("", "", text)
        with values.located(name):
            for_nic = device_name(own) if own else None
            if for_nic is not None and for_nic not in nics:
                sentence, network = f"{values.shown(name)} {text!r} is for NIC {for_nic}", values.shown("Network")
                if network:
                    raise InvalidRequestError(f"{sentence}, which no {network} names: expected one that is.")
                block = f'nic "{for_nic}" {{ {name.lower()} = ["{rest}"] }}'
                raise InvalidRequestError(f"{sentence}: expected it in the block of that NIC.", f"Write {block}.")
        lists.setdefault(for_nic, []).append(rest)
    with values.located(name):
        return {each: parse(own) for each, own in lists.items()}


def _for_each(task: Workload, written: Callable[[Limits], Sequence[str]]) -> Sequence[str]:
    return [*written(task.limits), *(f"{each.nic}={text}" for each in task.nics for text in written(each.limits))]


# -- name servers, host name and hosts ------------------------------------------------------------------------------


_FOR_GUEST = (
    ("DNS", SERVERS, "--dns-servers={dns.udp}"),
    ("DNSSearch", SEARCH, "--search={search}"),
    ("HostName", HOSTNAME, "--name={hostname}"),
    ("AddHost", HOSTS, "--hosts={hosts}"),
)
"""The settings that reach a guest among its arguments, each with its placeholder and an argument that has it."""


def _check_reaches_guest(
    values: Values, arguments: Sequence[str], nics: Sequence[NicRequest], served: Callable[[], Collection[NetworkName]]
) -> None:
    """Refuse a setting without its placeholder in an argument, unless a DHCP server has it for a NIC of the guest."""
    for name, placeholder, example in _FOR_GUEST:
        if not values.given(name) or placeholder in used(arguments):
            continue
        joined = {nic.network for nic in nics} or {DEFAULT_NETWORK}
        if placeholder == HOSTS or not joined & {*served()}:  # no option of DHCP can have hosts
            with values.located(name):
                raise InvalidRequestError(
                    f"{values.shown(name)} has no effect: expected {{{placeholder}}} in an argument of the guest.",
                    f"Add an argument that the guest takes, such as {example}",
                )


# -- journal fields -------------------------------------------------------------------------------------------------


def _journal(fields: Sequence[tuple[str, str]]) -> Mapping[str, Sequence[str]]:
    """Return the labels, then the fields that are none: those of journald or Nomad."""
    count = len([*takewhile(_is_label, fields[:MAX_LABELS])])
    pairs = [f"{name}={value}" for name, value in fields]
    return {"Label": pairs[:count], "LogField": pairs[count:]}


def _is_label(field: tuple[str, str]) -> bool:
    try:
        label(*field)
    except Solo5Error:
        return False
    return True


def log_field(text: str) -> tuple[str, str]:
    """Parse KEY=VALUE, KEY in the form of systemd.journal-fields(7)."""
    key, equals, value = text.partition("=")
    if not equals or not FIELD_NAME.fullmatch(key) or key.startswith("SOLO5_") or not value.isprintable():
        raise ValueError(
            "is not a journal field: expected KEY=VALUE, KEY of at most 64 uppercase letters, digits and '_', starting "
            "with a letter and not with SOLO5_"
        )
    return key, value


def journal_label(text: str) -> tuple[str, str]:
    """Parse KEY=VALUE, as in a Nomad job's `labels`."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ValueError("has no value: expected KEY=VALUE, such as TEAM=web")
    return label(key, value)
