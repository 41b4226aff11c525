"""A network, as it is set and in use: what it has, what it permits, and how it joins a LAN.

The class of a setting says when it is read: NetworkTraits at the first reservation on a network, NetworkPolicy also at
a restart of solo5-networkd.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Annotated

from solo5_systemd.base.errors import SettingsError
from solo5_systemd.base.names import NetworkName
from solo5_systemd.settings.addresses import AddressRange, IpNetwork, Reserved, Routes
from solo5_systemd.settings.egress import Egress
from solo5_systemd.settings.rate import UNLIMITED, Rate
from solo5_systemd.settings.records import integer, setting, text
from solo5_systemd.settings.resolver import UNSET, Resolver

HOST = "host"
"""A network of the host that this package makes, where every key has its meaning."""

LAN = "lan"
"""One on an existing bridge, with `join`."""

NAMESPACE = "namespace"
"""That in the network namespaces of other programs."""

INHERITED = "inherited"
"""The same, which has the key from the network `default` where it does not set it."""

_HOST_PORT = r"([0-9]{1,5})/(tcp|udp)"


def _host_port(given: str) -> str:
    match = re.fullmatch(_HOST_PORT, given, re.ASCII)
    if match is None or not 1 <= int(match[1]) <= 65535:
        raise SettingsError(f'{given!r} is not a port of the host: expected one such as "53/udp" or "8080/tcp".')
    return f"{int(match[1])}/{match[2]}"


@dataclass(frozen=True, kw_only=True)
class NetworkTraits:
    """What a network keeps until its last task has ended, as it is set. `needs`: a key that each requires."""

    # fmt: off
    masquerade: bool = setting(
        "true: IPv4 packets that leave the host have the host's address as source.", default=True
    )
    nat66: bool = setting(
        "true: IPv6 packets that leave the host have the host's address as source.",
        default=False, needs="ipv6", label="NAT66",
    )
    ra: bool = setting(
        "true: guests give themselves their leased IPv6 address, by router advertisements; requires dnsmasq-base.",
        default=False, needs="ipv6", label="Advertised",
    )
    # fmt: on


@dataclass(frozen=True, kw_only=True)
class NetworkPolicy:
    """What a network's packet filter accepts in addition to published ports and outgoing connections.

    `on`: the kinds of networks that can have a key, by default HOST; `label`: its name in `solo5ctl network inspect`,
    where that is not the key in other letters.
    """

    # fmt: off
    routed: bool = setting(
        "true: clients with a route to the network reach ports of its guests that are not published.", default=False
    )
    reach: tuple[NetworkName, ...] = setting(
        "Other networks to whose guests the guests of this one can connect.", default=(), label="Reaches"
    )
    isolated: bool = setting(
        "true: guests of this network do not reach each other.", default=False, on=(HOST, LAN, NAMESPACE)
    )
    host: tuple[Annotated[str, text(_host_port)], ...] = setting(
        'Ports of the host, at any of its addresses, that guests can connect to: ["53/udp", "8080/tcp"].', default=()
    )
    metadata: bool = setting(
        "true: guests reach the metadata services of clouds, which have credentials of the machine.",
        default=False, on=(HOST, INHERITED),
    )
    connections: Annotated[int, integer(16, 1 << 20)] = setting(
        # 1/64 of nf_conntrack_max of a host with 4 GiB or more
        "Connection limit of each guest, 16 to 1048576.", default=4096, on=(HOST, INHERITED),
    )
    fragments: bool = setting(
        "true: guests can send fragments of datagrams, which the host reassembles.",
        default=False, on=(HOST, LAN, INHERITED),
    )
    dhcp: bool = setting(
        "true: guests get their leased address by DHCP; requires dnsmasq-base.", default=False, label="DHCP"
    )
    egress: Egress = setting(
        'All destinations to which guests can open connections: ["10.0.0.0/8:5432/tcp"]; [] permits none.',
        default=None, shown="everything that the other keys permit", on=(HOST, INHERITED), example=["10.0.0.0/8"],
    )
    rate: Rate = setting(
        'Rate limits of each NIC, per second, which a job can lower: ["sent=10M", "received-packets=20000"].',
        default=UNLIMITED, on=(HOST, LAN, INHERITED), label="Rate limits",
    )
    sleep: bool = setting(
        "false: tasks in this network have no idle time, after which they would sleep.",
        default=True, on=(HOST, LAN, INHERITED),
    )
    idle_min: Annotated[int, integer(5, 365 * 86400)] = setting(
        "Least idle time of a task in seconds, 5 to 31536000.",
        default=5, on=(HOST, LAN, INHERITED), label="Least idle seconds",
    )
    reserved_addresses: Reserved = setting(
        'Addresses that no guest gets, inside ipv4 or ipv6: ["10.89.0.2-10.89.0.20"].', default=()
    )
    routes: Routes = setting(
        "Address ranges that the host may route to a guest: a task requests a part of one by route=.",
        default=(), on=(HOST, LAN),
    )
    # fmt: on


CLOSED = NetworkPolicy()


@dataclass(frozen=True, kw_only=True)
class Join:
    """What is set for a network that joins an existing bridge, by the keys of `NetworkKeys`; `vlan` 0: it is unset."""

    vlan: int = 0
    pool: AddressRange | None = None
    ipv6: bool = False
    pool6: AddressRange | None = None


@dataclass(frozen=True, kw_only=True)
class Network(NetworkTraits):
    """A network as it is set, and in use: range, gateway and MTU are then fixed until its last release.

    Attributes:
        join: the bridge is an existing one of others; None: one of solo5-networkd.
        shared: it is in the network namespace of other programs, which share their loopback with its guests.
        ipv4, ipv6: its range and its prefix; None: it is not chosen yet, or there is none, or, of a joined network,
            none from which addresses are leased.
        gateway4, gateway6: the host's address in each, or that of a joined network's router; as these.
        without_ipv4: it has no range, and none is chosen: guests have IPv6 only.
        has_ipv6: it has a prefix, or one is chosen; None: that is not set.
        mtu: of its bridge, in bytes; 0: as `default_mtu`, or of the bridge that it joins, which may be missing.
        resolver: of its guests, if it is set; of a network in use as it was set then.
    """

    name: NetworkName
    bridge: str
    ipv4: IPv4Network | None = None
    gateway4: IPv4Address | None = None
    ipv6: IPv6Network | None = None
    gateway6: IPv6Address | None = None
    without_ipv4: bool = False
    has_ipv6: bool | None = None
    mtu: int = 0
    resolver: Resolver = UNSET
    policy: NetworkPolicy = CLOSED
    join: Join | None = None
    shared: bool = False

    def inside(self, version: int) -> IpNetwork | None:
        """Return its range of IPv4, or its prefix."""
        return self.ipv4 if version == 4 else self.ipv6

    @property
    def ranges(self) -> Sequence[IpNetwork]:
        """Its range and its prefix."""
        return [each for each in (self.ipv4, self.ipv6) if each]

    @property
    def routes6(self) -> bool:
        """Whether the host is the router of its IPv6 prefix: not on a joined bridge."""
        return self.ipv6 is not None and self.join is None
