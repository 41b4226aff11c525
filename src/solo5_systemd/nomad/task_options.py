"""The task options, `task { config { … } }`: each defined once, with its schema and checks.

`make tables` writes them to docs/nomad-job.md: those that `solo5ctl run` has, too, are in `task.settings`, and some
defaults, here None, in the plugin configuration (`Defaults`).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from ipaddress import IPv4Address, IPv6Address
from typing import Annotated, TypeVar

from solo5_systemd.base.decode import Fields
from solo5_systemd.base.errors import InvalidRequestError, Solo5Error, located
from solo5_systemd.base.names import DeviceName, DiskName, NetworkName, TaskName, UnitKind, device_name
from solo5_systemd.declared.update_request import PATTERN_MAX, ReadyLine
from solo5_systemd.image.manifest import MAX_DEVICES
from solo5_systemd.network.model import Endpoint, MacAddress, Protocol, port_number
from solo5_systemd.nomad.option_values import Logging, Options, Pairs, assignments, duration, schema_of, unpack
from solo5_systemd.nomad.proto.hcl_spec_pb2 import Attr, Spec
from solo5_systemd.settings.addresses import Routes
from solo5_systemd.settings.egress import Egress
from solo5_systemd.settings.network import DEFAULT_NETWORK
from solo5_systemd.settings.rate import UNLIMITED, Rate
from solo5_systemd.settings.records import Type, document, entries, integer, record, setting, text, texts
from solo5_systemd.storage.io_limits import NO_IO_LIMITS, IoLimits
from solo5_systemd.storage.model import MAX_SECTOR_SIZE, SECTOR_SIZE, VOLUME_IMAGE, ArchiveFormat
from solo5_systemd.task.disks import DISK_SIZE
from solo5_systemd.task.log_fields import labels
from solo5_systemd.task.quantities import size, value_of
from solo5_systemd.task.setting_values import Parse, Values, workload
from solo5_systemd.task.settings import SETTINGS, idle_time
from solo5_systemd.task.workload import Workload

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class PortLabel:
    """A port of the group's `network` by its label, and the protocols to publish it for."""

    label: str
    protocols: tuple[Protocol, ...] = (Protocol.TCP, Protocol.UDP)


def _ports(fields: Fields, key: str) -> tuple[PortLabel, ...]:
    """Parse each `LABEL`, for both protocols, or `LABEL/tcp`, `LABEL/udp`; a label has no slash."""
    ports = []
    for given in fields.texts(key):
        label, slash, protocol = given.partition("/")
        if not label or (slash and protocol not in tuple(Protocol)):
            expected = 'labels of the group\'s ports, alone or with /tcp or /udp, such as ports = ["http", "dns/udp"]'
            raise fields.wrong(key, given, expected)
        ports.append(PortLabel(label=label, protocols=(Protocol(protocol),)) if slash else PortLabel(label=label))
    return tuple(ports)


def _file(fields: Fields, key: str) -> str:
    """Return a relative path without `..`: the name of a file in a volume."""
    text = fields.text(key)
    # A second spelling of one path would evade the check for two blocks with one file.
    if text.startswith("/") or "\0" in text or any(part in ("", ".", "..") for part in text.split("/")):
        raise fields.wrong(key, text, 'the path of a file in the volume, such as file = "disk.img"')
    return text


def _labels(fields: Fields, key: str) -> Pairs:
    pairs = assignments(fields, key)
    with located(fields.path(key)):
        return labels(pairs)


def _idle_action(fields: Fields, key: str) -> str:
    action = fields.text(key)
    if action != "sleep":
        raise fields.wrong(key, action, "sleep, since a task without a process has ended for Nomad")
    return action


PORTS = Type(_ports, list, "list(string)")


# fmt: off
@dataclass(frozen=True, kw_only=True)
class NicOptions:
    """A `nic` block; None: an address that is assigned, or the task's egress."""

    network: NetworkName = setting(
        "A network of this node (`solo5ctl network ls`), or `none`.", default=DEFAULT_NETWORK
    )
    ip: IPv4Address | None = setting("An IPv4 address in that network.", default=None, shown="assigned")
    ip6: IPv6Address | None = setting(
        "An IPv6 address in that network, if it has IPv6.", default=None, shown="assigned"
    )
    mac: MacAddress | None = setting("A unicast MAC address.", default=None, shown="assigned")
    ports: Annotated[tuple[PortLabel, ...], PORTS] = setting("Labels of ports to publish for this NIC.", default=())
    egress: Egress = setting("The destinations of connections by this NIC.", default=None, shown="the task's")
    rate: Rate = setting("The rate limits of this NIC.", default=UNLIMITED, shown="the task's")
    routes: Routes = setting("Ranges behind a [guest that routes](network-host.md#a-guest-that-routes).", default=())


