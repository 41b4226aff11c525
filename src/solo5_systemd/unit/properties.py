"""Unit properties: the arguments of StartTransientUnit(), from and to the text of a unit file."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from solo5_systemd.errors import InvalidRequestError
from solo5_systemd.unit.property_table import PROPERTIES, SETTABLE


@dataclass(frozen=True, kw_only=True)
class UnitFiles:
    """File descriptors for a unit's stdin and stderr; the caller closes its own copies after the start."""

    stdin: int | None = None
    stderr: int | None = None


class JobFailedError(Exception):
    """A job of systemd ended with another result than `done`.

    Attributes:
        unit: name of the unit.
        result: systemd's job result, such as `failed` or `dependency`.
    """

    def __init__(self, unit: str, result: str) -> None:
        super().__init__(f"{unit}: {result}")
        self.unit = unit
        self.result = result


@dataclass(frozen=True)
class Property:
    """One property: D-Bus name, D-Bus signature, and the value in plain Python types."""

    name: str
    signature: str
    value: object


@dataclass(frozen=True, kw_only=True)
class TransientUnit:
    """The unit of one StartTransientUnit() call.

    Attributes:
        name: of the unit, with its suffix.
        properties: in the order in which they are sent.
        marks: fields of a scope, stored in an extended attribute of its cgroup: a scope has no LogExtraFields=.
    """

    name: str
    properties: tuple[Property, ...]
    marks: Mapping[str, str] = field(default_factory=dict)

    def value(self, name: str) -> object:
        """Return the value of a property, or None."""
        return next((p.value for p in self.properties if p.name == name), None)


def unit_property(name: str, value: object) -> Property:
    """Return a property of the table.

    Args:
        name: on D-Bus.
        value: in plain Python types, as its signature demands.
    """
    return Property(name, PROPERTIES[name].type.signature, value)


def parse_property(assignment_key: str, text: str) -> Property:
    """Parse KEY=VALUE as an operator writes it.

    Raises:
        InvalidRequestError: a task may not set this property, or the value is malformed.
    """
    known = SETTABLE.get(assignment_key)
    if known is None:
        raise InvalidRequestError(
            f"unit property {assignment_key!r} cannot be set: expected one of {', '.join(sorted(SETTABLE))}."
        )
    try:
        return unit_property(known.name, known.type.parse(text))
    except ValueError as error:
        raise InvalidRequestError(f"unit property {assignment_key}={text}: expected {error}.") from error


def directive(entry: Property) -> str:
    """Return a property as a line of a unit file: `TimeoutStopSec=10s` for TimeoutStopUSec and 10000000.

    The value of a property that the table lacks is printed with `str`.
    """
    known = PROPERTIES.get(entry.name)
    return f"{known.directive}={known.type.format(entry.value)}" if known else f"{entry.name}={entry.value}"


def scope_lacks(assignment_key: str) -> bool:
    """Return whether a property may be set for a service only."""
    known = SETTABLE.get(assignment_key)
    return known is not None and known.is_executed


def security_modules(assignments: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the properties that need a security module, each with the module, except optional ones (prefix `-`)."""
    return {
        key: SETTABLE[key].security_module
        for key, text in assignments
        if key in SETTABLE and SETTABLE[key].security_module and text[:1] != "-"
    }
