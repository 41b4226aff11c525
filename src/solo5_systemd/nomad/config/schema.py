"""Schemas in Nomad's schema language (hashicorp/hcl2, hcldec), of records.

The builders keep three rules of the agent; breaking one fails every task, or the agent itself: a type is never empty, a
block always has something nested, and nothing has the type `any`.
"""

from collections.abc import Collection, Mapping

from solo5_systemd.nomad.proto.hcl_spec_pb2 import Attr, Block, BlockAttrs, BlockMap, Object, Spec
from solo5_systemd.settings.records import Type, entries


def attribute(name: str, type_: str, *, required: bool = False) -> Spec:
    """Return the spec of an attribute, `name = value`."""
    return Spec(Attr=Attr(name=name, type=type_, required=required))


def names(schema: Spec) -> Collection[str]:
    """Return the names of the options of a table."""
    return schema.object.attributes


def table_of(kind: object, others: Mapping[str, Spec] | None = None) -> Spec:
    """Return the spec of a class of records (`settings.records`), with an option for each field, and of others."""
    own = {each.name: _option(each.name, each.type) for each in entries(kind)}
    return Spec(object=Object(attributes={**(others or {}), **own}))


def _option(name: str, type_: Type) -> Spec:
    """Return the spec of an attribute; of a block, whose value is null if it is absent; or of any number of these."""
    if type_.kind is None and type_.is_map:  # any keys, and text values: `name { a = "b" }` or `name = { a = "b" }`
        return Spec(block_attrs=BlockAttrs(name=name, type="string"))
    if type_.kind is None:
        return attribute(name, type_.hcl)
    if type_.is_map:  # blocks `name "LABEL" { … }`, by label
        return Spec(block_map=BlockMap(name=name, labels=["name"], nested=table_of(type_.kind)))
    return Spec(block_value=Block(name=name, nested=table_of(type_.kind)))
