"""The schemas of the plugin configuration and of the task options, and the values that their texts stand for.

The schemas are in Nomad's schema language (hashicorp/hcl2, hcldec). The values are decoded in `config.plugin` and
`config.task`, which take the names of the options from here, and documented in docs/nomad-job.md and
docs/nomad-plugin.md. The builders keep three rules of the agent; breaking one fails every task, or the agent itself:
a type is never empty, a block always has something nested, and nothing has the type `any`.
"""

import re
from collections.abc import Collection
from enum import StrEnum
from typing import TypeAlias, TypeVar

from solo5_systemd.base.decode import Fields
from solo5_systemd.nomad.proto.hcl_spec_pb2 import Attr, Block, BlockAttrs, BlockMap, Object, Spec
from solo5_systemd.settings.model import NETWORK as NETWORK_TYPES
from solo5_systemd.storage.io_limits import KEYS
from solo5_systemd.task.table import SETTINGS

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


NETWORK = table(*(attribute(name, kind) for name, kind in NETWORK_TYPES.items()))

DEFAULTS = table(
    attribute("tender", TEXT),
    attribute("unit", TEXT),
    attribute("logging", TEXT),
    attribute("quiet", BOOLEAN),
    attribute("cpu_hard_limit", BOOLEAN),
    assignments("properties"),
)

IO = table(*(attribute(name, TEXT) for name in KEYS))

CEILINGS = table(
    *(attribute(name, NUMBER) for name in ("memory_mb", "nics", "blocks", "ports", "image_mb", "disk_mb")),
    block("io", IO),
)

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
    attribute("allowed_disks", TEXTS),
    block("defaults", DEFAULTS),
    block("ceilings", CEILINGS),
    block("gc", GC),
    attribute("allow_missing_controllers", BOOLEAN),
)
"""The schema of `plugin "solo5" { config { … } }`."""

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
    block("io", IO),
)

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
)
"""The schema of `task { config { … } }`."""


E = TypeVar("E", bound=StrEnum)


class Logging(StrEnum):
    """The console's destination besides the journal: Nomad's log files, or none."""

    NOMAD = "nomad"
    JOURNALD = "journald"


def choice(fields: Fields, key: str, words: type[E]) -> E | None:
    """Return the value of an enumerated option; None if it is not set.

    Raises:
        Solo5Error: it is not one of the words.
    """
    if not fields.has(key):
        return None
    return _word(fields, key, fields.text(key), words, f'{key} = "{next(iter(words))}"')


def choices(fields: Fields, key: str, words: type[E]) -> tuple[E, ...]:
    """Return the values of an option that is a list of enumerated words; empty if it is not set.

    Raises:
        Solo5Error: one of them is not one of the words.
    """
    such_as = f'{key} = ["{next(iter(words))}"]'
    return tuple(_word(fields, key, text, words, such_as) for text in fields.texts(key, ()))


def _word(fields: Fields, key: str, text: str, words: type[E], such_as: str) -> E:
    try:
        return words(text)
    except ValueError as error:
        known = ", ".join(f'"{word}"' for word in words)
        raise fields.wrong(key, text, f"one of {known}, such as {such_as}") from error


_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION_MAX = 100
"""Characters of a duration."""

_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h)", re.ASCII)


def seconds(text: str) -> float:
    """Return a Go duration in seconds, such as `30s`, `1h30m`, `250ms` (package time, ParseDuration).

    Raises:
        ValueError: it is malformed or negative; the message has the expected form.
    """
    # The bound: the search is quadratic in a run of digits without a unit.
    parts = list(_PART.finditer(text)) if len(text) <= _DURATION_MAX else []
    if not parts or "".join(part[0] for part in parts) != text:
        raise ValueError(f"{text!r} is not a duration: expected a number and a unit, such as 30s, 5m or 24h")
    return sum(float(part[1]) * _UNITS[part[2]] for part in parts)
