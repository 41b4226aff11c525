"""The settings of /etc/solo5/*.toml, as values. units/solo5.toml has each key with an example."""

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from solo5_systemd.base.decode import Fields
from solo5_systemd.base.errors import SettingsError
from solo5_systemd.base.names import NetworkName, log_namespace
from solo5_systemd.settings.addresses import IpNetwork
from solo5_systemd.settings.network import (
    DEFAULT_NETWORK,
    IPV6_MTU,
    NAMESPACE_NETWORK,
    NOWHERE,
    check_distinct,
    default_bridge,
    default_mtu,
    parse_network,
)
from solo5_systemd.settings.network_policy import Network
from solo5_systemd.settings.node_limits import Limits
from solo5_systemd.settings.records import Type, entries, integer, record, setting, text

TASK_UIDS = range(61184, 65520)
"""The range of `DynamicUser=`: journald creates a journal file for each user above it (`users.userdb_records`)."""

_RANGE = r"([0-9]{1,5})(?:-([0-9]{1,5}))?"


def _tender_paths(fields: Fields, key: str) -> tuple[str, ...]:
    paths = fields.texts(key)
    if not paths or not all(path.startswith("/") for path in paths):  # a relative one depends on who searches
        raise fields.wrong(key, list(paths), "one or more absolute directories")
    return paths


def _quotas(fields: Fields, key: str) -> tuple[tuple[str, int], ...]:
    table = fields.table(key)
    for directory in table:
        if not directory.startswith("/") or posixpath.normpath(directory) != directory:  # it is compared as text
            raise SettingsError(
                f"{table.where} has the key {directory!r}: expected the absolute path of a directory, without '..' "
                "and without '/' at its end."
            )
    return tuple((directory, table.integer(directory, low=0, high=1 << 30)) for directory in table)


def _task_uids(text: str) -> range:
    match = re.fullmatch(r"([0-9]{1,10})-([0-9]{1,10})", text, re.ASCII)
    first, last = (int(match[1]), int(match[2])) if match else (0, 0)
    if not TASK_UIDS[0] <= first <= last <= TASK_UIDS[-1]:
        raise SettingsError(
            f"{text!r} is not a range of user IDs: expected two numbers within {TASK_UIDS[0]}-{TASK_UIDS[-1]}, the "
            "users of DynamicUser=, such as 61184-63000."
        )
    return range(first, last + 1)


def _limits(fields: Fields, key: str) -> Limits:
    table = fields.table(key)
    table.allow(*(each.name for each in entries(Limits)))
    return record(Limits, table)


def _reserved(fields: Fields, key: str) -> tuple[tuple[int, int], ...]:
    expected = 'ports from 1 to 65535 and ranges of them, such as [22, "4646-4648"]'
    ranges = []
    for value in fields.items(key, expected, None):
        match = re.fullmatch(_RANGE, str(value), re.ASCII)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= first <= last <= 65535:
            raise fields.wrong(key, value, expected)
        ranges.append((first, last))
    return tuple(ranges)


