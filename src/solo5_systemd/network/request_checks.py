"""What a request may have: which ports can be published, which limits, routes and idle times a network permits.

Checks raise InvalidRequestError for what can never succeed, and TakenError for what something else has.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from solo5_systemd.base.errors import InvalidRequestError, TakenError
from solo5_systemd.base.names import DeviceName
from solo5_systemd.network.model import (
    EVERY_IPV6,
    IpAddress,
    NicRequest,
    PortRequest,
    Protocol,
    Request,
    Reservation,
    destinations,
    port_number,
    share_address,
)
from solo5_systemd.settings.addresses import IpNetwork, is_within, overlapping
from solo5_systemd.settings.network import NO_NETWORK
from solo5_systemd.settings.network_policy import Network
from solo5_systemd.settings.rate import check_cap
from solo5_systemd.settings.solo5_toml import Settings

if TYPE_CHECKING:
    from solo5_systemd.network.ipam import Allocations


HELD_MAX = 8000
"""Port sockets of all tasks, of which each takes a descriptor of the service (LimitNOFILE=)."""

PORTS_MAX = 256
"""The most ports of one task, and of a range: each costs a port socket of each family, of which the host has some
thousands (HELD_MAX), and a map element.
"""

_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", re.ASCII)


def port_range(text: str) -> range:
    """Parse a port, or the first and last port of a range: `8080`, `8000-8010`; raises InvalidRequestError."""
    match = _RANGE.fullmatch(text)
    if match is None:
        raise InvalidRequestError(f"{text!r} is not a port: expected 1 to 65535, or a range such as 8000-8010.")
    first, last = port_number(int(match[1])), port_number(int(match[2] or match[1]))
    if last < first:
        raise InvalidRequestError(f"range {text} is reversed: expected {last}-{first}.")
    if last - first >= PORTS_MAX:
        raise InvalidRequestError(
            f"range {text} has {last - first + 1} ports: expected {PORTS_MAX} or fewer, as many as a task can publish."
        )
    return range(first, last + 1)


def check_ports(
    ports: Sequence[PortRequest],
    nics: Collection[DeviceName],
    allocations: "Allocations",
    *,
    loopback6: bool = False,
) -> None:
    """Check that a request's ports can be published: each once, to its own NICs, and none that another task has.

    `loopback6`: ports at ::1 can reach a guest, as in a namespace of other programs.
    """
    if len(ports) > PORTS_MAX:
        raise InvalidRequestError(
            f"{len(ports)} ports are requested, TCP and UDP counted apart: expected {PORTS_MAX} or fewer for one task."
        )
    before: defaultdict[tuple[Protocol, int], list[PortRequest]] = defaultdict(list)
    for port in ports:
        # Compared with those of one number alone: a task has up to PORTS_MAX.
        same, at = before[port.protocol, port.host_port], port.host_ip
        if port.nic not in nics:
            raise InvalidRequestError(
                f"port {show_port(port)} is published to NIC {port.nic}: expected a requested one."
            )
        if any(share_address(port.host_ip, other.host_ip) for other in same):
            raise InvalidRequestError(f"port {show_port(port)} is published twice: expected each port once.")
        if at and (at.is_multicast or (at.version == 6 and (at.is_link_local or (at.is_loopback and not loopback6)))):
            raise InvalidRequestError(
                f"port {show_port(port)} cannot be published: no reply of a guest leaves from {at}: expected "
                "127.0.0.1, or a global or unique local address, also one that this host gets later."
            )
        same.append(port)
    for port in ports:
        for other, task in allocations.published(port.protocol, port.host_port):
            if share_address(port.host_ip, other.host_ip):
                raise TakenError(
                    f"port {show_port(port)} is taken by task {task}: expected a free port.",
                    f"Publish another one, or end task {task}.",
                )


def check_reserved(ports: Sequence[PortRequest], settings: Settings) -> None:
    """Check that no port is in `reserved_ports` of the settings, or that of DHCP servers."""
    by_dhcp = any(network.policy.dhcp for network in settings.networks)
    for port in ports:
        why = ""
        if settings.reserves(port.host_port):
            why = "reserved for the host by reserved_ports in /etc/solo5"
        # The server cannot bind what a port socket has.
        elif by_dhcp and (port.host_port, port.protocol) == (67, Protocol.UDP):
            why = "that of the DHCP server of networks with dhcp = true"
        if why:
            raise InvalidRequestError(
                f"port {show_port(port)} cannot be published: it is {why}.", "Publish another one."
            )


def absent(ports: Iterable[PortRequest], local: Collection[IpAddress]) -> Sequence[PortRequest]:
    """Return the ports at an address that the host does not have yet, such as that of keepalived's standby node."""
    own = (port for port in ports if port.host_ip not in (None, EVERY_IPV6))
    return [port for port in own if port.host_ip and not port.host_ip.is_loopback and port.host_ip not in local]


def check_families(reservation: Reservation) -> None:
    """Check that each NIC has an address of its published ports' family."""
    for port in reservation.ports:
        lease = reservation.lease(port.nic)
        if not destinations(port, lease):
            lacks = "IPv4" if lease.ipv4 is None else "IPv6"
            raise InvalidRequestError(
                f"port {show_port(port)} cannot be published to NIC {port.nic}: it has no {lacks} address in network "
                f"{lease.network}.",
                f"Set network.{lease.network}.{lacks.lower()} below /etc/solo5, or publish the port at an address of "
                "another version, or to another NIC.",
            )


