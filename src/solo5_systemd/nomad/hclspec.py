"""Nomad's schema language: how the HCL of a configuration becomes a value (hashicorp/hcl2, hcldec).

Three rules of the agent are kept by these builders, since breaking them fails every task or the agent itself:
a type is never empty, a block always has something nested, and nothing is of type `any`.
"""

from collections.abc import Mapping

from solo5_systemd.nomad.proto.hcl_spec_pb2 import Attr, Block, BlockAttrs, BlockMap, Object, Spec

TEXT = "string"
TEXTS = "list(string)"
NUMBER = "number"
BOOLEAN = "bool"


def attribute(name: str, type_: str, *, required: bool = False) -> Spec:
    return Spec(Attr=Attr(name=name, type=type_, required=required))


def assignments(name: str) -> Spec:
    """A block of free keys with text values, `name { a = "b" }`; unlike an attribute it may be written either way."""
    return Spec(block_attrs=BlockAttrs(name=name, type=TEXT))


def block(name: str, nested: Spec) -> Spec:
    """At most one block; null where it is absent."""
    return Spec(block_value=Block(name=name, nested=nested))


def labelled(name: str, label: str, nested: Spec) -> Spec:
    """Any number of blocks `name "LABEL" { … }`, by their labels."""
    return Spec(block_map=BlockMap(name=name, labels=[label], nested=nested))


def table(fields: Mapping[str, Spec]) -> Spec:
    return Spec(object=Object(attributes=fields))
