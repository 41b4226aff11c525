"""Records: dataclasses or named tuples whose fields are read from and written to plain values, by their annotations.

A plain value is a boolean, an integer, a text, a list of them, or a table, as TOML, JSON, HCL and D-Bus have them all.
So each type is parsed and formatted here once, and a field that is added to a class is in each language. A key that the
class lacks is ignored, and a missing one has the field's default: programs of two versions understand each other.

What an operator sets is a record as well, whose fields are made by `setting`: each with its default, and its meaning as
`make tables` writes it to the manuals.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, field, fields, is_dataclass
from enum import StrEnum
from functools import cache, reduce
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from operator import or_
from types import NoneType
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from solo5_systemd.base.decode import Fields
from solo5_systemd.base.names import (
    DeviceName,
    DiskName,
    NetworkName,
    TaskName,
    device_name,
    disk_name,
    network_name,
    task_name,
)
from solo5_systemd.settings.addresses import (
    AddressRange,
    Routes,
    address_range,
    host_address,
    ipv4_address,
    ipv6_address,
    routes,
)

T = TypeVar("T")
INTEGER_MAX = (1 << 63) - 1


class Type(NamedTuple):  # a tuple, as `Entry`: their classes are made in a fifth of the time of dataclasses
    """A type of values.

    Attributes:
        read: returns the value of a key, or raises as the getters of `Fields`.
        write: returns the plain value of a value.
        hcl: its type in a schema of Nomad, or that of the values of a block with any keys.
        kind: the class of the records in a block; None: it is an attribute.
        is_map: there are any number of keys or labels.
    """

    read: Callable[[Fields, str], Any]
    write: Callable[[Any], object]
    hcl: str = "string"
    kind: Any = None
    is_map: bool = False


class Entry(NamedTuple):
    """A field of a record.

    Attributes:
        name: of the field, and of the key.
        default: MISSING: the key is required.
        metadata: of the field, such as the arguments of `setting`.
    """

    name: str
    type: Type
    default: object
    metadata: Mapping[str, Any]


def setting(meaning: str, *, default: T, shown: str = "", **more: object) -> T:
    """Return the field of a record that an operator sets; `shown`: the default in manuals, if its value is unclear."""
    metadata = {"meaning": meaning, "shown": shown, **more}
    if isinstance(default, dict):  # dataclasses refuse a mutable default
        return field(default_factory=default.copy, metadata=metadata)  # type: ignore[return-value]
    return field(default=default, metadata=metadata)


def text(parse: Callable[[str], object], write: Callable[[Any], str] = str) -> Type:
    """Return the type of the values that `parse` returns for a text."""
    return Type(lambda fields, key: fields.parsed(key, parse), write)


def texts(parse: Callable[[Sequence[str]], object], write: Callable[[Any], Sequence[str]] | None = None) -> Type:
    """Return the type of the values that `parse` returns for a list of texts."""
    listed = write or (lambda value: [*map(str, value)])
    return Type(lambda fields, key: fields.parsed(key, parse, is_list=True), listed, "list(string)")


def integer(low: int = 0, high: int = INTEGER_MAX) -> Type:
    """Return the type of integers from `low` to `high`."""
    return Type(lambda fields, key: fields.integer(key, low=low, high=high), int, "number")


TYPES: dict[object, Type] = {
    bool: Type(lambda fields, key: fields.boolean(key), bool, "bool"),
    int: integer(),
    str: Type(lambda fields, key: fields.text(key), str),
    TaskName: text(task_name),
    DeviceName: text(device_name),
    DiskName: text(disk_name),
    NetworkName: text(network_name),
    IPv4Address: text(ipv4_address),
    IPv6Address: text(ipv6_address),
    IPv4Address | IPv6Address: text(host_address),
    IPv4Interface: text(IPv4Interface),
    IPv6Interface: text(IPv6Interface),
    IPv4Network: text(IPv4Network),
    IPv6Network: text(IPv6Network),
    AddressRange: text(address_range),
    Routes: texts(routes),
}
"""The types of annotations; a module adds those of its own."""


def record(kind: Callable[..., T], table: Fields) -> T:
    """Return the record of a table.

    Raises:
        Solo5Error: (of the class of `table`) a required key is missing, a value is malformed, or a key is unknown where
            `table` refuses that.
    """
    present = {*table}
    if table.refuses_unknown_keys:  # what people write; a record of a later version may have more keys
        table.allow(*(each.name for each in entries(kind)))
    values = {
        each.name: each.type.read(table, each.name) if each.name in present or each.default is MISSING else each.default
        for each in entries(kind)
    }
    return kind(**values)


def document(value: Any, *, complete: bool = False) -> dict[str, Any]:
    """Return the table of a record, without keys whose value is None, or, unless it is to be complete, the default."""
    table = {}
    for each in entries(value.__class__):
        own = getattr(value, each.name)
        if own is not None and (complete or own != each.default):  # neither TOML nor D-Bus has a null
            table[each.name] = each.type.write(own)
    return table


@cache
def entries(kind: Any) -> Sequence[Entry]:
    """Return the fields of a class of records. One that may be None is None where its key is missing."""
    hints = get_type_hints(kind, include_extras=True)
    found = []
    for name, default, metadata in _fields_of(kind):
        if default is MISSING and NoneType in get_args(hints[name]):
            default = None
        found.append(Entry(name, type_of(hints[name]), default, metadata))
    return tuple(found)


def _is_record(hint: Any) -> bool:
    return is_dataclass(hint) or hasattr(hint, "_field_defaults")


def _fields_of(kind: Any) -> Iterator[tuple[str, object, Mapping[str, Any]]]:
    if not is_dataclass(kind):
        yield from ((name, kind._field_defaults.get(name, MISSING), {}) for name in kind._fields)
        return
    for each in fields(kind):
        yield each.name, each.default if each.default_factory is MISSING else each.default_factory(), each.metadata


@cache
def type_of(hint: Any) -> Type:
    """Return the type of an annotation: of TYPES, or composed of such, or what `Annotated` adds."""
    arguments = get_args(hint)
    if hint in TYPES:  # first, since `Routes` is a tuple, and `Egress` a union with None
        return TYPES[hint]
    if get_origin(hint) is Annotated:
        return next(each for each in hint.__metadata__ if isinstance(each, Type))
    if NoneType in arguments:
        return type_of(reduce(or_, (each for each in arguments if each is not NoneType)))
    if get_origin(hint) is tuple:
        is_record = arguments[0] not in TYPES and _is_record(arguments[0])  # `AddressRange` is a dataclass and a text
        return _records(arguments[0]) if is_record else _list(type_of(arguments[0]))
    if get_origin(hint) is Mapping:
        return _table(*map(type_of, arguments))
    if isinstance(hint, type) and _is_record(hint):
        return Type(lambda table, key: record(hint, table.table(key)), document, kind=hint)
    assert issubclass(hint, StrEnum), hint  # noqa: S101 - a field of a class of ours
    return Type(lambda table, key: table.word(key, hint), str)


def _records(kind: Callable[..., object]) -> Type:
    return Type(
        lambda table, key: tuple(record(kind, each) for each in table.tables(key)),
        lambda values: [*map(document, values)],
    )


def _list(item: Type) -> Type:
    def read(table: Fields, key: str) -> tuple[object, ...]:
        return tuple(item.read(each, key) for each in table.split(key))

    return Type(read, lambda values: [*map(item.write, values)], f"list({item.hcl})")


def _table(name: Type, item: Type) -> Type:
    def read(table: Fields, key: str) -> Mapping[Any, object]:
        inner = table.table(key)
        return {name.read(Fields({each: each}, inner.where), each): item.read(inner, each) for each in inner}

    return Type(read, lambda values: {name.write(key): item.write(value) for key, value in values.items()}, item.hcl)
