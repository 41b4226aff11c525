"""Schemas in Nomad's schema language (hashicorp/hcl2, hcldec), of records.

The builders keep three rules of the agent; breaking one fails every task, or the agent itself: a type is never empty, a
block always has something nested, and nothing has the type `any`.
"""

from collections.abc import Collection
from typing import TypeAlias

from solo5_systemd.nomad.proto.hcl_spec_pb2 import Attr, Block, BlockAttrs, BlockMap, Object, Spec
from solo5_systemd.settings.records import Type, entries

Named: TypeAlias = tuple[str, Spec]
"""The name of an option, and its spec."""


def attribute(name: str, type_: str, *, required: bool = False) -> Named:
    """Return the spec of an attribute, `name = value`."""
    return name, Spec(Attr=Attr(name=name, type=type_, required=required))


def assignments(name: str) -> Named:
    """Return the spec of a block with any keys and text values. HCL: `name { a = "b" }` or `name = { a = "b" }`."""
    return name, Spec(block_attrs=BlockAttrs(name=name, type="string"))


def block(name: str, nested: Spec) -> Named:
    """Return the spec of at most one block; its value is null if it is absent."""
    return name, Spec(block_value=Block(name=name, nested=nested))


def labelled(name: str, nested: Spec) -> Named:
    """Return the spec of any number of blocks `name "LABEL" { … }`, by label."""
    return name, Spec(block_map=BlockMap(name=name, labels=["name"], nested=nested))


def table(*options: Named) -> Spec:
    """Return the spec of an object with these options."""
    return Spec(object=Object(attributes=dict(options)))


def names(schema: Spec) -> Collection[str]:
    """Return the names of the options of a table."""
    return schema.object.attributes


def table_of(kind: object, *others: Named) -> Spec:
    """Return the spec of a class of records (`settings.records`), with an option for each field, and of others."""
    return table(*others, *(_option(each.name, each.type) for each in entries(kind)))


def _option(name: str, type_: Type) -> Named:
    if type_.kind is None:
        return assignments(name) if type_.is_map else attribute(name, type_.hcl)
    return (labelled if type_.is_map else block)(name, table_of(type_.kind))
