"""Parse KEY=VALUE: properties of the unit, journal fields, labels; and check that no key is given twice."""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.task.log_fields import FIELD_NAME, label
from solo5_systemd.task.properties import parse_property
from solo5_systemd.task.quantities import named

T = TypeVar("T")


def unit_property(text: str, option: str) -> tuple[str, str]:
    """Parse KEY=VALUE, a settable unit property (task/properties.py).

    Raises:
        InvalidRequestError: malformed, or not settable.
    """
    key, equals, value = text.partition("=")
    if not equals:
        raise InvalidRequestError(f"{option} {text!r} has no value: expected KEY=VALUE, such as TasksMax=32.")
    parse_property(key, value)
    return key, value


@named
def log_field(text: str, option: str) -> tuple[str, str]:
    """Parse KEY=VALUE, KEY in the form of systemd.journal-fields(7).

    Raises:
        InvalidRequestError: malformed, or a SOLO5_ field.
    """
    key, equals, value = text.partition("=")
    if not equals or not FIELD_NAME.fullmatch(key) or key.startswith("SOLO5_") or not value.isprintable():
        raise InvalidRequestError(
            f"{option} {text!r} is not a journal field: expected KEY=VALUE, KEY of at most 64 uppercase letters, "
            "digits and '_', starting with a letter and not with SOLO5_."
        )
    return key, value


@named
def journal_label(text: str, option: str) -> tuple[str, str]:
    """Parse KEY=VALUE, as in a Nomad job's `labels`.

    Raises:
        InvalidRequestError: malformed, or KEY is a field of journald, Nomad or solo5-systemd.
    """
    key, equals, value = text.partition("=")
    if not equals:
        raise InvalidRequestError(f"{option} {text!r} has no value: expected KEY=VALUE, such as TEAM=web.")
    return label(key, value)


def unique(values: Iterable[T], key: Callable[[T], Hashable], what: str) -> tuple[T, ...]:
    """Return the values if their keys are unique.

    Args:
        what: the noun for the key in the error.

    Raises:
        InvalidRequestError: two values have the same key.
    """
    seen: dict[Hashable, T] = {}
    for value in values:
        if key(value) in seen:
            raise InvalidRequestError(f"{what} {key(value)} is given twice: expected once.")
        seen[key(value)] = value
    return tuple(seen.values())
