"""Options in Nomad's languages (hashicorp/hcl2, hcldec): the schema of records, and values in msgpack.

The builders of a schema keep three rules of the agent; breaking one fails every task, or the agent itself: a type is
never empty, a block always has something nested, and nothing has the type `any`.

Every key of a schema is present, with nil if it is not set. A whole number is an int, however the job writes it; any
other is a float or a text. An option of two types, such as `ipv6`, is a text.
"""

from collections.abc import Mapping
from enum import StrEnum
from math import inf

from solo5_systemd.base.decode import Fields
from solo5_systemd.base.dependencies import dependency_error
from solo5_systemd.base.errors import InvalidRequestError, Solo5Error
from solo5_systemd.nomad.proto.hcl_spec_pb2 import Attr, Block, BlockAttrs, BlockMap, Object, Spec
from solo5_systemd.settings.records import Type, entries
from solo5_systemd.task.quantities import seconds, value_of

CONFIG_MAX_BYTES = 1 << 20
"""Bytes of a configuration: half of Linux's limit for a command line. Decoding blocks the event loop."""

LENGTH_MAX = 8192
"""Entries of a list or block. A tender takes 8191 bytes of arguments, and no other list may be as long."""

Pairs = tuple[tuple[str, str], ...]


class Logging(StrEnum):
    """The console's destination besides the journal: Nomad's log files, or none."""

    NOMAD = "nomad"
    JOURNALD = "journald"


class Options(Fields):
    """The options of a block, as the agent encodes them."""

    refuses_unknown_keys = True


def unpack(data: bytes, where: str, error: type[Solo5Error] = InvalidRequestError) -> Options:
    """Return the top level of a configuration, without keys that are nil.

    Raises:
        Solo5Error: (of class `error`) it is not a msgpack map, too long or too deep, or has a list that is too long.
        DependencyError: msgpack is missing.
    """
    if len(data) > CONFIG_MAX_BYTES:
        raise error(f"{where} is {len(data)} bytes long: expected at most {CONFIG_MAX_BYTES}.")
    try:
        import msgpack
    except ImportError as missing:  # without it the plugin answers, with this as the driver's health
        raise dependency_error(missing) from missing
    try:
        limits = {"max_array_len": LENGTH_MAX, "max_map_len": LENGTH_MAX}
        document = msgpack.unpackb(data, raw=False, strict_map_key=True, **limits) if data else {}
        return Options(_without_nil(document), where, error=error)
    except (ValueError, RecursionError, msgpack.exceptions.UnpackException) as malformed:
        why = str(malformed).rstrip(".") or type(malformed).__name__
        raise error(f"{where} cannot be decoded from msgpack: {why}.") from malformed


def _without_nil(value: object) -> object:
    """Return a value without nil members: HCL's null is the same as an absent key."""
    if isinstance(value, Mapping):
        return {key: _without_nil(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nil(item) for item in value]
    return value


def assignments(fields: Fields, key: str) -> Pairs:
    """Return the pairs of a block with any keys and text values; raises Solo5Error for others."""
    table = fields.table(key)
    return tuple((name, table.text(name)) for name in table)


def duration(least: float = 0.0, most: float = inf) -> Type:
    """Return the type of durations from `least` to `most` seconds."""
    expected = f"at least {least:g} seconds" if most == inf else f"from {least:g}s to {most:g}s"

    def read(fields: Fields, key: str) -> float:
        value = fields.parsed(key, lambda given: value_of(seconds, given, "duration"))
        if not least <= value <= most:
            raise fields.wrong(key, fields.text(key), expected)
        return value

    def write(value: float) -> str:
        length, unit = next((each for each in ((3600, "h"), (60, "m")) if value % each[0] == 0), (1, "s"))
        return f"{value / length:g}{unit}"

    return Type(read, write)


def schema_of(kind: object, others: Mapping[str, Spec] | None = None) -> Spec:
    """Return the spec of a class of records (`settings.records`), with an option for each field, and of others."""
    own = {each.name: _option(each.name, each.type) for each in entries(kind)}
    return Spec(object=Object(attributes={**(others or {}), **own}))


def _option(name: str, type_: Type) -> Spec:
    """Return the spec of an attribute; of a block, whose value is null if it is absent; or of any number of these."""
    if type_.kind is None and type_.is_map:  # any keys, and text values: `name { a = "b" }` or `name = { a = "b" }`
        return Spec(block_attrs=BlockAttrs(name=name, type="string"))
    if type_.kind is None:
        return Spec(Attr=Attr(name=name, type=type_.hcl))
    if type_.is_map:  # blocks `name "LABEL" { … }`, by label
        return Spec(block_map=BlockMap(name=name, labels=["name"], nested=schema_of(type_.kind)))
    return Spec(block_value=Block(name=name, nested=schema_of(type_.kind)))
