"""The schemas of the plugin configuration and of the task options, in Nomad's schema language (hashicorp/hcl2, hcldec).

The values are decoded in `config.plugin` and `config.task`, which take the names of the options from here, and
documented in docs/nomad.md. The builders keep three rules of the agent; breaking one fails every task, or the agent
itself: a type is never empty, a block always has something nested, and nothing has the type `any`.
"""

from collections.abc import Collection
from typing import TypeAlias

from solo5_systemd.nomad.proto.hcl_spec_pb2 import Attr, Block, BlockAttrs, BlockMap, Object, Spec

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


NETWORK = table(
    attribute("ipv4", TEXT),
    attribute("gateway4", TEXT),
    attribute("bridge", TEXT),
    attribute("mtu", NUMBER),
    attribute("masquerade", BOOLEAN),
    attribute("routed", BOOLEAN),
    attribute("reach", TEXTS),
    attribute("isolated", BOOLEAN),
    attribute("host", TEXTS),
    attribute("metadata", BOOLEAN),
    attribute("connections", NUMBER),
    attribute("fragments", BOOLEAN),
)

DEFAULTS = table(
    attribute("tender", TEXT),
    attribute("unit", TEXT),
    attribute("logging", TEXT),
    attribute("quiet", BOOLEAN),
    attribute("cpu_hard_limit", BOOLEAN),
    assignments("properties"),
)

CEILINGS = table(*(attribute(name, NUMBER) for name in ("memory_mb", "nics", "blocks", "ports", "image_mb")))

FORGOTTEN_TASKS = table(
    attribute("enabled", BOOLEAN),
    attribute("period", TEXT),
    attribute("creation_grace", TEXT),
    attribute("dry_run", BOOLEAN),
)

GC = table(
    attribute("enabled", BOOLEAN),
    attribute("interval", TEXT),
    attribute("image_age", TEXT),
    attribute("tasks", BOOLEAN),
    block("dangling_tasks", FORGOTTEN_TASKS),
)

PLUGIN = table(
    attribute("enabled", BOOLEAN),
    attribute("image_paths", TEXTS),
    attribute("block_paths", TEXTS),
    attribute("tender_paths", TEXTS),
    attribute("image_store_mb", NUMBER),
    attribute("log_namespace", TEXT),
    attribute("networks", TEXTS),
    labelled("network", NETWORK),
    attribute("stats_interval", TEXT),
    attribute("disable_log_collection", BOOLEAN),
    attribute("allowed_properties", TEXTS),
    attribute("allowed_units", TEXTS),
    attribute("allowed_tenders", TEXTS),
    block("defaults", DEFAULTS),
    block("ceilings", CEILINGS),
    block("gc", GC),
    attribute("allow_missing_controllers", BOOLEAN),
)
"""The schema of `plugin "solo5" { config { … } }`."""

NIC = table(
    attribute("network", TEXT),
    attribute("ip", TEXT),
    attribute("mac", TEXT),
    attribute("ports", TEXTS),
)

DISK = table(attribute("source", TEXT, required=True), attribute("sector_size", NUMBER))

READY = table(*(attribute(name, TEXT) for name in ("console", "tcp", "udp", "deadline", "interval", "on_loss")))

TASK = table(
    attribute("unikernel", TEXT, required=True),
    attribute("args", TEXTS),
    labelled("nic", NIC),
    attribute("ports", TEXTS),
    labelled("block", DISK),
    attribute("tender", TEXT),
    attribute("unit", TEXT),
    attribute("logging", TEXT),
    attribute("quiet", BOOLEAN),
    attribute("cpu_hard_limit", BOOLEAN),
    assignments("properties"),
    assignments("labels"),
    block("ready", READY),
)
"""The schema of `task { config { … } }`."""
