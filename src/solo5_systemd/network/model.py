"""The values of networking: requests, leases, lease records, networks, repairs.

`to_wire` and `from_wire` convert to and from tuples in the order of the D-Bus signatures below. Lease records have the
same form.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)
from typing import Any, NewType, Self

from solo5_systemd.decode import Fields
from solo5_systemd.errors import InvalidRequestError
from solo5_systemd.names import DeviceName, NetworkName, TaskName, device_name, network_name, task_namespace
from solo5_systemd.network.drops import DROPS_SIGNATURE, Dropped, DropsWire
from solo5_systemd.network.guest_limits import NO_LIMITS, Limits
from solo5_systemd.settings.address_pool import address_pool, address_pool6
from solo5_systemd.settings.guest_routes import Routes
from solo5_systemd.settings.ipv6 import Ipv6
from solo5_systemd.settings.model import (
    CLOSED,
    POLICY_KEYS,
    Join,
    NetworkPolicy,
    NetworkSettings,
    network_policy,
)
from solo5_systemd.settings.reserved_addresses import RESERVED_KEY
from solo5_systemd.settings.resolver import UNSET, Resolver, hostname
from solo5_systemd.settings.resolver import resolver as parse_resolver

MacAddress = NewType("MacAddress", str)
"""Six lower-case hexadecimal octets with colons, unicast, not all zero (a tender takes that for "unset")."""

_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}", re.ASCII)

IpAddress = IPv4Address | IPv6Address

NIC_SIGNATURE = "(sssss)"
PORT_SIGNATURE = "(ssqqs)"
LEASE_SIGNATURE = "(sssssssqss)"
NAMES_SIGNATURE = "(asass)"

EVERY_IPV6 = IPv6Address(0)
"""`PortRequest.host_ip` of a port that is published at every IPv6 address only."""


class Protocol(StrEnum):
    """The transport protocol of a published port."""

    TCP = "tcp"
    UDP = "udp"


def mac_address(text: str) -> MacAddress:
    """Parse a MAC address.

    Raises:
        InvalidRequestError: malformed, a group address, or all zero.
    """
    lower = text.lower()
    if not _MAC.fullmatch(lower) or int(lower[:2], 16) & 1 or lower == "00:00:00:00:00:00":
        raise InvalidRequestError(
            f"MAC address {text!r} is not usable: expected six hexadecimal octets with colons, unicast and "
            "not all zero, such as 02:00:5e:10:00:01."
        )
    return MacAddress(lower)


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network in use. Its range and gateway are fixed from its first reservation until its last release.

    Attributes:
        ipv4: its range; None: guests have IPv6 only, or, of a joined network, no leased address.
        gateway4: the bridge's address, or that of a joined network's router; None without one.
        mtu: of the bridge.
        join: the bridge is one of others; None: one of this service.
        shared: the bridge is in the network namespace of other programs, which share their loopback with its guests.
        ipv6: its prefix; None: guests have no leased IPv6 address, and on a bridge of this service no IPv6.
        gateway6: the bridge's address, or that of a joined network's router; None without one.
        nat66: IPv6 packets that leave the host get the host's address as their source.
        ra: the host sends router advertisements, and the leased IPv6 addresses are those of SLAAC.
        dns6: the name servers in these.
    """

    name: NetworkName
    bridge: str
    ipv4: IPv4Network | None
    gateway4: IPv4Address | None
    mtu: int
    masquerade: bool
    policy: NetworkPolicy = CLOSED
    join: Join | None = None
    shared: bool = False
    ipv6: IPv6Network | None = None
    gateway6: IPv6Address | None = None
    nat66: bool = False
    ra: bool = False
    dns6: tuple[IPv6Address, ...] = ()

    @property
    def routes6(self) -> bool:
        """Whether the host is the router of its IPv6 prefix: not on a bridge of others."""
        return self.ipv6 is not None and self.join is None


