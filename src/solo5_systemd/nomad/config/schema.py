"""The schemas of the plugin configuration and of the task options, in Nomad's schema language (hashicorp/hcl2, hcldec).

The values are decoded in `config.plugin` and `config.task`, and documented in docs/nomad.md. The builders keep three
rules of the agent; breaking one fails every task, or the agent itself: a type is never empty, a block always has
something nested, and nothing has the type `any`.
"""

from collections.abc import Mapping

from solo5_systemd.nomad.proto.hcl_spec_pb2 import Attr, Block, BlockAttrs, BlockMap, Object, Spec

TEXT = "string"
TEXTS = "list(string)"
NUMBER = "number"
BOOLEAN = "bool"


def attribute(name: str, type_: str, *, required: bool = False) -> Spec:
    """Return the spec of an attribute, `name = value`."""
    return Spec(Attr=Attr(name=name, type=type_, required=required))


def assignments(name: str) -> Spec:
    """Return the spec of a block with any keys and text values. HCL: `name { a = "b" }` or `name = { a = "b" }`."""
    return Spec(block_attrs=BlockAttrs(name=name, type=TEXT))


def block(name: str, nested: Spec) -> Spec:
    """Return the spec of at most one block; its value is null if it is absent."""
    return Spec(block_value=Block(name=name, nested=nested))


def labelled(name: str, label: str, nested: Spec) -> Spec:
    """Return the spec of any number of blocks `name "LABEL" { … }`, by label."""
    return Spec(block_map=BlockMap(name=name, labels=[label], nested=nested))


def table(fields: Mapping[str, Spec]) -> Spec:
    """Return the spec of an object with these fields."""
    return Spec(object=Object(attributes=fields))


def plugin_schema() -> Spec:
    """Return the schema of `plugin "solo5" { config { … } }`."""
    return table(
        {
            "enabled": attribute("enabled", BOOLEAN),
            "image_paths": attribute("image_paths", TEXTS),
            "block_paths": attribute("block_paths", TEXTS),
            "tender_paths": attribute("tender_paths", TEXTS),
            "image_store_mb": attribute("image_store_mb", NUMBER),
            "log_namespace": attribute("log_namespace", TEXT),
            "networks": attribute("networks", TEXTS),
            "network": labelled("network", "name", _network()),
            "stats_interval": attribute("stats_interval", TEXT),
            "disable_log_collection": attribute("disable_log_collection", BOOLEAN),
            "allowed_properties": attribute("allowed_properties", TEXTS),
            "allowed_units": attribute("allowed_units", TEXTS),
            "allowed_tenders": attribute("allowed_tenders", TEXTS),
            "defaults": block("defaults", _defaults()),
            "ceilings": block("ceilings", _ceilings()),
            "gc": block("gc", _gc()),
            "allow_missing_controllers": attribute("allow_missing_controllers", BOOLEAN),
        }
    )


def task_schema() -> Spec:
    """Return the schema of `task { config { … } }`."""
    return table(
        {
            "unikernel": attribute("unikernel", TEXT, required=True),
            "args": attribute("args", TEXTS),
            "nic": labelled("nic", "name", _nic()),
            "ports": attribute("ports", TEXTS),
            "block": labelled("block", "name", _disk()),
            "tender": attribute("tender", TEXT),
            "unit": attribute("unit", TEXT),
            "logging": attribute("logging", TEXT),
            "quiet": attribute("quiet", BOOLEAN),
            "cpu_hard_limit": attribute("cpu_hard_limit", BOOLEAN),
            "properties": assignments("properties"),
            "labels": assignments("labels"),
            "ready": block("ready", _ready()),
        }
    )


def _network() -> Spec:
    return table(
        {
            "ipv4": attribute("ipv4", TEXT),
            "gateway4": attribute("gateway4", TEXT),
            "bridge": attribute("bridge", TEXT),
            "mtu": attribute("mtu", NUMBER),
            "masquerade": attribute("masquerade", BOOLEAN),
            "routed": attribute("routed", BOOLEAN),
            "reach": attribute("reach", TEXTS),
            "isolated": attribute("isolated", BOOLEAN),
            "host": attribute("host", TEXTS),
            "metadata": attribute("metadata", BOOLEAN),
            "connections": attribute("connections", NUMBER),
            "fragments": attribute("fragments", BOOLEAN),
        }
    )


def _defaults() -> Spec:
    return table(
        {
            "tender": attribute("tender", TEXT),
            "unit": attribute("unit", TEXT),
            "logging": attribute("logging", TEXT),
            "quiet": attribute("quiet", BOOLEAN),
            "cpu_hard_limit": attribute("cpu_hard_limit", BOOLEAN),
            "properties": assignments("properties"),
        }
    )


def _ceilings() -> Spec:
    return table({key: attribute(key, NUMBER) for key in ("memory_mb", "nics", "blocks", "ports", "image_mb")})


def _gc() -> Spec:
    return table(
        {
            "enabled": attribute("enabled", BOOLEAN),
            "interval": attribute("interval", TEXT),
            "image_age": attribute("image_age", TEXT),
            "tasks": attribute("tasks", BOOLEAN),
            "dangling_tasks": block("dangling_tasks", _forgotten_tasks()),
        }
    )


def _forgotten_tasks() -> Spec:
    return table(
        {
            "enabled": attribute("enabled", BOOLEAN),
            "period": attribute("period", TEXT),
            "creation_grace": attribute("creation_grace", TEXT),
            "dry_run": attribute("dry_run", BOOLEAN),
        }
    )


def _nic() -> Spec:
    return table(
        {
            "network": attribute("network", TEXT),
            "ip": attribute("ip", TEXT),
            "mac": attribute("mac", TEXT),
            "ports": attribute("ports", TEXTS),
        }
    )


def _ready() -> Spec:
    return table({key: attribute(key, TEXT) for key in ("console", "tcp", "udp", "deadline", "interval", "on_loss")})


def _disk() -> Spec:
    return table({"source": attribute("source", TEXT, required=True), "sector_size": attribute("sector_size", NUMBER)})
