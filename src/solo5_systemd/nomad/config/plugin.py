"""The plugin configuration, `plugin "solo5" { config { … } }`, decoded and checked."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from solo5_systemd.base.decode import Fields
from solo5_systemd.base.errors import InvalidRequestError, SettingsError
from solo5_systemd.base.names import NetworkName, Target, UnitKind, log_namespace, network_name
from solo5_systemd.nomad.config import schema
from solo5_systemd.nomad.config.schema import Logging, choice, choices, seconds
from solo5_systemd.nomad.config.task import assignments, io_block, unpack
from solo5_systemd.settings.model import NETWORK, parse_settings
from solo5_systemd.settings.records import INTEGER_MAX
from solo5_systemd.storage.io_limits import NO_IO_LIMITS, IoLimits
from solo5_systemd.task.properties import SETTABLE, parse_property

WHERE = "plugin.solo5.config"

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


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """The `defaults` block: values of task options that a job does not set."""

    tender: Target | None = None
    unit: UnitKind = UnitKind.SERVICE
    logging: Logging = Logging.NOMAD
    quiet: bool = False
    cpu_hard_limit: bool = False
    properties: tuple[tuple[str, str], ...] = ()


IMAGE_MB = 256
"""The default ceiling of an image's size. Unikernels have a few MiB, the largest some fifty."""


DISK_MB = 1024
"""The default ceiling of the size of a disk that a job has created."""


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """The `ceilings` block: the most that a job may ask for; None: no ceiling."""

    memory_mb: int | None = None
    nics: int | None = None
    blocks: int | None = None
    ports: int | None = None
    image_mb: int = IMAGE_MB
    disk_mb: int = DISK_MB
    io: IoLimits = NO_IO_LIMITS


@dataclass(frozen=True, kw_only=True)
class ForgottenTasksConfig:
    """The `dangling_tasks` block, after `dangling_containers` of Nomad's docker driver. Times are in seconds.

    Attributes:
        enabled: stop forgotten tasks.
        period: between two searches.
        creation_grace: how long a task must have been forgotten before it is stopped.
        dry_run: log them only.
    """

    enabled: bool = True
    period: float = 60.0
    creation_grace: float = 300.0
    dry_run: bool = False


@dataclass(frozen=True, kw_only=True)
class GcConfig:
    """The `gc` block. Times are in seconds.

    Attributes:
        enabled: remove unused images.
        interval: between two garbage collections.
        image_age: how long an image must have been unused before it is removed.
        tasks: True: DestroyTask removes ended services; False: they are retained until `solo5ctl rm` or `gc`.
        forgotten_tasks: the `dangling_tasks` block.
    """

    enabled: bool = True
    interval: float = 3600.0
    image_age: float = 86400.0
    tasks: bool = True
    forgotten_tasks: ForgottenTasksConfig = field(default_factory=ForgottenTasksConfig)


@dataclass(frozen=True, kw_only=True)
class PluginConfig:
    """The plugin configuration.

    Attributes:
        enabled: False: the driver is undetected.
        image_paths: directories that may have a job's image, besides the allocation's.
        block_paths: the same for the files and devices of disks.
        tender_paths: directories that may have tenders; empty: those of /etc/solo5.
        image_store_mb: the most that the image store may take of the disk; None: as in /etc/solo5.
        log_namespace: the journal namespace of consoles; empty: that of /etc/solo5.
        networks: the networks that a job may join; empty: any.
        network_settings: the networks that are defined here, as tables of /etc/solo5/*.toml.
        stats_interval: the least seconds between two samples of a task.
        disable_log_collection: forward no console to Nomad's log files.
        allowed_properties: unit properties that a job may set.
        allowed_units: unit types that a job may choose; a scope has no sandbox by systemd.
        allowed_tenders: tenders that a job may choose; empty: any.
        allowed_disks: patterns of the named disks that a job may use; empty: none.
        defaults: the `defaults` block.
        ceilings: the `ceilings` block.
        gc: the `gc` block.
        allow_missing_controllers: healthy even if cgroup v2 lacks a controller, and limits have no effect.
    """

    enabled: bool = True
    image_paths: tuple[str, ...] = ()
    block_paths: tuple[str, ...] = ()
    tender_paths: tuple[str, ...] = ()
    image_store_mb: int | None = None
    log_namespace: str = ""
    networks: tuple[NetworkName, ...] = ()
    network_settings: dict[str, dict[str, object]] = field(default_factory=dict)
    stats_interval: float = 1.0
    disable_log_collection: bool = False
    allowed_properties: tuple[str, ...] = TIGHTENING
    allowed_units: tuple[UnitKind, ...] = (UnitKind.SERVICE,)
    allowed_tenders: tuple[Target, ...] = ()
    allowed_disks: tuple[str, ...] = ()
    defaults: Defaults = field(default_factory=Defaults)
    ceilings: Ceilings = field(default_factory=Ceilings)
    gc: GcConfig = field(default_factory=GcConfig)
    allow_missing_controllers: bool = False


