"""What an operator may write in `plugin "solo5" { config { … } }`, and a job in `task { config { … } }`.

`config` and `options` read what comes of it: a key stands here and there, and in docs/nomad.md.
"""

from solo5_systemd.nomad.hclspec import (
    BOOLEAN,
    NUMBER,
    TEXT,
    TEXTS,
    assignments,
    attribute,
    block,
    labelled,
    table,
)
from solo5_systemd.nomad.proto.hcl_spec_pb2 import Spec


def plugin_schema() -> Spec:
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
            "dangling_tasks": block("dangling_tasks", _dangling()),
        }
    )


def _dangling() -> Spec:
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
