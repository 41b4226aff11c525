"""The plugin configuration, `plugin "solo5" { config { … } }`: each option defined once, with its schema and checks.

`make tables` writes the options to docs/nomad-plugin.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from solo5_systemd.base.decode import Fields
from solo5_systemd.base.errors import SettingsError, located
from solo5_systemd.base.names import Target, UnitKind
from solo5_systemd.nomad.option_values import Logging, Pairs, assignments, duration, schema_of, unpack
from solo5_systemd.settings.network_keys import NetworkKeys, network_keys
from solo5_systemd.settings.records import Type, record, setting
from solo5_systemd.settings.solo5_toml import IMAGE_STORE_MB, LOG_NAMESPACE, TENDER_PATHS, overriding, parse_settings
from solo5_systemd.task.policy import Policy, each_fits
from solo5_systemd.task.properties import SETTABLE, parse_property

NAME = "solo5"
"""The value of a job's `driver`. Also the plugin's file name, by which Nomad looks up its configuration."""

WHERE = f"plugin.{NAME}.config"

TIGHTENING = (
    "LimitAS",
    "LimitCORE",
    "LimitDATA",
    "LimitFSIZE",
    "LimitNOFILE",
    "LimitNPROC",
    "LimitSTACK",
    "MemoryHigh",
    "RuntimeMaxSec",
    "SystemCallFilter",
    "TasksMax",
)
"""The default of `allowed_properties`: limits that cannot harm other tasks.

Limits of devices are not among them: a device has many paths, so that a job could evade the operator's limit."""


def _properties(fields: Fields, key: str) -> Pairs:
    pairs = assignments(fields, key)
    for name, value in pairs:  # a wrong default would otherwise fail every start
        with located(fields.path(key), SettingsError):
            parse_property(name, value)
    return pairs


def _networks(fields: Fields, key: str) -> dict[str, dict[str, object]]:
    """Return the networks, checked like the tables of a settings file, to which they are written."""
    tables, keys = fields.table(key), network_keys()
    plain: dict[str, dict[str, object]] = {}
    for name in tables:
        table = tables.table(name)
        table.allow(*keys)
        plain[name] = {each: keys[each].type.write(keys[each].type.read(table, each)) for each in table}
    parse_settings({"network": plain}, WHERE)
    return plain


DIRECTORIES = Annotated[
    tuple[str, ...],
    each_fits(lambda path: path.startswith("/"), 'absolute directories, such as {key} = ["/srv/solo5"]'),
]
PROPERTY_NAMES = each_fits(SETTABLE.__contains__, f"some of {', '.join(sorted(SETTABLE))}")


# fmt: off
@dataclass(frozen=True, kw_only=True)
class Defaults:
    """The `defaults` block: values of task options that a job does not set."""

    tender: Target | None = setting("`hvt` or `spt`; see `tender` of a task.", default=None, shown="the image's")
    unit: UnitKind = setting("`service` or `scope`.", default=UnitKind.SERVICE)
    logging: Logging = setting("`nomad` or `journald`.", default=Logging.NOMAD)
    quiet: bool = setting("As the option of a task.", default=False)
    cpu_hard_limit: bool = setting("As the option of a task.", default=False)
    properties: Annotated[Pairs, Type(_properties, dict, is_map=True)] = setting(
        "Unit properties, `properties { TasksMax = \"32\" }`, whether or not jobs may set them.", default=()
    )


@dataclass(frozen=True, kw_only=True)
class ForgottenTasksConfig:
    """The `dangling_tasks` block, after `dangling_containers` of Nomad's docker driver. Times are in seconds."""

    enabled: bool = setting("`false`: forgotten tasks are not stopped.", default=True)
    period: Annotated[float, duration(1.0)] = setting("The interval of checks, at least 1s.", default=60.0)
    creation_grace: Annotated[float, duration(10.0)] = setting(
        "Grace period before a unit that the agent does not have is stopped, at least 10s.", default=300.0
    )
    dry_run: bool = setting("`true`: forgotten tasks are logged only.", default=False)


