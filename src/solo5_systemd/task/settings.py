"""The settings of a task, each defined once for every language.

From this table follow the options of `solo5ctl run`, the keys of [Unikernel], and the options of a job that are the
same there, with their tables in docs/ and the manual pages (`make tables`). `task.setting_values` reads and writes the
values. A parser of one text raises as those of `task.quantities`; what makes a list of its values, InvalidRequestError.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import Target
from solo5_systemd.settings.resolver import hostname, hosts, name_servers, ntp_servers, search_domains
from solo5_systemd.task.disks import disk, disk_text
from solo5_systemd.task.log_fields import FIELD_NAME, label
from solo5_systemd.task.networks import host_endpoint, namespace_path, nic, nic_text, publish, publish_text
from solo5_systemd.task.placeholders import HOSTNAME, HOSTS, NTP, SEARCH, SERVERS
from solo5_systemd.task.properties import parse_property
from solo5_systemd.task.property_types import INFINITY, SIZE
from solo5_systemd.task.quantities import cpus, integer, seconds, size
from solo5_systemd.task.workload import DEFAULT_MEMORY, Publish

T = TypeVar("T")

SECTION = "Unikernel"

IDLE_MIN_S, IDLE_MAX_S = 5, 365 * 86400
"""The limits of IdleSec=: below a few seconds a task would sleep between the requests of one visit."""


def idle_time(text: str) -> int:
    """Return the seconds of `10min`, IDLE_MIN_S at least."""
    found = int(seconds(text))
    if not IDLE_MIN_S <= found <= IDLE_MAX_S:
        raise ValueError(f"is out of range: expected {IDLE_MIN_S} seconds to {IDLE_MAX_S // 86400} days")
    return found


def tender(text: str) -> Target:
    """Parse the name of a tender."""
    if text not in tuple(Target):
        raise ValueError(f"is unknown: expected {' or '.join(Target)}")
    return Target(text)


def memory_max(text: str) -> int:
    """Parse a size, or `infinity`."""
    return INFINITY if text == "infinity" else size(text)


def cpus_text(cpus: float) -> str:
    """Return what `task.quantities.cpus` parses as this number."""
    return f"{cpus:.6f}".rstrip("0").rstrip(".")


def stops_when_idle(text: str) -> bool:
    """Return whether a value of IdleAction= is stop."""
    if text not in ("sleep", "stop"):
        raise ValueError("is unknown: expected sleep or stop")
    return text == "stop"


def unit_property(text: str) -> tuple[str, str]:
    """Parse KEY=VALUE, a settable unit property (task/properties.py)."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ValueError("has no value: expected KEY=VALUE, such as TasksMax=32")
    parse_property(key, value)
    return key, value


def log_field(text: str) -> tuple[str, str]:
    """Parse KEY=VALUE, KEY in the form of systemd.journal-fields(7)."""
    key, equals, value = text.partition("=")
    if not equals or not FIELD_NAME.fullmatch(key) or key.startswith("SOLO5_") or not value.isprintable():
        raise ValueError(
            "is not a journal field: expected KEY=VALUE, KEY of at most 64 uppercase letters, digits and '_', starting "
            "with a letter and not with SOLO5_"
        )
    return key, value