REMOVE_NOTHING = PluginConfig(
    gc=GcConfig(enabled=False, tasks=False, forgotten_tasks=ForgottenTasksConfig(enabled=False))
)
"""In force while the configuration cannot be read: whether the operator has disabled a removal is unknown."""


def plugin_config(data: bytes) -> PluginConfig:
    """Decode the plugin configuration.

    Raises:
        SettingsError: a key is unknown, or its value is wrong; the sentence has the key's path.
    """
    fields = unpack(data, WHERE, SettingsError)
    fields.allow(*schema.names(schema.PLUGIN))
    config = PluginConfig(
        enabled=fields.boolean("enabled", default=True),
        image_paths=_directories(fields, "image_paths"),
        block_paths=_directories(fields, "block_paths"),
        tender_paths=_directories(fields, "tender_paths"),
        image_store_mb=fields.number("image_store_mb", low=1, high=1 << 30) if fields.has("image_store_mb") else None,
        log_namespace=fields.parsed("log_namespace", log_namespace, ""),
        networks=_networks(fields),
        network_settings=_network_settings(fields),
        stats_interval=_duration(fields, "stats_interval", 1.0, least=0.1),
        disable_log_collection=fields.boolean("disable_log_collection", default=False),
        allowed_properties=_property_names(fields),
        allowed_units=choices(fields, "allowed_units", UnitKind) or (UnitKind.SERVICE,),
        allowed_tenders=choices(fields, "allowed_tenders", Target),
        allowed_disks=_disk_patterns(fields),
        defaults=_defaults(fields.table("defaults")),
        ceilings=_ceilings(fields.table("ceilings")),
        gc=_gc(fields.table("gc")),
        allow_missing_controllers=fields.boolean("allow_missing_controllers", default=False),
    )
    _check_defaults(config, fields.table("defaults"))
    return config


def _check_defaults(config: PluginConfig, fields: Fields) -> None:
    """Refuse a default that no task may have."""
    unit, tender = config.defaults.unit, config.defaults.tender
    if unit not in config.allowed_units:
        raise fields.wrong("unit", str(unit), f"one of allowed_units ({', '.join(config.allowed_units)})")
    if tender is not None and config.allowed_tenders and tender not in config.allowed_tenders:
        raise fields.wrong("tender", str(tender), f"one of allowed_tenders ({', '.join(config.allowed_tenders)})")


@contextmanager
def _under(fields: Fields, key: str) -> Iterator[None]:
    """Put a key's path in front of the errors of its value."""
    try:
        yield
    except InvalidRequestError as error:
        raise SettingsError(f"{fields.path(key)}: {error.sentence}", error.hint) from error


def _directories(fields: Fields, key: str) -> tuple[str, ...]:
    paths = fields.texts(key, ())
    for path in paths:
        if not path.startswith("/"):
            raise fields.wrong(key, path, f'absolute directories, such as {key} = ["/srv/solo5"]')
    return paths


def _networks(fields: Fields) -> tuple[NetworkName, ...]:
    with _under(fields, "networks"):
        return tuple(map(network_name, fields.texts("networks", ())))