@dataclass(frozen=True, kw_only=True)
class GcConfig:
    """The `gc` block. Times are in seconds."""

    enabled: bool = setting("`false`: unused images are not removed.", default=True)
    interval: Annotated[float, duration(1.0)] = setting(
        "The interval of the removal of unused images, at least 1s.", default=3600.0
    )
    image_age: Annotated[float, duration(60.0)] = setting(
        "How long an image has been unused when it is removed, at least 1m.", default=86400.0
    )
    tasks: bool = setting(
        "`false`: the last run of each task stays visible in `solo5ctl ps --all`, `inspect` and `logs` after Nomad has "
        "destroyed the task. `solo5ctl rm NAME` removes it; so does the next collection after Nomad has removed the "
        "allocation.", default=True,
    )
    dangling_tasks: ForgottenTasksConfig = setting(
        "Stop forgotten tasks, units that this agent started and no longer has; see [recovery](recovery.md#orphans).",
        default=ForgottenTasksConfig(),
    )


@dataclass(frozen=True, kw_only=True)
class PluginConfig(Policy):
    """The plugin configuration. Paths, sizes and names that it does not set are those of /etc/solo5."""

    enabled: bool = setting("`false`: the driver is undetected on this node.", default=True)
    image_paths: DIRECTORIES = setting("Directories from which jobs may use images.", default=())
    block_paths: DIRECTORIES = setting(
        "Directories from which jobs may use files and devices as disks, in addition to those of their own allocation.",
        default=(),
    )
    tender_paths: TENDER_PATHS | None = overriding("tender_paths")
    image_store_mb: IMAGE_STORE_MB | None = overriding("image_store_mb")
    log_namespace: LOG_NAMESPACE | None = overriding("log_namespace")
    network: Annotated[Mapping[str, Mapping[str, object]], Type(_networks, dict, kind=NetworkKeys, is_map=True)] = (
        setting("Defines a network of this node: [below](#networks). A key in /etc/solo5 takes precedence.", default={})
    )
    stats_interval: Annotated[float, duration(0.1)] = setting(
        "The least interval between two samples of a task, even if Nomad collects more often; at least 100ms. The "
        "first two may be half as far apart.", default=1.0,
    )
    disable_log_collection: bool = setting(
        "`true`: Nomad collects no logs, and no logmon process runs; consoles are in the journal only.", default=False
    )
    allowed_properties: Annotated[tuple[str, ...], PROPERTY_NAMES] = setting(
        "Unit properties that jobs may set.", default=TIGHTENING, shown="[these](#unit-properties)"
    )
    defaults: Defaults = setting("Task options that a job does not set: [below](#defaults).", default=Defaults())
    gc: GcConfig = setting("Removal of what is no longer used: [below](#gc).", default=GcConfig())
# fmt: on


PLUGIN = schema_of(PluginConfig)
"""The schema of `plugin "solo5" { config { … } }`."""

REMOVE_NOTHING = PluginConfig(
    gc=GcConfig(enabled=False, tasks=False, dangling_tasks=ForgottenTasksConfig(enabled=False))
)
"""In force while the configuration cannot be read: whether the operator has disabled a removal is unknown."""


def plugin_config(data: bytes) -> PluginConfig:
    """Decode the plugin configuration; raises SettingsError, also for a default that no task may have."""
    fields = unpack(data, WHERE, SettingsError)
    config = record(PluginConfig, fields)
    for key, allowed in (("unit", config.allowed_units), ("tender", config.allowed_tenders)):
        value = getattr(config.defaults, key)
        if value is not None and allowed and value not in allowed:
            raise fields.table("defaults").wrong(key, str(value), f"one of allowed_{key}s ({', '.join(allowed)})")
    return config
