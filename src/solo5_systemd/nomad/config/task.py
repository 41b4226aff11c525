"""The task options, `task { config { … } }`, of `schema.TASK`, decoded."""

from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv6Address

from solo5_systemd.base.decode import Fields
from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import (
    DeviceName,
    DiskName,
    NetworkName,
    TaskName,
    UnitKind,
    device_name,
    disk_name,
    network_name,
)
from solo5_systemd.image.manifest import MAX_DEVICES
from solo5_systemd.network.guest_limits import NO_LIMITS, Limits
from solo5_systemd.network.model import MacAddress, Protocol, mac_address
from solo5_systemd.network.port_conflicts import PORTS_MAX
from solo5_systemd.nomad.config import schema
from solo5_systemd.nomad.config.ready import Rule, parse_rule
from solo5_systemd.nomad.config.shared import Shared
from solo5_systemd.nomad.config.values import Logging, assignments, choice, unpack
from solo5_systemd.settings.address_pool import ipv4_address, ipv6_address
from solo5_systemd.settings.egress import egress
from solo5_systemd.settings.guest_routes import routes
from solo5_systemd.settings.network import DEFAULT_NETWORK
from solo5_systemd.settings.rate import UNLIMITED, rate
from solo5_systemd.settings.records import record
from solo5_systemd.storage.io_limits import NO_IO_LIMITS, IoLimits
from solo5_systemd.storage.model import MAX_SECTOR_SIZE, SECTOR_SIZE, ArchiveFormat
from solo5_systemd.task.disks import DISK_SIZE
from solo5_systemd.task.log_fields import labels
from solo5_systemd.task.quantities import idle_time, size
from solo5_systemd.task.settings import workload
from solo5_systemd.task.workload import Workload


@dataclass(frozen=True, kw_only=True)
class PortLabel:
    """A port of the group's `network` by its label, and the protocols to publish it for."""

    label: str
    protocols: tuple[Protocol, ...] = (Protocol.TCP, Protocol.UDP)


@dataclass(frozen=True, kw_only=True)
class NicOptions:
    """A `nic` block; None: the default network, or an address that is assigned."""

    nic: DeviceName
    network: NetworkName | None = None
    ip: IPv4Address | None = None
    mac: MacAddress | None = None
    ports: tuple[PortLabel, ...] = ()
    limits: Limits = NO_LIMITS
    ip6: IPv6Address | None = None