def journal_label(text: str) -> tuple[str, str]:
    """Parse KEY=VALUE, as in a Nomad job's `labels`."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ValueError("has no value: expected KEY=VALUE, such as TEAM=web")
    return label(key, value)


def ports(found: Iterable[Iterable[Publish]]) -> tuple[Publish, ...]:
    """Return the ports of all ranges, each of which is published once."""
    return unique(chain.from_iterable(found), host_endpoint, "published port")


def unique(values: Iterable[T], key: Callable[[T], Hashable], what: str) -> tuple[T, ...]:
    """Return the values if their keys are unique; `what`: the noun for the key in the error.

    Raises:
        InvalidRequestError: two values have the same key.
    """
    seen: dict[Hashable, T] = {}
    for value in values:
        if key(value) in seen:
            raise InvalidRequestError(f"{what} {key(value)} is given twice: expected once.")
        seen[key(value)] = value
    return tuple(seen.values())


class Setting(NamedTuple):
    """A setting of a task.

    Attributes:
        name: the key of [Unikernel], by which the code refers to the setting.
        options: of `solo5ctl run`, or its positional argument; empty: there is none.
        job: the option of a job under Nomad that has the same value; empty: there is none.
        is_list: it may be repeated, and an empty assignment resets it; otherwise once in a file, where the last file
            wins, and an empty assignment restores the default. A list of texts in a job.
        has_words: one assignment may have several values, separated by blanks and quoted as in systemd.syntax(7);
            otherwise the value is all of the line, without quotes.
        at_start: it is read again at each start, and no part of the unit file: it may differ in any way between the
            instances of a template.
        in_file: it is a key of [Unikernel].
        field: of a workload that has the value, or of its resolver; empty: `task.setting_values` makes it of several
            settings, or it is of an update.
        parse: takes one text; with `has_path` also `place`, which returns a path of the host in full.
        combine: makes the field of the parsed values of a list.
        format: returns the text of one value.
        default: as it is shown.
        placeholder: by which the value reaches the guest among its arguments; `example` is an argument with it.
        by_dhcp: it also reaches the guest by DHCP.
    """

    name: str
    form: str
    options: tuple[str, ...] = ()
    job: str = ""
    help: str = ""
    is_list: bool = False
    has_words: bool = False
    at_start: bool = False
    in_file: bool = True
    field: str = ""
    parse: Callable[..., Any] = str
    has_path: bool = False
    combine: Callable[[Any], Any] = tuple
    format: Callable[[Any], str] = str
    default: str = ""
    placeholder: str = ""
    example: str = ""
    by_dhcp: bool = False

    @property
    def described(self) -> str:
        """The help, with the default."""
        return f"{self.help} (default: {self.default})" if self.default else self.help

    @property
    def option(self) -> str:
        """The option by which errors and manual pages name it: the first long one."""
        return next((each for each in self.options if each.startswith("--")), "".join(self.options))


_ALL = (
    # What runs
    Setting(
        "Image", "PATH", ("IMAGE",), job="unikernel", help="path of the image",
        field="image", parse=lambda text, place: place(text), has_path=True,
    ),
    Setting(
        "Argument", "ARG…", ("ARG",), job="args", help="arguments of the guest",
        is_list=True, has_words=True, at_start=True, field="arguments",
    ),
    Setting(
        "Verbatim", "ARG", ("--verbatim",), job="verbatim", is_list=True, at_start=True,
        help="argument of the guest after ARGs, in which braces are plain text: for data from other sources",
    ),
    Setting(
        "Tender", "hvt|spt", ("--tender",), job="tender", help="require this tender", field="tender", parse=tender
    ),
    # Resources; the others of systemd.resource-control(5) are in [Service]
    Setting(
        "Memory", "SIZE", ("-m", "--memory"),
        help="memory limit of guest and tender together", default=SIZE.format(DEFAULT_MEMORY),
        field="memory", parse=size, format=SIZE.format,
    ),
    Setting(
        "MemoryMax", "SIZE|infinity", ("--memory-max",),
        help="limit of the cgroup, if it is to exceed --memory, from which the guest's memory derives",
        field="memory_max", parse=memory_max, format=SIZE.format,
    ),
    Setting(
        "CPUs", "N", ("--cpus",), help="CPU quota in processors, such as 1.5",
        field="cpus", parse=cpus, format=cpus_text,
    ),
    Setting(
        "CPUWeight", "N", ("--cpu-weight",), help="CPU weight, 1 to 10000", default="100",
        field="cpu_weight", parse=partial(integer, low=1, high=10_000),
    ),
    # Networks
    Setting(
        "Network", "NIC=NETWORK[,ip=ADDRESS][,ip6=ADDRESS][,mac=ADDRESS][,route=RANGE]", ("--net", "--network"),
        help="connect a NIC of the image to a network", is_list=True, at_start=True,
        field="nics", parse=nic, combine=partial(unique, key=attrgetter("nic"), what="NIC"), format=nic_text,
    ),
    Setting(
        "NetworkNamespace", "NAME|PATH", ("--network-namespace",),
        help="run in this network namespace, such as /run/netns/NAME, together with the programs that are in it",
        field="namespace", parse=namespace_path,
    ),
    Setting(
        "Publish", "[NIC:][HOSTIP:]HOSTPORT:PORT[/tcp|/udp]", ("-p", "--publish"),
        help="publish a port of the guest on the host, or a range of ports: 8000-8010:8000-8010",
        is_list=True, at_start=True, field="publish", parse=publish, combine=ports, format=publish_text,
    ),
    Setting(
        "Egress", "[NIC=]ADDRESS[/PREFIX][:PORT[-PORT]][/tcp|/udp|/icmp]…|none", ("--egress",), job="egress",
        help="permit connections of the guest to this destination, and to no others; 'none': to none",
        default="all that the network permits", is_list=True, has_words=True, at_start=True,
    ),
    Setting(
        "Rate", "[NIC=]KEY=N…", ("--rate",), job="rate",
        help="limit each NIC, per second: sent=10M or received=10M (bytes), sent-packets=N, received-packets=N",
        default="the network's", is_list=True, has_words=True, at_start=True,
    ),
    Setting(
        "DNS", "ADDRESS…", ("--dns",),
        help="name server for {dns} in ARGs, or by DHCP", default="the network's, or else the host's",
        is_list=True, has_words=True, at_start=True, field="resolver.servers", combine=name_servers,
        placeholder=SERVERS, example="--dns-servers={dns.udp}", by_dhcp=True,
    ),
    Setting(
        "DNSSearch", "DOMAIN…", ("--dns-search",),
        help="search domain for {search} in ARGs, or by DHCP", default="as for --dns",
        is_list=True, has_words=True, at_start=True, field="resolver.search", combine=search_domains,
        placeholder=SEARCH, example="--search={search}", by_dhcp=True,
    ),
    Setting(
        "NTP", "ADDRESS…", ("--ntp",), job="ntp", help="NTP server for {ntp} in ARGs, or by DHCP",
        is_list=True, has_words=True, at_start=True, field="resolver.ntp", combine=ntp_servers,
        placeholder=NTP, example="--ntp={ntp}", by_dhcp=True,
    ),
    Setting(
        "HostName", "NAME", ("--hostname",), job="hostname",
        help="host name for {hostname} in ARGs, or by DHCP", default="the task's name",
        field="hostname", parse=hostname, placeholder=HOSTNAME, example="--name={hostname}", by_dhcp=True,
    ),
    Setting(
        "AddHost", "NAME:ADDRESS…", ("--add-host",), job="extra_hosts",
        help="name and address of a machine, for {hosts} in ARGs; host-gateway: the guest's gateway",
        is_list=True, has_words=True, at_start=True, field="hosts", combine=hosts,
        placeholder=HOSTS, example="--hosts={hosts}",
    ),
    Setting(
        "IdleSec", "TIME", ("--idle",),
        help="put the task to sleep after this time without a packet; the next one wakes it", at_start=True,
        field="idle_s", parse=idle_time,
    ),
    Setting(
        "IdleAction", "sleep|stop", ("--idle-action",),
        help="what is done after the idle time; stop (declared tasks only): the task ends, and its next packet starts "
        "it again",
        default="sleep", at_start=True, field="idle_stops", parse=stops_when_idle, format=lambda _: "stop",
    ),
    # Disks
    Setting(
        "Block", "NAME=FILE|disk:DISK|files:PATH,...|credential:NAME[,OPTION...]", ("--block",),
        help="connect a disk of the image to a file, a block device, a named disk, or an archive of files in memory; "
        "OPTION: sector-size=N; of files, devices and named disks: ephemeral, ro, and limits per second: read_bps=10M, "
        "write_bps=10M, read_iops=N, write_iops=N; of a named disk: size=SIZE creates it; of an archive: strip, and "
        "format=tar or format=raw",
        is_list=True, field="disks", parse=disk, has_path=True,
        combine=partial(unique, key=attrgetter("disk"), what="disk"), format=disk_text,
    ),
    # Journal
    Setting(
        "Label", "KEY=VALUE…", ("--label",), help="add a label: a journal field on each console line",
        is_list=True, has_words=True,
    ),
    Setting(
        "LogField", "KEY=VALUE…", ("--log-field",),
        help="add a journal field, also one that Nomad or journald defines", is_list=True, has_words=True,
    ),
    # [Service] has the properties in a declaration
    Setting(
        "Property", "KEY=VALUE", ("--property",),
        help="set a property of the unit, see systemd.resource-control(5)", is_list=True, in_file=False,
        field="properties", parse=unit_property,
    ),
    # Updates
    Setting("Ready", "tcp:PORT|udp:PORT|console:PATTERN", at_start=True),
    Setting("Timeout", "TIME"),
    Setting("Drain", "TIME", at_start=True),
    Setting("Watch", "TIME", at_start=True),
)  # fmt: skip

SETTINGS: Mapping[str, Setting] = {setting.name: setting for setting in _ALL}
"""By name."""

KEYS: Mapping[str, Setting] = {name: setting for name, setting in SETTINGS.items() if setting.in_file}
"""The keys of [Unikernel]."""
