"""The settings of /etc/solo5/*.toml, as values.

tender_paths = ["/usr/bin", "/opt/solo5/bin"]
image_store_mb = 8192
disk_copy_mb = 1024       # data that are copied for the private copies of a task; see settings/limits.py for [limits]
disk_quota_mb = { "/var/lib/solo5/disks" = 65536 }  # default: none
task_uids = "61184-65519"
reserved_ports = [22, "4646-4648"]  # ports of the host that no task can publish
log_namespace = "solo5"   # default: the host's journal

[network.default]
ipv4 = "10.89.0.0/24"     # default: a free range of this host; false, beside ipv6: guests have IPv6 only
gateway4 = "10.89.0.1"    # default: the first address
bridge = "solo5-default"  # default: solo5-NAME, with a hash if that is longer than 15 characters
mtu = 1500
masquerade = true
routed = false            # true: a client that has a route reaches ports that are not published
reach = []                # other networks that guests of this one may connect to
isolated = false          # true: guests of this network do not reach each other
host = []                 # ports of the host for its guests, such as ["53/udp"]
metadata = false          # true: guests reach the metadata addresses of clouds
connections = 4096        # connection limit of each guest
fragments = false         # true: guests may send IP fragments
dhcp = false              # true: guests get their leased address by DHCP
# egress = ["10.0.0.0/8:5432/tcp"]  # all that guests may connect to; default: everything
# rate = ["sent=10M"]     # limits of each NIC, which a job can lower; default: none
ipv6 = false              # true: a /64 of this host's unique local prefix; or a prefix, such as "2001:db8:1::/64",
                          # and beside it: gateway6, by default its first address, nat66 and ra
reserved_addresses = []   # that no guest gets, such as ["10.89.0.2-10.89.0.20"]; requires ipv4 or an ipv6 prefix
dns = []                  # name servers for {dns} in arguments; default: the host's
search = []               # search domains for {search} in arguments; default: the host's

[network.lan]
join = "br0"              # a bridge of others; beside it isolated, fragments, rate, dns, search, and these:
vlan = 20                 # default: that of a new port of the bridge
ipv4 = "192.168.1.0/24"   # default: guests have addresses of the LAN's DHCP
pool = "192.168.1.200-192.168.1.230"  # default: each NIC requests its address
gateway4 = "192.168.1.1"  # default: none
ipv6 = false              # true: guests may send IPv6 from any address; or the LAN's prefix, such as "2001:db8:1::/64":
                          # each gets an address in it, and beside it:
# pool6 = "2001:db8:1::200-2001:db8:1::2ff"  # default: all of the prefix
# gateway6 = "fe80::1"    # default: none
"""

import hashlib
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address, IPv4Network, IPv6Network
from typing import Annotated

from solo5_systemd.base.decode import Fields
from solo5_systemd.base.errors import InvalidRequestError, SettingsError
from solo5_systemd.base.names import NetworkName, log_namespace, network_name
from solo5_systemd.settings.address_pool import Pool4, Pool6, address_pool, range4
from solo5_systemd.settings.egress import EGRESS, Egress
from solo5_systemd.settings.guest_routes import ROUTES, Routes
from solo5_systemd.settings.ipv6 import IPV6_MTU, POOL6_KEY, Ipv6, ipv6_settings, joined_ipv6
from solo5_systemd.settings.limits import Limits, parse_limits
from solo5_systemd.settings.rate import UNLIMITED, Rate
from solo5_systemd.settings.records import TYPES, document, entries, integer, record, text
from solo5_systemd.settings.reserved_addresses import RESERVED_KEY, Reserved, check_within
from solo5_systemd.settings.resolver import SEARCH, SERVERS, UNSET, Resolver

MTUS = integer(68, 65521)
"""68 is the smallest MTU of IPv4 (RFC 791), 65521 the largest of a tap."""

MTU = 1500
"""Bytes: the MTU of Ethernet, and the largest of a network that sets none."""

DEFAULT_NETWORK = NetworkName("default")
NAMESPACE_NETWORK = NetworkName("namespace")
"""The only network of a namespace that guests share with other programs."""

REDIRECT_NETWORK = NetworkName("redirect")
"""The network of a NIC that has the interface of the namespace in which its task runs."""