@dataclass(frozen=True, kw_only=True)
class DiskOptions:
    """A `block` block; sizes are in bytes."""

    source: str = setting("A file or device: in the task's directory, or in `block_paths`.", default="", shown="none")
    disk: DiskName | None = setting("The name of a disk of `solo5ctl disk`, from `allowed_disks`.", default=None)
    files: Annotated[tuple[str, ...], texts(tuple)] = setting(
        "Paths in `local`, `secrets` and `alloc`, which the guest gets as an [archive](storage.md#files-and-secrets).",
        default=(),
    )
    format: ArchiveFormat = setting("Of `files`: `raw` is the content of one file.", default=ArchiveFormat.TAR)
    strip: bool = setting("Of `files`: names without the path.", default=False)
    volume: str | None = setting("A [volume](nomad-disks.md#volumes) of the task.", default=None)
    file: Annotated[str | None, Type(_file, str)] = setting(
        "The file in the volume that is the disk.", default=None, shown=f'`"{VOLUME_IMAGE}"`'
    )
    size: Annotated[int | None, text(lambda given: value_of(size, given, DISK_SIZE))] = setting(
        "The size of what `create` creates, such as `64M`.", default=None
    )
    create: bool = setting("Create the named disk, or the file in the volume, if there is none.", default=False)
    ephemeral: bool = setting("A [private copy](storage.md#private-copies) for this run.", default=False)
    read_only: bool = setting("The same as `ephemeral`.", default=False)
    sector_size: Annotated[int, integer(SECTOR_SIZE, MAX_SECTOR_SIZE)] = setting(
        "The size of a sector in bytes.", default=SECTOR_SIZE
    )
    io: IoLimits = setting("Limits of the disk's device: [below](#io-limits).", default=NO_IO_LIMITS)

    @property
    def private(self) -> bool:
        """Return whether it is a private copy for one run."""
        return self.ephemeral or self.read_only


@dataclass(frozen=True, kw_only=True)
class IdleOptions:
    """The `idle` block; `after`: seconds."""

    action: Annotated[str, Type(_idle_action, str)] = setting("What happens; `stop` is refused.", default="sleep")
    after: Annotated[int, text(lambda given: value_of(idle_time, given, "the time"))] = field(
        metadata={"meaning": SETTINGS["IdleSec"].help}
    )
# fmt: on


def _disk(fields: Fields) -> DiskOptions:
    options = record(DiskOptions, fields)
    given = [key for key in ("source", "disk", "files", "volume") if key in fields]
    if len(given) != 1:
        none = "none of source, disk, files and volume"
        raise InvalidRequestError(
            f"{fields.where} has {' and '.join(given) or none}: expected one of them.",
            'Write block "NAME" { source = "local/disk.img" }, { disk = "data" } or { volume = "data" }.',
        )
    create, of_files = options.create, "files" in given
    is_half = create is not (options.size is not None) or (create and given[0] not in ("disk", "volume"))
    for is_wrong, what in (
        (is_half, "only some of disk or volume, create = true and size: expected all of them, or disk or volume alone"),
        (not of_files and fields.having("format", "strip"), "format or strip without files: expected both"),
        (of_files and options.private, "files, and ephemeral or read_only: expected files alone, made for each run"),
        (of_files and options.io != NO_IO_LIMITS, "files and io: expected files alone, whose archive is in memory"),
    ):
        if is_wrong:
            raise InvalidRequestError(f"{fields.where} has {what}.")
    if options.volume == "":
        raise fields.wrong("volume", "", "the name of a volume of the task")
    if options.file is not None and options.volume is None:
        raise fields.wrong("file", options.file, "none without volume, in which the file is")
    return options


def _blocks(kind: object, parse: Callable[[Fields], object]) -> Type:
    """Return the type of blocks by the name of a device, each of which `parse` reads."""

    def read(fields: Fields, key: str) -> Mapping[DeviceName, object]:
        table = fields.table(key)
        if len(tuple(table)) > MAX_DEVICES:
            raise fields.wrong(key, f"{len(tuple(table))} blocks", f"{MAX_DEVICES} or fewer, as a manifest has devices")
        found = {}
        for name in table:
            with located(f"{table.where} {name!r}"):
                device = device_name(name)
            found[device] = parse(table.table(name))
        return found

    return Type(read, dict, kind=kind, is_map=True)


