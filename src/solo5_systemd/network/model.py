"""The values of tasks' networking: requests, leases, lease records; those of networks are in `overview`.

They are records (`settings.records`): D-Bus and the files in /run have their fields by name.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface
from typing import Annotated, NewType

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import DeviceName, NetworkName, TaskName, task_name, task_namespace
from solo5_systemd.settings.addresses import Routes, is_within
from solo5_systemd.settings.egress import Egress, intersection
from solo5_systemd.settings.network_policy import NetworkPolicy
from solo5_systemd.settings.rate import UNLIMITED, Rate, lower
from solo5_systemd.settings.records import TYPES, integer, text
from solo5_systemd.settings.resolver import UNSET, Resolver, hostname

MacAddress = NewType("MacAddress", str)
"""Six lower-case hexadecimal octets with colons, unicast, not all zero (a tender takes that for "unset")."""

_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}", re.ASCII)

IpAddress = IPv4Address | IPv6Address

EVERY_IPV6 = IPv6Address(0)
"""`PortRequest.host_ip` of a port that is published at every IPv6 address only."""


def share_address(one: IpAddress | None, other: IpAddress | None) -> bool:
    """Return whether two `host_ip` have an address of the host in common."""
    if one is None or other is None or one == other:
        return True
    return EVERY_IPV6 in (one, other) and one.version == other.version


class Protocol(StrEnum):
    """The transport protocol of a published port."""

    TCP = "tcp"
    UDP = "udp"


def mac_address(text: str) -> MacAddress:
    """Parse a MAC address; raises InvalidRequestError for one that is malformed, of a group, or all zero."""
    lower = text.lower()
    if not _MAC.fullmatch(lower) or int(lower[:2], 16) & 1 or lower == "00:00:00:00:00:00":
        raise InvalidRequestError(
            f"MAC address {text!r} is not usable: expected six hexadecimal octets with colons, unicast and "
            "not all zero, such as 02:00:5e:10:00:01."
        )
    return MacAddress(lower)


TYPES[MacAddress] = text(mac_address)
_HostName = Annotated[str, text(hostname)]
_Port = Annotated[int, integer(1, 65535)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one NIC.

    Attributes:
        egress: the destinations of its connections; None: every one that its network permits.
        routes: the source addresses that it has besides its own, which the host routes to it.
    """

    egress: Egress = None
    rate: Rate = UNLIMITED
    routes: Routes = ()

    def or_else(self, other: "Limits") -> "Limits":
        """Return these limits, with the egress or the rate of others where these have none."""
        return replace(
            self,
            egress=other.egress if self.egress is None else self.egress,
            rate=other.rate if self.rate == UNLIMITED else self.rate,
        )

    def under(self, policy: NetworkPolicy) -> "Limits":
        """Return what applies in a network: destinations of both lists, the lower rates, and the permitted routes."""
        egress = intersection(self.egress, policy.egress)
        # A list is enforced for the guest's own address alone.
        permitted = tuple(each for each in self.routes if egress is None and is_within(each, policy.routes))
        return replace(self, egress=egress, rate=lower(self.rate, policy.rate), routes=permitted)


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class NicRequest:
    """A NET_BASIC device of a manifest and its network; a None address or MAC is chosen by the service."""

    nic: DeviceName
    network: NetworkName = NetworkName("default")
    ipv4: IPv4Address | None = None
    mac: MacAddress | None = None
    limits: Limits = NO_LIMITS
    ipv6: IPv6Address | None = None

    def or_else(self, had: "NicRequest") -> "NicRequest":
        """Return this request with the addresses of another where it leaves them open."""
        return replace(self, ipv4=self.ipv4 or had.ipv4, mac=self.mac or had.mac, ipv6=self.ipv6 or had.ipv6)


@dataclass(frozen=True, slots=True, kw_only=True)
class PortRequest:
    """A published port: a port of the host that is forwarded to a guest.

    `host_ip` None: at every local address of the families that the NIC has; EVERY_IPV6: at every IPv6 address.
    """

    nic: DeviceName
    host_ip: IpAddress | None = None
    host_port: _Port
    port: _Port
    protocol: Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The network, address, MAC and tap of one NIC, exclusive from the reservation until the release.

    Attributes:
        ipv4: None: the network has IPv6 only, or the guest of a joined one has an address of the LAN's DHCP, or none.
        ipv6: None: the network has no IPv6 prefix.
        limits: as requested, whatever the network's policy.
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
    limits: Limits = NO_LIMITS

    @property
    def address(self) -> IPv4Address | None:
        """The leased IPv4 address without its prefix length."""
        return self.ipv4.ip if self.ipv4 else None

    @property
    def address6(self) -> IPv6Address | None:
        """The leased IPv6 address without its prefix length."""
        return self.ipv6.ip if self.ipv6 else None

    def address_of(self, version: int) -> IpAddress | None:
        """Return the leased address of IPv4 or IPv6."""
        return self.address if version == 4 else self.address6

    @property
    def addresses(self) -> tuple[IpAddress, ...]:
        """Return the leased addresses of both families."""
        return tuple(address for address in (self.address, self.address6) if address is not None)

    @property
    def first_address(self) -> IpAddress | None:
        """Return the address by which the host probes and services register the guest: that of IPv4, if it has one."""
        return next(iter(self.addresses), None)

    @property
    def request(self) -> NicRequest:
        """The request for the same values."""
        return NicRequest(
            nic=self.nic,
            network=self.network,
            ipv4=self.address,
            mac=self.mac,
            limits=self.limits,
            ipv6=self.address6,
        )