@dataclass(frozen=True, kw_only=True)
class NicRequest:
    """A NET_BASIC device of a manifest and its network; a None address or MAC is chosen by the service.

    Its limits are not in its wire form, but beside it (`guest_limits.LIMITS_SIGNATURE`).
    """

    nic: DeviceName
    network: NetworkName = NetworkName("default")
    ipv4: IPv4Address | None = None
    mac: MacAddress | None = None
    limits: Limits = NO_LIMITS
    ipv6: IPv6Address | None = None

    def to_wire(self) -> tuple[str, str, str, str, str]:
        """Return the fields in the order of NIC_SIGNATURE; empty for None."""
        return (self.nic, self.network, str(self.ipv4 or ""), self.mac or "", str(self.ipv6 or ""))

    @classmethod
    def from_wire(cls, wire: Sequence[str]) -> "NicRequest":
        """Parse a value of D-Bus or of a lease record.

        Raises:
            InvalidRequestError: a field is malformed.
        """
        nic, network, ipv4, mac, ipv6 = wire
        return cls(
            nic=device_name(nic),
            network=network_name(network),
            ipv4=ipv4_address(ipv4) if ipv4 else None,
            mac=mac_address(mac) if mac else None,
            ipv6=ipv6_address(ipv6) if ipv6 else None,
        )


@dataclass(frozen=True, kw_only=True)
class PortRequest:
    """A published port: a port of the host that is forwarded to a guest.

    `host_ip` None: at every local address of the families that the NIC has; EVERY_IPV6: at every IPv6 address.
    """

    nic: DeviceName
    host_ip: IpAddress | None = None
    host_port: int
    port: int
    protocol: Protocol

    def to_wire(self) -> tuple[str, str, int, int, str]:
        """Return the fields in the order of PORT_SIGNATURE; empty for None."""
        return (self.nic, str(self.host_ip or ""), self.host_port, self.port, self.protocol.value)

    @classmethod
    def from_wire(cls, wire: tuple[str, str, int, int, str]) -> "PortRequest":
        """Parse a D-Bus value.

        Raises:
            InvalidRequestError: a field is malformed.
        """
        nic, host_ip, host_port, port, protocol = wire
        return cls(
            nic=device_name(nic),
            host_ip=host_address(host_ip) if host_ip else None,
            host_port=port_number(host_port),
            port=port_number(port),
            protocol=port_protocol(protocol),
        )


@dataclass(frozen=True, kw_only=True)
class Lease:
    """The network, address, MAC and tap of one NIC, exclusive from the reservation until the release.

    Attributes:
        ipv4: None: the network has IPv6 only, or the guest of a joined one has an address of the LAN's DHCP, or none.
        gateway4: None: there is none.
        ipv6: None: the network has no IPv6 prefix.
        gateway6: as `gateway4`.
    """

    nic: DeviceName
    network: NetworkName
    bridge: str
    tap: str
    ipv4: IPv4Interface | None
    gateway4: IPv4Address | None
    mac: MacAddress
    mtu: int
    ipv6: IPv6Interface | None = None
    gateway6: IPv6Address | None = None

    @property
    def address(self) -> IPv4Address | None:
        """Return the leased IPv4 address without its prefix length."""
        return self.ipv4.ip if self.ipv4 else None

    @property
    def address6(self) -> IPv6Address | None:
        """Return the leased IPv6 address without its prefix length."""
        return self.ipv6.ip if self.ipv6 else None

    @property
    def addresses(self) -> tuple[IpAddress, ...]:
        """Return the leased addresses of both families."""
        return tuple(address for address in (self.address, self.address6) if address is not None)

    @property
    def first_address(self) -> IpAddress | None:
        """Return the address by which the host probes and services register the guest: that of IPv4, if it has one."""
        return next(iter(self.addresses), None)

    def request(self, limits: Limits = NO_LIMITS) -> NicRequest:
        """Return the request for the same addresses, with these limits."""
        return NicRequest(
            nic=self.nic, network=self.network, ipv4=self.address, mac=self.mac, ipv6=self.address6, limits=limits
        )

    def to_wire(self) -> tuple[str, str, str, str, str, str, str, int, str, str]:
        """Return the fields in the order of LEASE_SIGNATURE; empty for None."""
        return (
            self.nic,
            self.network,
            self.bridge,
            self.tap,
            str(self.ipv4 or ""),
            str(self.gateway4 or ""),
            self.mac,
            self.mtu,
            str(self.ipv6 or ""),
            str(self.gateway6 or ""),
        )

    @classmethod
    def from_wire(cls, wire: Sequence[Any]) -> "Lease":
        """Parse a value of D-Bus or of a lease record.

        Raises:
            InvalidRequestError: a field is malformed.
        """
        nic, network, bridge, tap, ipv4, gateway4, mac, mtu, ipv6, gateway6 = wire
        try:
            interface = IPv4Interface(ipv4) if ipv4 else None
        except ValueError as error:
            raise InvalidRequestError(f"lease address {ipv4!r} is not an IPv4 interface.") from error
        try:
            interface6 = IPv6Interface(ipv6) if ipv6 else None
        except ValueError as error:
            raise InvalidRequestError(f"lease address {ipv6!r} is not an IPv6 interface.") from error
        return cls(
            nic=device_name(nic),
            network=network_name(network),
            bridge=bridge,
            tap=tap,
            ipv4=interface,
            gateway4=ipv4_address(gateway4) if gateway4 else None,
            mac=mac_address(mac),
            mtu=mtu,
            ipv6=interface6,
            gateway6=ipv6_address(gateway6) if gateway6 else None,
        )


