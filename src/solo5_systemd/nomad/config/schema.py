"""Schemas in Nomad's schema language (hashicorp/hcl2, hcldec): that of records, and that of the task options.

The task options are decoded in `config.task`, which takes their names from here, and documented in docs/nomad-job.md.
The builders keep three rules of the agent; breaking one fails every task, or the agent itself: a type is never empty, a
block always has something nested, and nothing has the type `any`.
"""

from collections.abc import Collection
from typing import TypeAlias

from solo5_systemd.nomad.proto.hcl_spec_pb2 import Attr, Block, BlockAttrs, BlockMap, Object, Spec
from solo5_systemd.settings.records import Type, entries
from solo5_systemd.storage.io_limits import IoLimits
from solo5_systemd.task.option_table import SETTINGS

Named: TypeAlias = tuple[str, Spec]
"""The name of an option, and its spec."""

TEXT = "string"
TEXTS = "list(string)"
NUMBER = "number"
BOOLEAN = "bool"


def attribute(name: str, type_: str, *, required: bool = False) -> Named:
    """Return the spec of an attribute, `name = value`."""
    return name, Spec(Attr=Attr(name=name, type=type_, required=required))


def assignments(name: str) -> Named:
    """Return the spec of a block with any keys and text values. HCL: `name { a = "b" }` or `name = { a = "b" }`."""
    return name, Spec(block_attrs=BlockAttrs(name=name, type=TEXT))


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


def table_of(kind: object) -> Spec:
    """Return the spec of a class of records (`settings.records`), with an option for each field."""
    return table(*(_option(each.name, each.type) for each in entries(kind)))


def _option(name: str, type_: Type) -> Named:
    if type_.kind is None:
        return assignments(name) if type_.is_map else attribute(name, type_.hcl)
    return (labelled if type_.is_map else block)(name, table_of(type_.kind))


NIC = table(
    attribute("network", TEXT),
    attribute("ip", TEXT),
    attribute("ip6", TEXT),
    attribute("mac", TEXT),
    attribute("ports", TEXTS),
    attribute("egress", TEXTS),
    attribute("rate", TEXTS),
    attribute("routes", TEXTS),
)

DISK = table(
    attribute("source", TEXT),
    attribute("disk", TEXT),
    attribute("files", TEXTS),
    attribute("format", TEXT),
    attribute("strip", BOOLEAN),
    attribute("volume", TEXT),
    attribute("file", TEXT),
    attribute("size", TEXT),
    attribute("create", BOOLEAN),
    attribute("ephemeral", BOOLEAN),
    attribute("read_only", BOOLEAN),
    attribute("sector_size", NUMBER),
    block("io", table_of(IoLimits)),
)

IDLE = table(attribute("after", TEXT), attribute("action", TEXT))

READY = table(*(attribute(name, TEXT) for name in ("console", "tcp", "udp", "deadline", "interval", "on_loss")))

SHARED = [setting for setting in SETTINGS.values() if setting.job]
"""The settings that a job has with the same values as `solo5ctl run`."""

TASK = table(
    *(
        attribute(setting.job, TEXTS if setting.is_list else TEXT, required=setting.name == "Image")
        for setting in SHARED
    ),
    labelled("nic", NIC),
    attribute("ports", TEXTS),
    labelled("block", DISK),
    attribute("unit", TEXT),
    attribute("logging", TEXT),
    attribute("quiet", BOOLEAN),
    attribute("cpu_hard_limit", BOOLEAN),
    assignments("properties"),
    assignments("labels"),
    block("ready", READY),
    block("idle", IDLE),
)
"""The schema of `task { config { … } }`."""