@dataclass(frozen=True, kw_only=True)
class DiskOptions:
    """A `block` block.

    Attributes:
        source: path of a file or block device; empty for a named disk, an archive or a volume.
        files: paths of the files and directories of an archive.
        format: of the archive; None: a tar.
        strip: leave the path out of names in the archive.
        name: of a named disk.
        sector_size: in bytes; None: the default.
        size: of the named disk, or the file in the volume, that is created if there is none, in bytes; None: none is
            created.
        private: a private copy for one run (`ephemeral`, `read_only`).
        volume: a volume of the task, by the name of its request or the destination of its `volume_mount`.
        file: a path in the volume; None: the default.
        io: the `io` block.
    """

    disk: DeviceName
    source: str = ""
    files: tuple[str, ...] = ()
    format: ArchiveFormat | None = None
    strip: bool = False
    name: DiskName | None = None
    sector_size: int | None = None
    size: int | None = None
    private: bool = False
    volume: str | None = None
    file: str | None = None
    io: IoLimits = NO_IO_LIMITS


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """The task options. None: not set by the job, so that the plugin's default applies.

    Attributes:
        asked: the settings that a job has in common with `solo5ctl run`. Name and paths are the job's.
        args: of the guest, without `verbatim`.
        unikernel: path of the image, as the job has it.
        ports: the ports to publish; None: all of the group.
        ready: the condition of readiness; None: the task is ready when its unit runs.
    """

    asked: Workload
    unikernel: str
    args: tuple[str, ...] = ()
    nics: tuple[NicOptions, ...] = ()
    ports: tuple[PortLabel, ...] | None = None
    disks: tuple[DiskOptions, ...] = ()
    unit: UnitKind | None = None
    logging: Logging | None = None
    quiet: bool | None = None
    cpu_hard_limit: bool | None = None
    properties: tuple[tuple[str, str], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    ready: Rule | None = None


def task_options(data: bytes) -> TaskOptions:
    """Decode the task options.

    Raises:
        InvalidRequestError: a key is unknown or missing, or its value is wrong; the sentence has the key's path.
    """
    fields = unpack(data, "config")
    fields.allow(*schema.names(schema.TASK))
    unikernel = fields.text("unikernel", "")
    if not unikernel:
        raise fields.wrong("unikernel", unikernel, 'the path of an image, such as unikernel = "local/web.hvt"')
    asked = workload(TaskName(""), Shared(fields), lambda: (DEFAULT_NETWORK,))  # which has DHCP is not known here
    return TaskOptions(
        asked=replace(asked, idle_s=_idle_s(fields)),
        unikernel=unikernel,
        args=fields.texts("args", ()),
        nics=tuple(_nic(name, table) for name, table in _labelled(fields, "nic")),
        ports=_ports(fields),
        disks=tuple(_disk(name, table) for name, table in _labelled(fields, "block")),
        unit=choice(fields, "unit", UnitKind),
        logging=choice(fields, "logging", Logging),
        quiet=fields.boolean("quiet") if fields.has("quiet") else None,
        cpu_hard_limit=fields.boolean("cpu_hard_limit") if fields.has("cpu_hard_limit") else None,
        properties=assignments(fields, "properties"),
        labels=_labels(fields),
        ready=parse_rule(fields.table("ready")) if fields.has("ready") else None,
    )


def _idle_s(fields: Fields) -> int:
    """Return the seconds without a packet after which the task sleeps; 0: it never does."""
    if not fields.has("idle"):
        return 0
    idle = fields.table("idle")
    idle.allow(*schema.names(schema.IDLE))
    action = idle.text("action", "sleep")
    if action == "stop":
        raise InvalidRequestError(
            f"{idle.where}.action is stop: expected sleep, since a task without a process has ended for Nomad."
        )
    if action != "sleep":
        raise idle.wrong("action", action, "sleep")
    return idle.parsed("after", lambda text: idle_time(text, "the time"))


def _labels(fields: Fields) -> tuple[tuple[str, str], ...]:
    pairs = assignments(fields, "labels")
    try:
        return labels(pairs)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"config.labels: {error.sentence}", error.hint) from error


def _labelled(fields: Fields, key: str) -> tuple[tuple[DeviceName, Fields], ...]:
    table = fields.table(key)
    if len(tuple(table)) > MAX_DEVICES:
        raise fields.wrong(key, f"{len(tuple(table))} blocks", f"{MAX_DEVICES} or fewer, as a manifest has devices")
    return tuple((_device(table, name), table.table(name)) for name in table)


def _device(table: Fields, name: str) -> DeviceName:
    try:
        return device_name(name)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{table.where} {name!r}: {error.sentence}") from error


def _nic(name: DeviceName, fields: Fields) -> NicOptions:
    fields.allow(*schema.names(schema.NIC))
    return NicOptions(
        nic=name,
        network=fields.parsed("network", network_name) if fields.has("network") else None,
        ip=fields.parsed("ip", ipv4_address) if fields.has("ip") else None,
        mac=fields.parsed("mac", mac_address) if fields.has("mac") else None,
        ports=_ports(fields) or (),
        limits=replace(_limits(fields), routes=fields.parsed_list("routes", routes) if fields.has("routes") else ()),
        ip6=fields.parsed("ip6", ipv6_address) if fields.has("ip6") else None,
    )


def _limits(fields: Fields) -> Limits:
    """Return `egress` and `rate`. An empty `egress` permits no connection; a missing one all that the network does."""
    return Limits(
        egress=fields.parsed_list("egress", egress) if fields.has("egress") else None,
        rate=fields.parsed_list("rate", rate) if fields.has("rate") else UNLIMITED,
    )