def destinations(port: PortRequest, lease: Lease) -> tuple[IpAddress, ...]:
    """Return the guest's addresses to which a published port leads: those of the families that both have."""
    return tuple(each for each in lease.addresses if port.host_ip is None or port.host_ip.version == each.version)


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """All leases and published ports of one task.

    Attributes:
        limits: of the NICs that request any, whatever the network's policy.
    """

    task: TaskName
    leases: tuple[Lease, ...] = ()
    ports: tuple[PortRequest, ...] = ()
    limits: Mapping[DeviceName, Limits] = field(default_factory=dict)

    @property
    def namespace(self) -> str:
        """Return the path of the task's own network namespace, which has its taps; empty: it has no NIC."""
        return task_namespace(self.task) if self.leases else ""

    def routes(self, lease: Lease) -> Routes:
        """Return the ranges behind a NIC of this reservation."""
        return self.limits.get(lease.nic, NO_LIMITS).routes

    def lease(self, nic: DeviceName) -> Lease:
        """Return the lease of a NIC of this reservation."""
        return next(lease for lease in self.leases if lease.nic == nic)


@dataclass(frozen=True, kw_only=True)
class GuestNames:
    """What a guest gets by DHCP besides its lease.

    Attributes:
        resolver: name servers and search domains; empty: none.
        hostname: its host name; empty: the task's name.
    """

    resolver: Resolver = UNSET
    hostname: str = ""

    def to_wire(self) -> tuple[list[str], list[str], str]:
        """Return the fields in the order of NAMES_SIGNATURE."""
        return ([*map(str, self.resolver.servers)], [*self.resolver.search], self.hostname)

    @classmethod
    def from_wire(cls, wire: Sequence[Any]) -> Self:
        """Parse a D-Bus value.

        Raises:
            InvalidRequestError: a field is malformed.
        """
        servers, search, name = wire
        return cls(resolver=parse_resolver(servers, search), hostname=hostname(name) if name else "")


UNNAMED = GuestNames()


def limits_of(nics: Sequence[NicRequest]) -> Mapping[DeviceName, Limits]:
    """Return the limits of the NICs that request any."""
    return {nic.nic: nic.limits for nic in nics if nic.limits != NO_LIMITS}


def with_limits(nics: Sequence[NicRequest], wire: Sequence[Sequence[str]]) -> tuple[NicRequest, ...]:
    """Return NICs with their limits, a list of LIMITS_SIGNATURE.

    Raises:
        InvalidRequestError: malformed, or of another NIC.
    """
    limits = {nic: Limits.from_wire(*texts) for nic, *texts in wire}
    if unknown := limits.keys() - {nic.nic for nic in nics}:
        raise InvalidRequestError(f"limits are set for NIC {min(unknown)}: expected NICs of the request.")
    return tuple(replace(nic, limits=limits.get(nic.nic, NO_LIMITS)) for nic in nics)


class LeaseState(StrEnum):
    """The state of a lease record: RESERVED → ATTACHED → RELEASING → removed; a reservation can expire."""

    RESERVED = "reserved"
    ATTACHED = "attached"
    RELEASING = "releasing"