LOG_NAMESPACE = Annotated[str, text(log_namespace)]
TENDER_PATHS = Annotated[tuple[str, ...], Type(_tender_paths, list, "list(string)")]
IMAGE_STORE_MB = Annotated[int, integer(1, 1 << 30)]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings: the keys of a file, and the networks."""

    # fmt: off
    tender_paths: TENDER_PATHS = setting(
        "Directories that are searched for the tenders solo5-hvt and solo5-spt.",
        default=("/usr/bin", "/usr/local/bin", "/usr/lib/solo5", "/opt/solo5/bin"),
    )
    image_store_mb: IMAGE_STORE_MB = setting(
        "The limit of the disk usage of /var/lib/solo5/images, in MiB; where an image does not fit, those that no task "
        "has used for ten seconds are removed.", default=8192,
    )
    disk_copy_mb: Annotated[int, integer(0, 1 << 30)] = setting(
        "The most data, in MiB, that is copied for the disks of one run (ephemeral, ro) of a task, where file systems "
        "share no blocks; 0: none.", default=1024,
    )
    disk_quota_mb: Annotated[tuple[tuple[str, int], ...], Type(_quotas, dict)] = setting(
        "Directories, and the MiB that all files below each may have when a disk is made there or grows.",
        default=(), example={"/opt/nomad/data/host_volumes": 102400},
    )
    task_uids: Annotated[range, text(_task_uids, lambda uids: f"{uids[0]}-{uids[-1]}")] = setting(
        "The range of user IDs of tasks, one for each task.", default=TASK_UIDS
    )
    reserved_ports: Annotated[tuple[tuple[int, int], ...], Type(_reserved, list)] = setting(
        "Ports of the host that no task can publish.", default=(), example=[22, "4646-4648"]
    )
    log_namespace: LOG_NAMESPACE = setting(
        "The journal namespace of consoles.", default="", shown="the host's journal", example="solo5"
    )
    # fmt: on
    limits: Annotated[Limits, Type(_limits, str)] = field(default_factory=Limits)
    networks: tuple[Network, ...] = ()

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
    def ranges(self) -> Sequence[IpNetwork]:
        """The ranges and IPv6 prefixes that networks of the host are set to have."""
        return [found for each in self.networks if each.name != NAMESPACE_NETWORK for found in each.ranges]

    def network(self, name: NetworkName) -> Network | None:
        """Return the settings of a network, or None."""
        return next((network for network in (*self.networks, NOWHERE) if network.name == name), None)


def overriding(key: str) -> Any:
    """Return the field of a record that takes precedence over a key of these settings; None: it does not."""
    [meaning] = (each.metadata["meaning"] for each in entries(Settings) if each.name == key)
    return setting(meaning, default=None, shown="as /etc/solo5")


def parse_settings(document: Mapping[str, object], where: str = "") -> Settings:
    """Return the settings of a decoded document. The network `default` exists even if it is not in the document.

    Raises:
        SettingsError: an unknown key or an invalid value; the sentence begins with `where` and the key's path.
    """
    fields = Fields(document, error=SettingsError)
    try:
        fields.allow("network", *(each.name for each in entries(Settings) if each.name != "networks"))
        tables = fields.table("network")
        networks = tuple(parse_network(name, tables) for name in dict.fromkeys((DEFAULT_NETWORK, *tables)))
        check_distinct(networks)
        return replace(record(Settings, fields), networks=networks)
    except SettingsError as error:
        raise SettingsError(f"{where}: {error.sentence}" if where else error.sentence, error.hint) from error


def check_reach(settings: Settings) -> None:
    """Check that `reach` of each network contains other networks only. Called when all files are merged.

    Raises:
        SettingsError: a network does not exist, contains itself, or joins a bridge of others.
    """
    for network in settings.networks:
        others = [each.name for each in settings.networks if each is not network and each.join is None]
        for name in network.policy.reach:
            if name not in others:
                raise SettingsError(
                    f"network.{network.name}.reach names {name!r}: expected the names of other networks that join no "
                    f"bridge, which are {', '.join(others) or 'none'}."
                )


def of_namespace(settings: Settings, mtu: int | None, *, ipv6: bool = False) -> Settings:
    """Return the settings in a namespace of other programs, such as a Nomad group's: those of its only network.

    Its ranges, `isolated`, MTU and packet filter are those of `[network.namespace]`. The MTU and each key of the packet
    filter that is not set there is that of the network `default`, and the ranges are chosen. It has IPv6 where the
    namespace has, unless `ipv6 = false` is set there, or an MTU below the smallest of IPv6. What concerns the host's
    other networks does not apply: beyond the namespace, its guests have the namespace's addresses.

    Args:
        mtu: of the namespace's uplink; None without one.
        ipv6: the namespace's uplink has an IPv6 address besides link-local ones.
    """
    default = settings.network(DEFAULT_NETWORK) or Network(name=DEFAULT_NETWORK, bridge="")
    found = settings.network(NAMESPACE_NETWORK)
    policy = replace(default.policy, isolated=False)
    bridge = default_bridge(NAMESPACE_NETWORK)
    base = found or Network(name=NAMESPACE_NETWORK, bridge=bridge, policy=policy)
    wanted = base.mtu or default.mtu
    least = default_mtu(mtu) if not wanted else wanted if mtu is None else min(mtu, wanted)
    has_ipv6 = ipv6 and base.has_ipv6 is not False and least >= IPV6_MTU
    own = replace(
        base,
        mtu=least,
        ipv6=base.ipv6 if has_ipv6 else None,
        gateway6=base.gateway6 if has_ipv6 else None,
        has_ipv6=has_ipv6,
        nat66=has_ipv6,
        policy=replace(base.policy, routed=False, reach=(), host=(), dhcp=False),
        shared=True,
    )
    return Settings(networks=(own,))