DEADLINE_MAX_S = 600.0
"""Seconds. Nomad cannot cancel StartTask, so a job cannot be stopped before the deadline of its start."""


class OnLoss(StrEnum):
    """The reaction to a loss: a task event, or also a stop, after which Nomad's restart policy applies."""

    EVENT = "event"
    RESTART = "restart"


@dataclass(frozen=True, kw_only=True)
class GuestPort:
    """The condition that a port of the guest answers. `name`: a label of the group's ports, or the guest's own port."""

    protocol: Protocol
    name: str


def _line(fields: Fields, key: str) -> ReadyLine:
    pattern = fields.text(key)
    if not 0 < len(pattern) <= PATTERN_MAX or any(each in pattern for each in "\0\n"):
        raise fields.wrong(key, pattern, f"a regular expression of one line with 1 to {PATTERN_MAX} characters")
    return ReadyLine(pattern=pattern)


def _guest_port(fields: Fields, key: str) -> GuestPort:
    name = fields.text(key)
    if name.isascii() and name.isdigit():  # isdigit() alone is true of "²", which int() refuses
        fields.parsed(key, lambda text: port_number(int(text)))
    elif not name:
        raise fields.wrong(key, name, "a label of the group's ports, or the guest's own port")
    return GuestPort(protocol=Protocol(key), name=name)


ProbedPort = Annotated[GuestPort | None, Type(_guest_port, str)]


# fmt: off
@dataclass(frozen=True, kw_only=True)
class Rule:
    """A job's `ready` block, with one condition. Times are in seconds."""

    console: Annotated[ReadyLine | None, Type(_line, str)] = setting(
        "A line of the guest's console matches this regular expression.", default=None
    )
    tcp: ProbedPort = setting("The guest accepts a TCP connection at this port.", default=None)
    udp: ProbedPort = setting("The guest echoes a UDP datagram, or at port 53 answers a DNS query.", default=None)
    deadline: Annotated[float, duration(1.0, DEADLINE_MAX_S)] = setting("The timeout of the start.", default=30.0)
    interval: Annotated[float, duration(0.1, 3600.0)] = setting("The interval of probes of a ready task.", default=10.0)
    on_loss: OnLoss = setting("`restart`: three failed probes in sequence also stop the task.", default=OnLoss.EVENT)
    # fmt: on

    @property
    def condition(self) -> ReadyLine | GuestPort:
        """Return the condition."""
        return next(each for each in (self.console, self.tcp, self.udp) if each is not None)


@dataclass(frozen=True, kw_only=True)
class ReadinessProbe(Endpoint):
    """The recurring probe of a ready task. It is part of the handle, so that a recovered task is probed again."""

    interval: Annotated[float, duration()]
    on_loss: OnLoss


def parse_rule(fields: Fields) -> Rule:
    """Parse a job's `ready` block; raises InvalidRequestError, also without one condition."""
    rule = record(Rule, fields)
    present = fields.having("console", "tcp", "udp")
    if len(present) != 1:
        raise InvalidRequestError(
            f"{fields.where} names {' and '.join(present) or 'no rule'}: "
            'expected exactly one of console = "REGEX", tcp = "PORT", udp = "PORT".'
        )
    if rule.on_loss is OnLoss.RESTART and rule.console is not None:
        raise fields.wrong("on_loss", rule.on_loss.value, "none beside console: a printed line cannot be lost again")
    return rule


def no_address_error(port: GuestPort, lack: str = "the image has no NIC") -> InvalidRequestError:
    """Return the error of a `ready` port of a guest without an address."""
    return InvalidRequestError(
        f"config.ready.{port.protocol} is {port.name!r}, and {lack}: expected a guest with an address.",
        'Wait for a line of its console: ready { console = "…" }',
    )