@dataclass(frozen=True, kw_only=True)
class LeaseRecord:
    """A reservation with its request and its state.

    Attributes:
        reservation: the leases and ports.
        nics: the NICs as requested, to recognise a repeated request.
        state: RESERVED, ATTACHED or RELEASING.
        expires: the second of CLOCK_BOOTTIME in which a reservation expires, and from which on an attached task
            without a unit that runs is an orphan.
        namespace: path of the network namespace that has taps and bridges; empty: the host's own.
        names: what its guest gets by DHCP.
        moves: how often ports were moved to or from it: of two records with one port, the one with more moves has it.
        lender: the task whose ports it has, and to which they return with its release; empty: none.
    """

    reservation: Reservation
    nics: tuple[NicRequest, ...]
    state: LeaseState
    expires: int
    namespace: str = ""
    names: GuestNames = UNNAMED
    moves: int = 0
    lender: str = ""

    def serves(self, nics: Sequence[NicRequest], ports: Sequence[PortRequest]) -> bool:
        """Return whether this is the reservation of a request: a repeated one, or one for what it has."""
        return self._with_leases(nics) == self._with_leases(self.nics) and self.reservation.ports == tuple(ports)

    def _with_leases(self, nics: Sequence[NicRequest]) -> Sequence[NicRequest]:
        """Return requests with the addresses that they have by now, where they leave them open."""
        leases = {lease.nic: lease for lease in self.reservation.leases}
        return [_with_lease(nic, leases.get(nic.nic)) for nic in nics]


def _with_lease(nic: NicRequest, lease: Lease | None) -> NicRequest:
    if lease is None:
        return nic
    return replace(nic, ipv4=nic.ipv4 or lease.address, mac=nic.mac or lease.mac, ipv6=nic.ipv6 or lease.address6)


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """The target of a probe: a TCP connection, or a UDP datagram that the guest must echo.

    Attributes:
        namespace: path of the network namespace that has the address; empty: the host's own.
    """

    protocol: Protocol
    address: IpAddress
    port: int
    namespace: str = ""

    def __str__(self) -> str:
        address = f"[{self.address}]" if self.address.version == 6 else str(self.address)
        return f"{self.protocol} {address}:{self.port}"


@dataclass(frozen=True, kw_only=True)
class Preview:
    """The reservation that a request would get, and the nft commands that would add its elements."""

    reservation: Reservation
    nft: str


def ipv4_address(text: str) -> IPv4Address:
    """Parse an IPv4 address.

    Raises:
        InvalidRequestError: malformed.
    """
    try:
        return IPv4Address(text)
    except ValueError as error:
        raise InvalidRequestError(
            f"address {text!r} is not an IPv4 address: expected four numbers such as 10.89.0.7."
        ) from error


def ipv6_address(text: str) -> IPv6Address:
    """Parse an IPv6 address without a zone.

    Raises:
        InvalidRequestError: malformed.
    """
    try:
        address = IPv6Address(text)
    except ValueError:
        address = None
    if address is None or address.scope_id is not None:
        raise InvalidRequestError(f"address {text!r} is not an IPv6 address: expected one such as 2001:db8:1::7.")
    return address


def host_address(text: str) -> IpAddress:
    """Parse an address of the host at which a port is published.

    Raises:
        InvalidRequestError: malformed.
    """
    if ":" in text:
        return ipv6_address(text)
    return ipv4_address(text)


def port_number(port: int) -> int:
    """Check a TCP or UDP port.

    Raises:
        InvalidRequestError: outside 1–65535.
    """
    if not 1 <= port <= 65535:
        raise InvalidRequestError(f"port {port} does not exist: expected 1 to 65535.")
    return port


def port_protocol(text: str) -> Protocol:
    """Parse a port's protocol.

    Raises:
        InvalidRequestError: neither tcp nor udp.
    """
    try:
        return Protocol(text)
    except ValueError as error:
        raise InvalidRequestError(f"protocol {text!r} cannot be published: expected tcp or udp.") from error


UNREPAIRED = "not repaired: "
"""The beginning of `Repair.what` for what only an operator can repair."""


@dataclass(frozen=True, kw_only=True)
class Repair:
    """A repair of the network of `tasks`; `what` is its description in the log and in task events."""

    tasks: Sequence[TaskName]
    what: str


@dataclass(frozen=True, kw_only=True)
class RecordedRepair:
    """A repair and its time.

    Attributes:
        time: microseconds since the epoch.
        what: its description.
        tasks: those whose network it concerned; of many, the first ones.
        others: the number of further ones.
    """

    time: int
    what: str
    tasks: tuple[TaskName, ...]
    others: int = 0