def destinations(port: PortRequest, lease: Lease) -> tuple[IpAddress, ...]:
    """Return the guest's addresses to which a published port leads: those of the families that both have."""
    return tuple(each for each in lease.addresses if port.host_ip is None or port.host_ip.version == each.version)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """All leases of one task, and of its `Request` what belongs to them."""

    task: TaskName
    leases: tuple[Lease, ...] = ()
    ports: tuple[PortRequest, ...] = ()
    idle_s: int = 0
    idle_stops: bool = False

    @property
    def namespace(self) -> str:
        """Return the path of the task's own network namespace, which has its taps; empty: it has no NIC."""
        return task_namespace(self.task) if self.leases else ""

    @property
    def is_limited(self) -> bool:
        """Whether the task may sleep, or a NIC has limits of its own."""
        return self.idle_s > 0 or any(lease.limits != NO_LIMITS for lease in self.leases)

    def lease(self, nic: DeviceName) -> Lease:
        """Return the lease of a NIC of this reservation."""
        return next(lease for lease in self.leases if lease.nic == nic)

    @property
    def request(self) -> "Request":
        """Return the request for the same values."""
        nics = tuple(lease.request for lease in self.leases)
        return Request(nics=nics, ports=self.ports, idle_s=self.idle_s, idle_stops=self.idle_stops)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestNames:
    """What a guest gets by DHCP besides its lease; an empty host name is the task's name."""

    resolver: Resolver = UNSET
    hostname: _HostName = ""


UNNAMED = GuestNames()


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a start requests for a task.

    Attributes:
        namespace: path of the network namespace that has taps and bridges; empty: the host's own.
        idle_s: seconds without a packet after which the task sleeps; 0: it never does.
        idle_stops: it ends instead, and waits without a process for its next packet.
    """

    nics: tuple[NicRequest, ...] = ()
    ports: tuple[PortRequest, ...] = ()
    names: GuestNames = UNNAMED
    namespace: str = ""
    idle_s: int = 0
    idle_stops: bool = False

    def reservation(self, task: TaskName, leases: Iterable[Lease]) -> Reservation:
        """Return the reservation of a task that requests this, with its leases."""
        return Reservation(
            task=task, leases=(*leases,), ports=self.ports, idle_s=self.idle_s, idle_stops=self.idle_stops
        )


class LeaseState(StrEnum):
    """The state of a lease record: RESERVED → ATTACHED → RELEASING → removed; a reservation can expire.

    WAITING, between ATTACHED and ATTACHED: the task has no process, and its first packet starts it.
    """

    RESERVED = "reserved"
    ATTACHED = "attached"
    RELEASING = "releasing"
    WAITING = "waiting"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """A reservation with its state.

    Attributes:
        expires: the second of CLOCK_BOOTTIME in which a reservation expires, and from which on an attached task
            without a unit that runs is an orphan.
        namespace: as in its request.
        moves: how often ports were moved to or from it: of two records with one port, the one with more moves has it.
        lender: the task whose ports it has, and to which they return with its release; empty: none.
        asleep: since when it sleeps, is about to end, or waits, in microseconds since the epoch; 0: it is awake.
        wakes: how often it has been woken.
        slept: microseconds that it has slept, up to its last wake.
    """

    reservation: Reservation
    state: LeaseState
    expires: int
    namespace: str = ""
    names: GuestNames = UNNAMED
    moves: int = 0
    lender: Annotated[str, text(task_name)] = ""
    asleep: int = 0
    wakes: int = 0
    slept: int = 0

    @property
    def waits(self) -> bool:
        """Return whether the task has no process, and is started for its first packet."""
        return self.state is LeaseState.WAITING

    @property
    def sleeps(self) -> bool:
        """Return whether the task's process is stopped until its next packet."""
        return self.asleep != 0 and not self.reservation.idle_stops

    @property
    def ends(self) -> bool:
        """Return whether the task's process is about to end, and then waits: the kernel holds packets for it."""
        return self.asleep != 0 and self.state is LeaseState.ATTACHED and self.reservation.idle_stops

    def serves(self, request: Request) -> bool:
        """Return whether this is the reservation of a request: a repeated one, or one for what it has."""
        held = self.reservation
        leases = {lease.nic: lease.request for lease in held.leases}
        nics = tuple(nic.or_else(leases.get(nic.nic, nic)) for nic in request.nics)
        return nics == held.request.nics and request.reservation(held.task, held.leases) == held


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """The target of a probe: a TCP connection, or a UDP datagram that the guest must echo.

    `namespace`: path of the network namespace that has the address; empty: the host's own.
    """

    protocol: Protocol
    address: IpAddress
    port: _Port
    namespace: str = ""

    def __str__(self) -> str:
        address = f"[{self.address}]" if self.address.version == 6 else str(self.address)
        return f"{self.protocol} {address}:{self.port}"


def port_number(port: int) -> int:
    """Return a TCP or UDP port; raises InvalidRequestError outside 1–65535."""
    if not 1 <= port <= 65535:
        raise InvalidRequestError(f"port {port} does not exist: expected 1 to 65535.")
    return port