def _disk(name: DeviceName, fields: Fields) -> DiskOptions:
    fields.allow(*schema.names(schema.DISK))
    options = DiskOptions(
        disk=name,
        source=fields.text("source", ""),
        files=fields.texts("files", ()),
        format=choice(fields, "format", ArchiveFormat),
        strip=fields.boolean("strip", default=False),
        name=fields.parsed("disk", disk_name) if fields.has("disk") else None,
        sector_size=_sector_size(fields),
        size=fields.parsed("size", lambda text: size(text, DISK_SIZE)) if fields.has("size") else None,
        private=_is_private(fields),
        volume=fields.text("volume") if fields.has("volume") else None,
        file=_file(fields) if fields.has("file") else None,
        io=record(IoLimits, fields.table("io")),
    )
    create = fields.boolean("create", default=False)
    given = [key for key in ("source", "disk", "files", "volume") if fields.has(key)]
    if len(given) != 1:
        none = "none of source, disk, files and volume"
        raise InvalidRequestError(
            f"{fields.where} has {' and '.join(given) or none}: expected one of them.",
            'Write block "NAME" { source = "local/disk.img" }, { disk = "data" } or { volume = "data" }.',
        )
    if create is not (options.size is not None) or (create and given[0] not in ("disk", "volume")):
        raise InvalidRequestError(
            f"{fields.where} has only some of disk or volume, create = true and size: expected all of them for a disk "
            "that is created if there is none, or disk or volume alone."
        )
    for key in ("format", "strip"):
        if fields.has(key) and "files" not in given:
            raise InvalidRequestError(f"{fields.where} has {key} without files: expected both.")
    if options.private and "files" in given:
        raise InvalidRequestError(
            f"{fields.where} has files, and ephemeral or read_only: expected files alone, whose archive is of this run "
            "in any case."
        )
    if options.io != NO_IO_LIMITS and "files" in given:
        raise InvalidRequestError(f"{fields.where} has files and io: expected files alone, whose archive is in memory.")
    if options.volume == "":
        raise fields.wrong("volume", "", "the name of a volume of the task")
    if options.file is not None and options.volume is None:
        raise fields.wrong("file", options.file, "none without volume, in which the file is")
    return options


def _sector_size(fields: Fields) -> int | None:
    if not fields.has("sector_size"):
        return None
    return fields.integer("sector_size", low=SECTOR_SIZE, high=MAX_SECTOR_SIZE)


def _is_private(fields: Fields) -> bool:
    flags = [fields.boolean(key, default=False) for key in ("ephemeral", "read_only")]
    return any(flags)


def _file(fields: Fields) -> str:
    """Return a relative path without `..`: the name of a file in a volume."""
    text = fields.text("file")
    if text.startswith("/") or "\0" in text or any(part in ("", ".", "..") for part in text.split("/")):
        raise fields.wrong("file", text, 'the path of a file in the volume, such as file = "disk.img"')
    return text


def _ports(fields: Fields) -> tuple[PortLabel, ...] | None:
    if not fields.has("ports"):
        return None
    texts = fields.texts("ports")
    if len(texts) > PORTS_MAX:  # before any work that grows with them
        raise fields.wrong("ports", f"{len(texts)} labels", f"{PORTS_MAX} or fewer")
    return tuple(_port(fields, text) for text in texts)


def _port(fields: Fields, text: str) -> PortLabel:
    """Parse `LABEL`, for both protocols, or `LABEL/tcp`, `LABEL/udp`; a label has no slash."""
    label, slash, protocol = text.partition("/")
    if not label or (slash and protocol not in tuple(Protocol)):
        expected = 'labels of the group\'s ports, alone or with /tcp or /udp, such as ports = ["http", "dns/udp"]'
        raise fields.wrong("ports", text, expected)
    return PortLabel(label=label, protocols=(Protocol(protocol),)) if slash else PortLabel(label=label)