OVERVIEW_SIGNATURE = f"(ssssqbbuubasbasbubba(st)a(st)(bqsbs)(sssasasas){DROPS_SIGNATURE}(ssbbb)s)"

_Texts = Sequence[str]
_Counts = Sequence[Sequence[Any]]
_Join = Sequence[Any]
_More = Sequence[Any]
_Ipv6 = Sequence[Any]
_Usage = tuple[str, str, str, str, int, bool, bool, int, int]
_Details = tuple[_Counts, _Counts, _Join, _More, DropsWire, _Ipv6, str]
Wire = tuple[*_Usage, bool, _Texts, bool, _Texts, bool, int, bool, bool, *_Details]


@dataclass(frozen=True, kw_only=True)
class NetworkOverview:
    """A network, in use or only configured, as `solo5ctl network` shows it.

    Attributes:
        name: its name in the settings.
        bridge: the name of its bridge.
        ipv4: its range; None where the settings have none and the network is not in use, and `without_ipv4`.
        gateway4: the bridge's address; None as above. Of a joined network: its router's, or None.
        mtu: in bytes; of a joined network whose bridge is missing, 0.
        masquerade: packets that leave the host get the host's address as their source.
        up: the bridge exists.
        leases: the number of leases.
        free: the number of free addresses; of a joined network without a pool, 0.
        policy: the options of the packet filter.
        dropped: the counts of dropped packets of its guests.
        join: the bridge is one of others.
        resolver: name servers and search domains of its guests; empty: the host's.
        ipv6: its prefix; None where it has none, or is not in use and the settings have none.
        gateway6: the bridge's address; None as above.
        nat66: IPv6 packets that leave the host get the host's address as their source.
        ra: the host sends router advertisements.
        without_ipv4: guests have IPv6 only.
        namespace: path of the network namespace of other programs that has it; empty: the host's own.
    """

    name: NetworkName
    bridge: str
    ipv4: IPv4Network | None = None
    gateway4: IPv4Address | None = None
    mtu: int
    masquerade: bool
    up: bool
    leases: int
    free: int
    policy: NetworkPolicy = CLOSED
    dropped: Dropped = field(default_factory=Dropped)
    join: Join | None = None
    resolver: Resolver = UNSET
    ipv6: IPv6Network | None = None
    gateway6: IPv6Address | None = None
    nat66: bool = False
    ra: bool = False
    without_ipv4: bool = False
    namespace: str = ""

    @property
    def has_pool(self) -> bool:
        """Whether the number of free addresses is known."""
        if self.join is not None:
            return self.join.pool is not None
        return self.ipv4 is not None or self.without_ipv4

    @classmethod
    def of(
        cls,
        network: Network | NetworkSettings,
        *,
        up: bool = False,
        leases: int = 0,
        free: int = 0,
        dropped: Dropped | None = None,
    ) -> Self:
        """Return the overview of a network in use, or of one that is only configured."""
        ipv6 = _ipv6_of(network)
        return cls(
            name=network.name,
            bridge=network.bridge,
            ipv4=network.ipv4,
            gateway4=network.gateway4,
            mtu=network.mtu or 0,
            masquerade=network.masquerade,
            up=up,
            leases=leases,
            free=free,
            policy=network.policy,
            dropped=dropped or Dropped(),
            join=network.join,
            ipv6=ipv6.prefix,
            gateway6=ipv6.gateway,
            nat66=ipv6.nat66,
            ra=ipv6.ra,
            without_ipv4=is_without_ipv4(network),
        )

    def to_wire(self) -> Wire:
        """Return the fields in the order of OVERVIEW_SIGNATURE; empty for None."""
        ipv4, gateway4 = str(self.ipv4 or ""), str(self.gateway4 or "")
        usage = (self.up, self.leases, self.free)
        policy = self.policy
        opened = (policy.routed, [*map(str, policy.reach)], policy.isolated, [str(port) for port in policy.host])
        counts = (_to_wire(self.dropped.refused), _to_wire(self.dropped.fragments))
        given = (policy.fragments, policy.dhcp)
        more = (*opened, policy.metadata, policy.connections, *given, *counts)
        join = self.join or Join()
        joined = [self.join is not None, join.vlan, join.pool_text, join.ipv6, join.pool6_text]
        limits = [*Limits(egress=policy.egress, rate=policy.rate, routes=policy.routes).to_wire()]
        reserved = [*map(str, policy.reserved)]
        others = [*limits, [*map(str, self.resolver.servers)], [*self.resolver.search], reserved]
        ipv6 = [str(self.ipv6 or ""), str(self.gateway6 or ""), self.nat66, self.ra, self.without_ipv4]
        last = (joined, others, self.dropped.more_to_wire(), ipv6, self.namespace)
        return (self.name, self.bridge, ipv4, gateway4, self.mtu, self.masquerade, *usage, *more, *last)

    @classmethod
    def from_wire(cls, wire: Wire) -> Self:
        """Parse a D-Bus value.

        Raises:
            InvalidRequestError: a field is malformed.
        """
        name, bridge, ipv4, gateway4, mtu, masquerade, up, leases, free, *opened, refused, fragments = wire[:-5]
        joined, others, dropped, six, namespace = wire[-5:]
        *texts, servers, search, reserved = others
        limits = Limits.from_wire(*texts)
        policy = network_policy(Fields({**dict(zip(POLICY_KEYS, opened, strict=True)), RESERVED_KEY: reserved}))
        ipv6, gateway6, nat66, ra, without_ipv4 = six
        try:
            network = IPv4Network(ipv4) if ipv4 else None
        except ValueError as error:
            raise InvalidRequestError(f"range {ipv4!r} of network {name} is not an IPv4 network.") from error
        try:
            network6 = IPv6Network(ipv6) if ipv6 else None
        except ValueError as error:
            raise InvalidRequestError(f"prefix {ipv6!r} of network {name} is not an IPv6 network.") from error
        return cls(
            name=network_name(name),
            bridge=bridge,
            ipv4=network,
            gateway4=ipv4_address(gateway4) if gateway4 else None,
            mtu=mtu,
            masquerade=masquerade,
            up=up,
            leases=leases,
            free=free,
            policy=replace(policy, egress=limits.egress, rate=limits.rate, routes=limits.routes),
            dropped=_dropped_from_wire(refused, fragments, dropped),
            join=_join_from_wire(joined),
            resolver=parse_resolver(servers, search),
            ipv6=network6,
            gateway6=ipv6_address(gateway6) if gateway6 else None,
            nat66=nat66,
            ra=ra,
            without_ipv4=without_ipv4,
            namespace=namespace,
        )