def host_ports(reservation: Reservation) -> tuple[PortRequest, ...]:
    """Return the published ports as port sockets have them: one socket for each family, of which it has one."""
    return tuple(
        replace(port, host_ip=EVERY_IPV6) if port.host_ip is None and address.version == 6 else port
        for port in reservation.ports
        for address in destinations(port, reservation.lease(port.nic))
    )


def show_port(port: PortRequest) -> str:
    """Return a port of the host as `ADDRESS:PORT/PROTOCOL`."""
    ip = port.host_ip
    address = "" if ip is None else f"[{ip}]:" if ip.version == 6 else f"{ip}:"
    return f"{address}{port.host_port}/{port.protocol.value}"


COMMON_MAX = 256
"""The most destinations of one guest: each is a rule or two of its own chain, which a new connection passes in turn."""


def check_limits(request: Request, networks: Iterable[Network]) -> None:
    """Check that the limits and ports of a request are possible in its networks, and within the operator's."""
    named = {network.name: network for network in networks}
    for nic in request.nics:
        network = named[nic.network]
        if network.join is not None:  # its frames pass table bridge alone, which has neither ports nor egress lists
            _check_joined(request.ports, nic, network)
        _check_permitted(nic, network)
        listed = nic.limits.under(network.policy).egress
        if listed is not None and len(listed) > COMMON_MAX:
            raise InvalidRequestError(
                f"egress of NIC {nic.nic} and that of network {network.name} have {len(listed)} destinations in "
                f"common: expected {COMMON_MAX} or fewer.",
                "List ranges instead of addresses, and ranges of ports, in one of the two.",
            )
        check_cap(nic.limits.rate, network.policy.rate, f"network {network.name} for NIC {nic.nic}")
        _check_idle(request, nic, network)


def _check_joined(ports: Iterable[PortRequest], nic: NicRequest, network: Network) -> None:
    for port in ports:
        if port.nic == nic.nic:
            raise InvalidRequestError(
                f"port {show_port(port)} cannot be published to NIC {port.nic}: network {network.name} joins bridge "
                f"{network.bridge}, where clients reach the guest itself at port {port.port}.",
                "Leave it out: no --publish of solo5ctl, `ports = []` in a Nomad job.",
            )
    if nic.limits.egress is not None:
        raise InvalidRequestError(
            f"egress of NIC {nic.nic} cannot be enforced in network {network.name}, which joins bridge "
            f"{network.bridge}: expected a network of this package.",
            "Leave egress out there, or restrict the guest at the LAN's router.",
        )


def _check_idle(request: Request, nic: NicRequest, network: Network) -> None:
    policy = network.policy
    if request.idle_s and (not policy.sleep or request.idle_s < policy.idle_min):
        expected = f"{policy.idle_min} s or more (idle_min)" if policy.sleep else "none (sleep = false)"
        raise InvalidRequestError(
            f"NIC {nic.nic} has an idle time of {request.idle_s} s, which network {network.name} does not permit: "
            f"expected {expected}."
        )
    if request.idle_stops and (network.join is not None or network.name == NO_NETWORK):
        why = "has no packets" if network.join is None else f"joins bridge {network.bridge}, which others answer for"
        raise InvalidRequestError(
            f"NIC {nic.nic} is to wait for packets without a tap, and network {network.name} {why}: expected another "
            "network of this package.",
            "Let the task sleep: IdleAction=sleep.",
        )


def _check_permitted(nic: NicRequest, network: Network) -> None:
    for route in nic.limits.routes:
        has = network.inside(route.version)
        if not is_within(route, network.policy.routes) or has is None:
            within = ", ".join(str(each) for each in network.policy.routes if each.version == route.version)
            raise InvalidRequestError(
                f"route {route} of NIC {nic.nic} is not permitted in network {network.name}: expected "
                f"{f'a range within {within}' if within and has else f'none of IPv{route.version}'}.",
                f"The operator permits it by network.{network.name}.routes, such as "
                f'routes = ["{route}"] in [network.{network.name}] below /etc/solo5.',
            )
    if nic.limits.routes and nic.limits.under(network.policy).egress is not None:
        raise InvalidRequestError(
            f"NIC {nic.nic} has routes and an egress list, which is enforced for its own address alone: expected one "
            "of the two.",
            f"Leave out egress of the task and of network {network.name}, and have the guest filter what it forwards.",
        )


def check_routes(
    nics: Sequence[NicRequest],
    others: Iterable[Reservation],
    networks: Iterable[Network],
    configured: Iterable[Network],
    host: Iterable[IpNetwork],
) -> None:
    """Check that nothing else has the ranges that are to be routed to guests of a task.

    `networks`: those in use, and those of the task; `host`: the ranges of its routes and addresses.
    """
    taken: list[tuple[str, IpNetwork]] = [
        *((f"of task {held.task}", route) for held in others for lease in held.leases for route in lease.limits.routes),
        *((f"of network {network.name}", each) for network in (*networks, *configured) for each in network.ranges),
        *(("of this host's routes or addresses", each) for each in host),
    ]
    for nic in nics:
        for route in nic.limits.routes:
            for whose, each in taken:
                if overlapping(route, [each]):
                    raise TakenError(
                        f"route {route} of NIC {nic.nic} overlaps {each} {whose}: expected a range that nothing else "
                        "has."
                    )
            taken.append(("of another NIC", route))  # a task's own NICs exclude each other as well