NO_NETWORK = NetworkName("none")
"""The network of a NIC that leads nowhere, for an image whose devices have to be connected."""

TASK_UIDS = range(61184, 65520)
"""The range of `DynamicUser=`: journald creates a journal file for each user above it (`users.records`)."""

TENDER_PATHS = ("/usr/bin", "/usr/local/bin", "/usr/lib/solo5", "/opt/solo5/bin")

IMAGE_STORE_MB = 8192
"""MiB of disk space for all stored images."""

DISK_COPY_MB = 1024
"""MiB of data that are copied for the private disks of a task where file systems share no blocks."""

_LINK_MAX = 15
"""Most characters of a link's name: IFNAMSIZ without its NUL."""

_LINK = re.compile(r"[A-Za-z0-9_.-]{1,15}", re.ASCII)


CONNECTIONS = 4096
"""Connection limit of one guest: 1/64 of nf_conntrack_max of a host with 4 GiB or more."""

_RANGE = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", re.ASCII)
_HOST_PORT = re.compile(r"([0-9]{1,5})/(tcp|udp)", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class HostPort:
    """A port of the host that guests may connect to."""

    port: int
    protocol: str

    def __str__(self) -> str:
        return f"{self.port}/{self.protocol}"


def _host_port(given: str) -> HostPort:
    match = _HOST_PORT.fullmatch(given)
    if match is None or not 1 <= int(match[1]) <= 65535:
        raise SettingsError(f'{given!r} is not a port of the host: expected one such as "53/udp" or "8080/tcp".')
    return HostPort(port=int(match[1]), protocol=match[2])


TYPES[HostPort] = text(_host_port)


@dataclass(frozen=True, kw_only=True)
class NetworkPolicy:
    """What the packet filter of a network accepts besides published ports and outgoing connections.

    Attributes:
        routed: clients beyond the host reach ports that are not published.
        reach: networks whose guests the guests of this one may connect to.
        isolated: guests of this network do not reach each other.
        host: ports of the host, at each of its addresses, that guests may connect to.
        metadata: guests reach the addresses of metadata services.
        connections: connection limit of each guest.
        fragments: guests may send IP fragments, which the host reassembles.
        dhcp: guests get what they are leased by DHCP, from a server of this host.
        egress: the destinations of connections of each guest, which a job can restrict further; None: every one.
        rate: the rate limits of each NIC, which a job can lower.
        reserved_addresses: that no guest gets.
        routes: what jobs may have the host route to a guest.
    """

    routed: bool = False
    reach: tuple[NetworkName, ...] = ()
    isolated: bool = False
    host: tuple[HostPort, ...] = ()
    metadata: bool = False
    connections: Annotated[int, integer(16, 1 << 20)] = CONNECTIONS
    fragments: bool = False
    dhcp: bool = False
    egress: Annotated[Egress, EGRESS] = None
    rate: Rate = UNLIMITED
    reserved_addresses: Reserved = ()
    routes: Annotated[Routes, ROUTES] = ()


CLOSED = NetworkPolicy()


@dataclass(frozen=True, kw_only=True)
class Join:
    """What is set for a network that joins a bridge of others.

    Attributes:
        vlan: the VLAN of the ports of guests; 0: that of a new port of the bridge.
        pool: the first and last address for guests; None: each NIC requests its address.
        ipv6: guests may send IPv6.
        pool6: the first and last IPv6 address for guests; None: each of the network's prefix, if it has one.
    """

    vlan: int = 0
    pool: Pool4 | None = None
    ipv6: bool = False
    pool6: Pool6 | None = None

    @property
    def pool_text(self) -> str:
        """Return the pool as in the settings; empty without one."""
        return f"{self.pool[0]}-{self.pool[1]}" if self.pool else ""

    @property
    def pool6_text(self) -> str:
        """Return the IPv6 pool as in the settings; empty without one."""
        return f"{self.pool6[0]}-{self.pool6[1]}" if self.pool6 else ""


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """One network.

    Attributes:
        bridge: the name of its bridge.
        ipv4: its range; None: a free one is chosen, or, with `join`, guests have addresses of the LAN's DHCP.
        without_ipv4: it has no range, and none is chosen: guests have IPv6 only.
        gateway4: the host's address in it; None: the first one. With `join`, a router's; None: there is none.
        mtu: of its bridge, in bytes; None: `default_mtu`. With `join`, the bridge's own is used instead.
        join: the bridge is one of others; None: one that this package makes.
        ipv6: None: guests have no IPv6, or, with `join`, what `Join.ipv6` permits. With `join`, a prefix of the LAN's.
        resolver: name servers and search domains of its guests; empty: the host's.
        shared: it is in the network namespace of other programs (`of_namespace`).
        redirect: (of the network `namespace`) a guest may have the interface of its namespace.
        without_ipv6: (of the network `namespace`) guests have no IPv6 where their namespace has.
    """

    name: NetworkName
    bridge: str
    ipv4: IPv4Network | None = None
    without_ipv4: bool = False
    gateway4: IPv4Address | None = None
    mtu: int | None = None
    masquerade: bool = True
    policy: NetworkPolicy = CLOSED
    join: Join | None = None
    ipv6: Ipv6 | None = None
    resolver: Resolver = UNSET
    shared: bool = False
    redirect: bool = False
    without_ipv6: bool = False


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings.

    Attributes:
        disk_quota_mb: directory, and MiB that all files below it may have when a disk is made there.
        reserved_ports: first and last port of each range that no task can publish.
        log_namespace: journal namespace of consoles; empty: the host's journal.
        limits: of what tasks take together; that of `disk_copy_mb` is one of them.
    """

    tender_paths: tuple[str, ...] = TENDER_PATHS
    image_store_mb: int = IMAGE_STORE_MB
    disk_quota_mb: tuple[tuple[str, int], ...] = ()
    task_uids: range = TASK_UIDS
    reserved_ports: tuple[tuple[int, int], ...] = ()
    log_namespace: str = ""
    limits: Limits = field(default_factory=lambda: parse_limits(Fields({}), DISK_COPY_MB << 20))
    networks: tuple[NetworkSettings, ...] = ()

    def reserves(self, port: int) -> bool:
        """Return whether a port is reserved: no task can publish it."""
        return any(first <= port <= last for first, last in self.reserved_ports)

    @property
    def disk_quotas(self) -> Mapping[str, int]:
        """The quotas of directories, in bytes."""
        return {directory: most << 20 for directory, most in self.disk_quota_mb}

    @property
    def served(self) -> frozenset[NetworkName]:
        """The networks with a DHCP server."""
        return frozenset(network.name for network in self.networks if network.policy.dhcp)

    @property
    def ranges(self) -> Sequence[IPv4Network]:
        """The ranges that networks of the host are set to have."""
        return [each.ipv4 for each in self.networks if each.ipv4 and each.name != NAMESPACE_NETWORK]

    @property
    def prefixes(self) -> Sequence[IPv6Network]:
        """The IPv6 prefixes that networks of the host are set to have."""
        others = (each.ipv6 for each in self.networks if each.name != NAMESPACE_NETWORK)
        return [each.prefix for each in others if each is not None and each.prefix is not None]

    def network(self, name: NetworkName) -> NetworkSettings | None:
        """Return the settings of a network, or None."""
        if name == NO_NETWORK:
            return NetworkSettings(
                name=name,
                bridge=default_bridge(name),
                without_ipv4=True,
                masquerade=False,
                policy=NetworkPolicy(isolated=True),
            )
        return next((network for network in self.networks if network.name == name), None)


def parse_settings(document: Mapping[str, object], where: str = "") -> Settings:
    """Return the settings of a decoded document. The network `default` exists even if it is not in the document.

    Args:
        document: as `tomllib` returns it.
        where: the file, for errors.

    Raises:
        SettingsError: an unknown key or an invalid value; the sentence begins with `where` and the key's path.
    """
    try:
        return _parse(Fields(document, error=SettingsError))
    except SettingsError as error:
        raise SettingsError(f"{where}: {error.sentence}" if where else error.sentence, error.hint) from error


def _parse(fields: Fields) -> Settings:
    fields.allow(
        "tender_paths", "image_store_mb", "disk_copy_mb", "disk_quota_mb", "task_uids", "reserved_ports",
        "log_namespace", "limits", "network",
    )  # fmt: skip
    paths = fields.texts("tender_paths", TENDER_PATHS)
    if not paths or not all(path.startswith("/") for path in paths):
        raise fields.wrong("tender_paths", list(paths), "one or more absolute directories")
    tables = fields.table("network")
    names = dict.fromkeys((DEFAULT_NETWORK, *map(_network_key, tables)))
    default = tables.table(DEFAULT_NETWORK)
    networks = tuple(_network(name, _table(name, tables, default)) for name in names)
    _check_distinct(networks)
    return Settings(
        tender_paths=paths,
        image_store_mb=fields.integer("image_store_mb", IMAGE_STORE_MB, low=1, high=1 << 30),
        disk_quota_mb=_quotas(fields.table("disk_quota_mb")),
        task_uids=fields.parsed("task_uids", _task_uids, TASK_UIDS),
        reserved_ports=_reserved(fields),
        log_namespace=fields.parsed("log_namespace", log_namespace, ""),
        limits=parse_limits(
            fields.table("limits"), fields.integer("disk_copy_mb", DISK_COPY_MB, low=0, high=1 << 30) << 20
        ),
        networks=networks,
    )


def _quotas(fields: Fields) -> tuple[tuple[str, int], ...]:
    for directory in fields:
        if not directory.startswith("/") or posixpath.normpath(directory) != directory:
            raise SettingsError(
                f"{fields.where} has the key {directory!r}: expected the absolute path of a directory, without '..' "
                "and without '/' at its end."
            )
    return tuple((directory, fields.integer(directory, low=0, high=1 << 30)) for directory in fields)


def _task_uids(text: str) -> range:
    match = re.fullmatch(r"([0-9]{1,10})-([0-9]{1,10})", text, re.ASCII)
    if not match or int(match[2]) < int(match[1]):
        raise SettingsError(f"{text!r} is not a range of user IDs: expected two numbers such as 61184-63000.")
    uids = range(int(match[1]), int(match[2]) + 1)
    if uids[0] not in TASK_UIDS or uids[-1] not in TASK_UIDS:
        raise SettingsError(
            f"{text} is not within {TASK_UIDS[0]}-{TASK_UIDS[-1]}, the users of DynamicUser=: journald would keep a "
            "journal file of each user beyond."
        )
    return uids


def check_reach(settings: Settings) -> None:
    """Check that `reach` of each network contains other networks only. Called when all files are merged.

    Raises:
        SettingsError: a network does not exist, or contains itself.
    """
    for network in settings.networks:
        for name in network.policy.reach:
            if settings.network(name) is None or name == network.name:
                raise SettingsError(
                    f"network.{network.name}.reach names {name!r}: expected the names of other networks, which are "
                    f"{', '.join(other.name for other in settings.networks if other is not network) or 'none'}."
                )
            if (other := settings.network(name)) is not None and other.join is not None:
                raise SettingsError(
                    f"network.{network.name}.reach names {name!r}, which joins bridge {other.bridge}: expected "
                    "networks of this package; its guests are reached as other machines of the LAN are."
                )


def _reserved(fields: Fields) -> tuple[tuple[int, int], ...]:
    expected = 'ports from 1 to 65535 and ranges of them, such as [22, "4646-4648"]'
    ranges = []
    for value in fields.items("reserved_ports", expected, ()):
        match = None if isinstance(value, bool) else _RANGE.fullmatch(str(value))
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= first <= last <= 65535:
            raise fields.wrong("reserved_ports", value, expected)
        ranges.append((first, last))
    return tuple(ranges)


def network_policy(fields: Fields) -> NetworkPolicy:
    """Return the policy of a network's table; other keys are ignored.

    Raises:
        Solo5Error: (of the class of `fields`) a value is invalid.
    """
    return record(NetworkPolicy, fields)


def policy_table(policy: NetworkPolicy) -> dict[str, object]:
    """Return a policy as the table that `network_policy` reads, with every key that is no None."""
    return document(policy, complete=True)


def _network_key(key: str) -> NetworkName:
    try:
        return network_name(key)
    except InvalidRequestError as error:
        raise SettingsError(f"network.{key}: {error}") from error


_TEXT, _NUMBER, _BOOLEAN = "string", "number", "bool"
NETWORK: Mapping[str, str] = {
    "join": _TEXT,
    "vlan": _NUMBER,
    "pool": _TEXT,
    POOL6_KEY: _TEXT,
    "ipv4": _TEXT,
    "gateway4": _TEXT,
    "ipv6": _TEXT,
    "gateway6": _TEXT,
    "nat66": _BOOLEAN,
    "ra": _BOOLEAN,
    "bridge": _TEXT,
    "mtu": _NUMBER,
    "masquerade": _BOOLEAN,
    "redirect": _BOOLEAN,
    "dns": SERVERS.hcl,
    "search": SEARCH.hcl,
    **{each.name: each.type.hcl for each in entries(NetworkPolicy)},
}
"""The keys of a network, and their types in a schema of Nomad: a boolean or a range is a text there."""

RESOLVER_KEYS = ("dns", "search")
REDIRECT_KEY = "redirect"
JOIN_KEYS = ("join", "vlan", "pool", POOL6_KEY)
NETWORK_KEYS = tuple(key for key in NETWORK if key not in (*JOIN_KEYS, REDIRECT_KEY))
INHERITED_KEYS = ("metadata", "connections", "fragments", "egress", "rate")
"""The keys of `[network.namespace]` that it has from the network `default` where it does not set them."""
_RANGES = ("ipv4", "gateway4", "ipv6", "gateway6")
_OF_NAMESPACE = (*_RANGES, "mtu", *RESOLVER_KEYS, "isolated", *INHERITED_KEYS, REDIRECT_KEY)
_WITH_JOIN = (*JOIN_KEYS, *_RANGES, *RESOLVER_KEYS, "isolated", "fragments", "rate", "routes")


def _resolver(fields: Fields) -> Resolver:
    return Resolver(
        servers=SERVERS.read(fields, "dns") if fields.has("dns") else (),
        search=SEARCH.read(fields, "search") if fields.has("search") else (),
    )


def _table(name: NetworkName, tables: Fields, default: Fields) -> Fields:
    """Return the table of a network, that of `[network.namespace]` with what it inherits; refuse unknown keys."""
    fields = tables.table(name)
    if name != NAMESPACE_NETWORK:
        fields.allow(*NETWORK_KEYS, *JOIN_KEYS)
        return fields
    fields.allow(*NETWORK_KEYS, *JOIN_KEYS, REDIRECT_KEY)
    for key in fields:
        if key not in _OF_NAMESPACE:
            raise SettingsError(
                f"{fields.path(key)} has no effect: expected one of {', '.join(_OF_NAMESPACE)}, the "
                "keys of the network in namespaces of other programs."
            )
    return fields.over(default.having(*INHERITED_KEYS))


def _network(name: NetworkName, fields: Fields) -> NetworkSettings:
    if name == NO_NETWORK:
        raise SettingsError(
            f"network.{name} cannot be defined: expected another name, since a NIC on it is connected to nothing."
        )
    if name == REDIRECT_NETWORK:
        raise SettingsError(
            f"network.{name} cannot be defined: expected another name, since a NIC on it has the interface of the "
            f"namespace of its task. {REDIRECT_KEY} = true in network.{NAMESPACE_NETWORK} permits it."
        )
    if fields.has("join"):
        return _joining(name, fields)
    for key in JOIN_KEYS:
        if fields.has(key):
            raise SettingsError(f"{fields.path(key)} is set without join: expected the name of a bridge as join.")
    bridge = _link_name(fields, "bridge", default_bridge(name))
    without_ipv4 = _is_without_ipv4(name, fields)
    chosen = not fields.has("ipv4") or fields.is_boolean("ipv4")
    ipv4 = None if chosen else fields.parsed("ipv4", range4)
    gateway4 = fields.parsed("gateway4", IPv4Address) if fields.has("gateway4") else None
    if ipv4 is not None and ipv4.prefixlen > 30:
        raise fields.wrong("ipv4", str(ipv4), "room for a gateway and a guest: a prefix of at most 30")
    if gateway4 is not None and (ipv4 is None or not _is_host(gateway4, ipv4)):
        raise fields.wrong("gateway4", str(gateway4), "a host address inside the network's ipv4 range")
    # 68 is the smallest MTU of IPv4 (RFC 791), 65521 the largest of a tap.
    mtu = fields.integer("mtu", low=68, high=65521) if fields.has("mtu") else None
    ipv6 = ipv6_settings(fields, MTU if mtu is None else mtu)
    if without_ipv4 and ipv6 is None:
        raise fields.wrong("ipv4", False, "a range, or ipv6 = true beside ipv4 = false")
    policy = network_policy(fields)
    check_within(
        policy.reserved_addresses, [each for each in (ipv4, ipv6 and ipv6.prefix) if each], fields.path(RESERVED_KEY)
    )
    return NetworkSettings(
        name=name,
        bridge=bridge,
        ipv4=ipv4,
        without_ipv4=without_ipv4,
        gateway4=gateway4,
        mtu=mtu,
        masquerade=fields.boolean("masquerade", default=not without_ipv4),
        policy=policy,
        ipv6=ipv6,
        redirect=fields.boolean(REDIRECT_KEY, default=False),
        without_ipv6=name == NAMESPACE_NETWORK and ipv6 is None and fields.has("ipv6"),
        resolver=_resolver(fields),
    )


def _is_without_ipv4(name: NetworkName, fields: Fields) -> bool:
    """Return whether `ipv4 = false` is set, for guests with IPv6 only."""
    if not fields.has("ipv4") or not fields.is_boolean("ipv4") or fields.boolean("ipv4"):
        return False
    if name == NAMESPACE_NETWORK:
        raise fields.wrong("ipv4", False, "a range: guests in a namespace of other programs have IPv4")
    for key in ("masquerade", "dhcp"):  # of IPv4
        if fields.has(key) and fields.boolean(key):
            raise fields.wrong(key, True, f"no {key} beside ipv4 = false")
    return True


def _joining(name: NetworkName, fields: Fields) -> NetworkSettings:
    """Return a network that joins a bridge of others."""
    for key in NETWORK_KEYS:
        if key not in _WITH_JOIN and fields.has(key):
            raise SettingsError(
                f"{fields.path(key)} is set beside join: expected one of {', '.join(_WITH_JOIN)}, since the bridge "
                "and what it forwards belong to others."
            )
    bridge = _link_name(fields, "join")
    ipv4 = fields.parsed("ipv4", range4) if fields.has("ipv4") else None
    gateway4 = fields.parsed("gateway4", IPv4Address) if fields.has("gateway4") else None
    pool = fields.parsed("pool", address_pool) if fields.has("pool") else None
    if ipv4 is not None and ipv4.prefixlen > 30:
        raise fields.wrong("ipv4", str(ipv4), "the LAN's range, with a prefix of at most 30")
    if gateway4 is not None and (ipv4 is None or not _is_host(gateway4, ipv4)):
        raise fields.wrong("gateway4", str(gateway4), "the address of a router inside the network's ipv4 range")
    if pool is not None and (ipv4 is None or not all(_is_host(address, ipv4) for address in pool)):
        raise fields.wrong("pool", fields.text("pool"), "addresses inside the network's ipv4 range")
    if pool is not None and gateway4 is not None and pool[0] <= gateway4 <= pool[1]:
        raise fields.wrong("pool", fields.text("pool"), f"a pool without gateway4, {gateway4}")
    may_send6, ipv6, pool6 = joined_ipv6(fields)
    return NetworkSettings(
        name=name,
        bridge=bridge,
        ipv4=ipv4,
        gateway4=gateway4,
        masquerade=False,
        policy=network_policy(fields),
        join=Join(
            vlan=fields.integer("vlan", low=1, high=4094) if fields.has("vlan") else 0,
            pool=pool,
            ipv6=may_send6,
            pool6=pool6,
        ),
        ipv6=ipv6,
        resolver=_resolver(fields),
    )


def _link_name(fields: Fields, key: str, default: str | None = None) -> str:
    name = fields.text(key, default)
    if not _LINK.fullmatch(name) or name in (".", ".."):
        raise fields.wrong(key, name, "a link name of at most 15 letters, digits, '_', '.' or '-'")
    return name


def of_namespace(settings: Settings, mtu: int | None, *, ipv6: bool = False) -> Settings:
    """Return the settings in a namespace of other programs, such as a Nomad group's: those of its only network.

    Its ranges, `isolated`, MTU and packet filter are those of `[network.namespace]`. The MTU and each key of the packet
    filter that is not set there is that of the network `default`, and the ranges are chosen. It has IPv6 where the
    namespace has, unless `ipv6 = false` is set there, or an MTU below the smallest of IPv6. What concerns the host's
    other networks does not apply: beyond the namespace, its guests have the namespace's addresses.

    Args:
        settings: of the host.
        mtu: of the namespace's uplink; None without one.
        ipv6: the namespace's uplink has an IPv6 address besides link-local ones.
    """
    default = settings.network(DEFAULT_NETWORK) or NetworkSettings(name=DEFAULT_NETWORK, bridge="")
    found = settings.network(NAMESPACE_NETWORK)
    policy = replace(default.policy, isolated=False)
    base = found or replace(default, ipv4=None, gateway4=None, ipv6=None, policy=policy)
    wanted = base.mtu or default.mtu
    least = default_mtu(mtu) if wanted is None else wanted if mtu is None else min(mtu, wanted)
    six = replace(base.ipv6 or Ipv6(), nat66=True, ra=False)
    own = NetworkSettings(
        name=NAMESPACE_NETWORK,
        bridge=default_bridge(NAMESPACE_NETWORK),
        ipv4=base.ipv4,
        gateway4=base.gateway4,
        mtu=least,
        ipv6=six if ipv6 and not base.without_ipv6 and least >= IPV6_MTU else None,
        policy=replace(base.policy, routed=False, reach=(), host=(), dhcp=False),
        shared=True,
    )
    return Settings(networks=(own,))


def default_mtu(uplink: int | None, *, ipv6: bool = False) -> int:
    """Return the MTU of a network without `mtu`: that of the uplink, at most 1500.

    A guest that sends larger packets than the uplink's needs path MTU discovery, which unikernels seldom have.

    Args:
        uplink: the MTU of the link of the default route, in bytes; None: there is none.
        ipv6: the network has IPv6, whose smallest MTU is 1280.
    """
    mtu = MTU if uplink is None else min(MTU, uplink)
    return max(mtu, IPV6_MTU) if ipv6 else mtu


def permits_redirect(settings: Settings) -> bool:
    """Return whether a guest may have the interface of the namespace of other programs in which it runs."""
    found = settings.network(NAMESPACE_NETWORK)
    return found is not None and found.redirect


def default_bridge(name: NetworkName) -> str:
    """Return `solo5-NAME`; if that is longer than 15 characters, `solo5-` with a prefix and a hash of the name."""
    bridge = f"solo5-{name}"
    if len(bridge) <= _LINK_MAX:
        return bridge
    return f"solo5-{name[:4]}{hashlib.sha256(name.encode()).hexdigest()[:5]}"


def _is_host(address: IPv4Address, network: IPv4Network) -> bool:
    return address in network and address not in (network.network_address, network.broadcast_address)


def _check_distinct(networks: tuple[NetworkSettings, ...]) -> None:
    for index, one in enumerate(networks):
        for other in networks[:index]:
            if one.bridge == other.bridge:
                _check_one_bridge(one, other)
            if one.ipv4 and other.ipv4 and one.ipv4.overlaps(other.ipv4):
                raise SettingsError(
                    f"network.{one.name}.ipv4 is {one.ipv4}, which overlaps network.{other.name}'s "
                    f"{other.ipv4}: expected a range of its own."
                )
            _check_prefixes(one, other)


def _check_prefixes(one: NetworkSettings, other: NetworkSettings) -> None:
    prefix, others = (one.ipv6 and one.ipv6.prefix), (other.ipv6 and other.ipv6.prefix)
    if prefix and others and prefix.overlaps(others):
        raise SettingsError(
            f"network.{one.name}.ipv6 is {prefix}, which overlaps network.{other.name}'s {others}: expected a "
            "prefix of its own."
        )


def _check_one_bridge(one: NetworkSettings, other: NetworkSettings) -> None:
    """Check that two networks with one bridge join it with different VLANs."""
    if one.join is None or other.join is None:
        key = "bridge" if one.join is None else "join"
        raise SettingsError(
            f"network.{one.name}.{key} is {one.bridge!r}, as network.{other.name}'s: expected a bridge of its own."
        )
    if one.join.vlan == other.join.vlan:
        raise SettingsError(
            f"network.{one.name} joins {one.bridge!r} with the VLAN of network.{other.name}: expected another bridge, "
            "or another vlan."
        )