def _network_settings(fields: Fields) -> dict[str, dict[str, object]]:
    """Return the networks, checked like the tables of a settings file, to which they are written."""
    tables = fields.table("network")
    plain = {name: _network(tables.table(name)) for name in tables}
    parse_settings({"network": plain}, WHERE)
    return plain


def _network(fields: Fields) -> dict[str, object]:
    fields.allow(*NETWORK)
    return {key: _plain(fields, key) for key in fields}


def _plain(fields: Fields, key: str) -> object:
    """Return a value of its type, as in a settings file; HCL converts a boolean `ipv4` or `ipv6` to a string."""
    match NETWORK[key]:
        case schema.NUMBER:
            return fields.number(key, low=0, high=INTEGER_MAX)
        case schema.BOOLEAN:
            return fields.boolean(key)
        case schema.TEXTS:
            return [*fields.texts(key)]
        case _ if key not in ("ipv4", "ipv6"):
            return fields.text(key)
        case _:
            return fields.boolean(key) if fields.is_boolean(key) else _BOOLEANS.get(fields.text(key), fields.text(key))


_BOOLEANS: Mapping[str, object] = {"true": True, "false": False}


def _property_names(fields: Fields) -> tuple[str, ...]:
    names = fields.texts("allowed_properties", TIGHTENING)
    for name in names:
        if name not in SETTABLE:
            raise fields.wrong("allowed_properties", name, f"some of {', '.join(sorted(SETTABLE))}")
    return names


_DISK_PATTERN = re.compile(r"[A-Za-z0-9_.*?-]{1,64}", re.ASCII)


def _disk_patterns(fields: Fields) -> tuple[str, ...]:
    patterns = fields.texts("allowed_disks", ())
    for pattern in patterns:
        if not _DISK_PATTERN.fullmatch(pattern):
            raise fields.wrong(
                "allowed_disks", pattern, 'names of disks, with * and ?, such as allowed_disks = ["web-*"]'
            )
    return patterns


def _defaults(fields: Fields) -> Defaults:
    fields.allow(*schema.names(schema.DEFAULTS))
    properties = assignments(fields, "properties")
    with _under(fields, "properties"):
        for key, text in properties:
            parse_property(key, text)
    return Defaults(
        tender=choice(fields, "tender", Target),
        unit=choice(fields, "unit", UnitKind) or UnitKind.SERVICE,
        logging=choice(fields, "logging", Logging) or Logging.NOMAD,
        quiet=fields.boolean("quiet", default=False),
        cpu_hard_limit=fields.boolean("cpu_hard_limit", default=False),
        properties=properties,
    )


def _ceilings(fields: Fields) -> Ceilings:
    fields.allow(*(keys := schema.names(schema.CEILINGS)))
    set_ones = {key: fields.number(key, low=0, high=1 << 30) for key in keys if key != "io" and fields.has(key)}
    return Ceilings(**set_ones, io=io_block(fields))


def _gc(fields: Fields) -> GcConfig:
    fields.allow(*schema.names(schema.GC))
    return GcConfig(
        enabled=fields.boolean("enabled", default=True),
        interval=_duration(fields, "interval", 3600.0, least=1.0),
        image_age=_duration(fields, "image_age", 86400.0, least=60.0),
        tasks=fields.boolean("tasks", default=True),
        forgotten_tasks=_forgotten_tasks(fields.table("dangling_tasks")),
    )


def _forgotten_tasks(fields: Fields) -> ForgottenTasksConfig:
    fields.allow(*schema.names(schema.FORGOTTEN_TASKS))
    return ForgottenTasksConfig(
        enabled=fields.boolean("enabled", default=True),
        period=_duration(fields, "period", 60.0, least=1.0),
        creation_grace=_duration(fields, "creation_grace", 300.0, least=10.0),
        dry_run=fields.boolean("dry_run", default=False),
    )


def _duration(fields: Fields, key: str, default: float, *, least: float) -> float:
    value = fields.parsed(key, seconds, default)
    if value < least:
        raise fields.wrong(key, fields.text(key), f"at least {least:g} seconds")
    return value