# fmt: off
@dataclass(frozen=True, kw_only=True)
class OwnOptions:
    """The task options that `solo5ctl run` has not. None: not set by the job, so that the plugin's default applies.

    Attributes:
        ports: None: all of the group.
    """

    nic: Annotated[Mapping[DeviceName, NicOptions], _blocks(NicOptions, partial(record, NicOptions))] = setting(
        "The image's NIC of that name: [below](#nic). Without any, every NIC joins the network `default`.", default={}
    )
    ports: Annotated[tuple[PortLabel, ...] | None, PORTS] = setting(
        "Labels of the group's ports to publish, for the NIC `service` (otherwise the first NIC).",
        default=None, shown="all, unless a `nic` has `ports`",
    )
    block: Annotated[Mapping[DeviceName, DiskOptions], _blocks(DiskOptions, _disk)] = setting(
        "The image's disk of that name: [below](#block).", default={}
    )
    unit: UnitKind | None = setting("`service`, or `scope` if `allowed_units` has it: [below](#scopes).", default=None)
    logging: Logging | None = setting(
        "`nomad`; `journald`: the console goes to the journal only, and `nomad alloc logs` stays empty.", default=None
    )
    quiet: bool | None = setting(
        "Passes `--solo5:quiet` as the first argument: no banner, only the guest's own output and aborts.", default=None
    )
    cpu_hard_limit: bool | None = setting("`resources.cpu` is also a hard limit (CPUQuota=).", default=None)
    properties: Annotated[Pairs, Type(assignments, dict, is_map=True)] = setting(SETTINGS["Property"].help, default=())
    labels: Annotated[Pairs, Type(_labels, dict, is_map=True)] = setting(SETTINGS["Label"].help, default=())
    ready: Annotated[Rule | None, Type(lambda fields, key: parse_rule(fields.table(key)), document, kind=Rule)] = (
        setting("The condition by which a start is complete: [Readiness](#readiness).", default=None)
    )
    idle: IdleOptions | None = setting("When the task sleeps: [Idle](#idle).", default=None)
# fmt: on


@dataclass(frozen=True, kw_only=True)
class TaskOptions(OwnOptions):
    """The task options.

    Attributes:
        shared: the settings that a job has in common with `solo5ctl run`. Name and paths are the job's.
        args: of the guest, without `verbatim`.
    """

    shared: Workload
    args: tuple[str, ...] = ()


TASK = schema_of(
    OwnOptions,
    {
        each.job: Spec(
            Attr=Attr(name=each.job, type="list(string)" if each.is_list else "string", required=each.name == "Image")
        )
        for each in SETTINGS.values()
        if each.job
    },
)
"""The schema of `task { config { … } }`."""


class Shared(Values):
    """The options of a job that are those of `solo5ctl run`. The task's directory, of its paths, is not known here."""

    def __init__(self, fields: Fields) -> None:
        self._fields = fields

    def given(self, name: str) -> bool:
        """Return whether the job sets an option, perhaps to an empty list."""
        return SETTINGS[name].job in self._fields

    def parsed(self, name: str, parse: Parse[T]) -> Iterator[T]:
        """Yield the values of an option; raises InvalidRequestError where one is invalid."""
        if self.given(name):
            job, is_list = SETTINGS[name].job, SETTINGS[name].is_list
            for text in self._fields.texts(job) if is_list else [self._fields.text(job)]:
                with self.located(name):
                    found = value_of(parse, text, self.shown(name))
                yield found

    @contextmanager
    def located(self, name: str) -> Iterator[None]:
        """Have an error of the block begin with the option."""
        try:
            yield
        except Solo5Error as error:
            if error.sentence.startswith("config."):  # `value_of` has named the option already
                raise
            raise InvalidRequestError(f"{self.shown(name)}: {error.sentence}", error.hint) from error

    def shown(self, name: str) -> str:
        """Return the option's path in the job; empty: it has none."""
        job = SETTINGS[name].job
        return f"config.{job}" if job else ""


def task_options(data: bytes) -> TaskOptions:
    """Decode the task options; raises InvalidRequestError, with the key's path."""
    fields = unpack(data, "config")
    fields.allow(*TASK.object.attributes)
    image = fields.text("unikernel", "")
    if not image:  # the schema refuses a job without it, but not an empty text
        raise fields.wrong("unikernel", image, 'the path of an image, such as unikernel = "local/web.hvt"')
    shared = workload(TaskName(""), Shared(fields), lambda: (DEFAULT_NETWORK,))  # which has DHCP is not known here
    own = record(OwnOptions, Options(fields.having(*(each.name for each in entries(OwnOptions))), fields.where))
    return TaskOptions(
        **vars(own),
        shared=replace(shared, idle_s=own.idle.after if own.idle else 0),
        args=fields.texts("args", ()),
    )
