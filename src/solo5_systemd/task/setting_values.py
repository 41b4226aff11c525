"""The settings of a task as a workload, and a workload as settings: one reader and one writer for every language.

A language has `Values`: where the texts of a setting are, and how an error names them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import takewhile
from operator import attrgetter
from typing import Any, TypeVar

from solo5_systemd.base.errors import InvalidRequestError, Solo5Error
from solo5_systemd.base.names import DeviceName, NetworkName, TaskName, device_name
from solo5_systemd.network.model import Limits, NicRequest
from solo5_systemd.settings.addresses import Routes
from solo5_systemd.settings.egress import NONE, Egress, egress
from solo5_systemd.settings.network import DEFAULT_NETWORK
from solo5_systemd.settings.rate import UNLIMITED, rate
from solo5_systemd.settings.resolver import Resolver
from solo5_systemd.task.log_fields import MAX_LABELS, label, labels
from solo5_systemd.task.placeholders import used, verbatim
from solo5_systemd.task.settings import SETTINGS, Setting, journal_label, log_field, memory_max
from solo5_systemd.task.workload import Workload

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
    found = Workload(name=task, **_fields(values))
    if found.idle_stops and not found.idle_s:
        with values.located("IdleAction"):
            raise InvalidRequestError(f"{values.shown('IdleAction')} has no effect: expected an idle time as well.")
    values.one("MemoryMax", partial(_check_memory_max, memory=found.memory), None)
    nics, limits = _limited(found.nics, values)
    networks = {nic.network for nic in nics} or {DEFAULT_NETWORK}
    for name, setting in SETTINGS.items():
        if values.given(name):
            with values.located(name):
                check_reaches_guest(
                    setting, values.shown(name), found.arguments, lambda: not networks.isdisjoint(served())
                )
    return replace(
        found,
        arguments=(*found.arguments, *map(verbatim, values.each("Verbatim", str))),
        nics=nics,
        limits=limits,
        log_fields=(*values.combined("Label", journal_label, labels), *values.each("LogField", log_field)),
    )


def _fields(values: Values) -> dict[str, Any]:
    """Return the fields of a workload that each have a setting of their own."""
    found: dict[str, Any] = {"image": "", "resolver": {}}
    for name, setting in SETTINGS.items():
        if not setting.field or not values.given(name):
            continue
        parse = partial(setting.parse, place=values.path) if setting.has_path else setting.parse
        of, _, field = setting.field.rpartition(".")
        (found[of] if of else found)[field] = values.combined(name, parse, setting.combine if setting.is_list else next)
    return found | {"resolver": Resolver(**found["resolver"])}


def texts(task: Workload) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the settings that `workload` reads as this task, with the texts of their values; a default is left out.

    The arguments of `Verbatim` are among those of `Argument`, with their braces doubled; properties are left out.
    """
    of_several = {
        "Egress": _for_each(task, lambda each: [] if each.egress is None else [*map(str, each.egress)] or [NONE]),
        "Rate": _for_each(task, lambda limits: str(limits.rate).split()),
        **_journal(task.log_fields),
    }
    for name, setting in SETTINGS.items():
        written = of_several.get(name, ())
        if setting.field and setting.in_file:
            value = attrgetter(setting.field)(task)
            each = value if setting.is_list else [value] if value != attrgetter(setting.field)(_DEFAULTS) else ()
            written = [*map(setting.format, each)]
        if written:
            yield name, written


_DEFAULTS = Workload(name=TaskName(""), image="")


def _check_memory_max(text: str, memory: int) -> None:
    if memory_max(text) < memory:
        raise ValueError("is less than the task's memory: expected as much or more, or infinity")


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
                    raise InvalidRequestError(f"{sentence}, which no {network} names: expected a {network} for it.")
                block = f'nic "{for_nic}" {{ {name.lower()} = ["{rest}"] }}'
                raise InvalidRequestError(f"{sentence}: expected it in the block of that NIC.", f"Write {block}.")
        lists.setdefault(for_nic, []).append(rest)
    with values.located(name):
        return {each: parse(own) for each, own in lists.items()}


def _for_each(task: Workload, written: Callable[[Limits], Sequence[str]]) -> Sequence[str]:
    return [*written(task.limits), *(f"{each.nic}={text}" for each in task.nics for text in written(each.limits))]


# -- name servers, host name and hosts ------------------------------------------------------------------------------


def check_reaches_guest(setting: Setting, shown: str, arguments: Sequence[str], by_dhcp: Callable[[], bool]) -> None:
    """Check that a setting that is given, written as `shown`, has its placeholder in an argument, or is sent by DHCP.

    Args:
        by_dhcp: returns whether a network of the guest has a DHCP server.

    Raises:
        InvalidRequestError: neither.
    """
    if not setting.placeholder or setting.placeholder in used(arguments) or (setting.by_dhcp and by_dhcp()):
        return
    server = ", or a network with dhcp = true" if setting.by_dhcp else ""
    raise InvalidRequestError(
        f"{shown} has no effect: expected {{{setting.placeholder}}} in an argument of the guest{server}.",
        f'Add an argument that the guest takes, such as "{setting.example}", or remove the setting.',
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
