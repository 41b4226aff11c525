"""The types of a task's settings that no other file has: how each is parsed and written, once for all languages.

A parser of one text raises as those of `task.quantities`; what makes a list of its values raises InvalidRequestError.
"""

from collections.abc import Callable, Hashable, Iterable
from itertools import chain
from typing import TypeVar

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import Target
from solo5_systemd.task.log_fields import FIELD_NAME, label
from solo5_systemd.task.networks import host_endpoint
from solo5_systemd.task.properties import parse_property
from solo5_systemd.task.property_types import INFINITY
from solo5_systemd.task.quantities import size
from solo5_systemd.task.workload import Publish

T = TypeVar("T")


def tender(text: str) -> Target:
    """Parse the name of a tender."""
    if text not in tuple(Target):
        raise ValueError(f"is unknown: expected {' or '.join(Target)}")
    return Target(text)


def memory_max(text: str) -> int:
    """Parse a size, or `infinity`."""
    return INFINITY if text == "infinity" else size(text)


def cpus_text(cpus: float) -> str:
    """Return what `task.quantities.cpus` parses as this number."""
    return f"{cpus:.6f}".rstrip("0").rstrip(".")


def stops_when_idle(text: str) -> bool:
    """Return whether a value of IdleAction= is stop."""
    if text not in ("sleep", "stop"):
        raise ValueError("is unknown: expected sleep or stop")
    return text == "stop"


def unit_property(text: str) -> tuple[str, str]:
    """Parse KEY=VALUE, a settable unit property (task/properties.py)."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ValueError("has no value: expected KEY=VALUE, such as TasksMax=32")
    parse_property(key, value)
    return key, value


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


def ports(found: Iterable[Iterable[Publish]]) -> tuple[Publish, ...]:
    """Return the ports of all ranges, each of which is published once."""
    return unique(chain.from_iterable(found), host_endpoint, "published port")


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