def dropped_by_namespace(networks: Iterable[NetworkOverview]) -> Mapping[str, Mapping[NetworkName, Dropped]]:
    """Return the counts of dropped packets by namespace, and by network."""
    found: dict[str, dict[NetworkName, Dropped]] = {}
    for network in networks:
        found.setdefault(network.namespace, {})[network.name] = network.dropped
    return found


def is_without_ipv4(network: Network | NetworkSettings) -> bool:
    """Return whether the guests of a network have IPv6 only, by its settings or as it is in use."""
    if isinstance(network, Network):
        return network.ipv4 is None and network.join is None
    return network.without_ipv4


def _ipv6_of(network: Network | NetworkSettings) -> Ipv6:
    if isinstance(network, Network):
        return Ipv6(prefix=network.ipv6, gateway=network.gateway6, nat66=network.nat66, ra=network.ra)
    return network.ipv6 or Ipv6()


def _to_wire(counts: Mapping[IpAddress, int]) -> _Counts:
    # The D-Bus libraries marshal a struct from a list only.
    return [[str(address), count] for address, count in counts.items()]


def _from_wire(counts: _Counts) -> Mapping[IpAddress, int]:
    return {host_address(address): count for address, count in counts}


def _dropped_from_wire(refused: _Counts, fragments: _Counts, more: DropsWire) -> Dropped:
    try:
        return Dropped.from_wire(_from_wire(refused), _from_wire(fragments), more)
    except ValueError as error:
        raise InvalidRequestError(f"the counts of dropped packets are malformed: {error}.") from error


def _join_from_wire(wire: _Join) -> Join | None:
    joined, vlan, pool, ipv6, pool6 = wire
    if not joined:
        return None
    return Join(
        vlan=vlan,
        pool=address_pool(pool) if pool else None,
        ipv6=ipv6,
        pool6=address_pool6(pool6) if pool6 else None,
    )
