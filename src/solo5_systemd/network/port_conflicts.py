"""The rules by which a port may be published: limits, reserved ports, conflicts with tasks and processes."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

from solo5_systemd.errors import InvalidRequestError, TakenError
from solo5_systemd.names import DeviceName
from solo5_systemd.network.dhcp import SERVER_PORT
from solo5_systemd.network.model import PortRequest, Protocol
from solo5_systemd.settings.model import Settings

if TYPE_CHECKING:
    from solo5_systemd.network.ipam import Allocations


@dataclass(frozen=True, kw_only=True)
class BoundPort:
    """A port that a socket of the host is bound to; `address` None: at every address."""

    protocol: Protocol
    address: IPv4Address | None
    port: int


PORTS_MAX = 256
"""The most ports of one task: each is compared with each, and costs a port socket and a map element."""


def check_ports(
    ports: Sequence[PortRequest],
    nics: Collection[DeviceName],
    allocations: "Allocations",
    bound: Collection[BoundPort],
    local: Collection[IPv4Address],
) -> None:
    """Check that a request's ports can be published.

    Args:
        ports: the requested ports.
        nics: the NICs of the same request.
        allocations: the values in use by other tasks.
        bound: the ports bound by processes of the host.
        local: the host's addresses.

    Raises:
        InvalidRequestError: too many ports, a NIC outside the request, an address that is not the host's, or a port
            twice.
        TakenError: another task or a process of the host has the port.
    """
    if len(ports) > PORTS_MAX:
        raise InvalidRequestError(
            f"{len(ports)} ports are requested, TCP and UDP counted apart: expected {PORTS_MAX} or fewer for one task."
        )
    for index, port in enumerate(ports):
        _check_request(port, ports[:index], nics, local)
    for port in ports:
        for other, task in allocations.published(port.protocol, port.host_port):
            if _overlap(port, other):
                raise TakenError(
                    f"port {show_port(port)} is taken by task {task}: expected a free port.",
                    f"Publish another one, or end task {task}.",
                )
    check_bound(ports, bound)


def check_bound(ports: Sequence[PortRequest], bound: Collection[BoundPort]) -> None:
    """Check that no process of the host has a port.

    Raises:
        TakenError: a process has a port.
    """
    for port in ports:
        if any(_is_bound(socket, port) for socket in bound):
            raise TakenError(
                f"port {show_port(port)} is taken by another process of this host: expected a free port.",
                f"`ss -{port.protocol[0]}lnp sport = :{port.host_port}` shows the process.",
            )


def check_reserved(ports: Sequence[PortRequest], settings: Settings) -> None:
    """Check that no port is reserved for the host.

    Raises:
        InvalidRequestError: a port is in `reserved_ports` of the settings, or is that of DHCP servers.
    """
    by_dhcp = any(network.policy.dhcp for network in settings.networks)
    for port in ports:
        if settings.reserves(port.host_port):
            raise InvalidRequestError(
                f"port {show_port(port)} cannot be published: it is reserved for the host by reserved_ports in "
                "/etc/solo5.",
                "Publish another one.",
            )
        if by_dhcp and (port.host_port, port.protocol) == (SERVER_PORT, Protocol.UDP):
            raise InvalidRequestError(
                f"port {show_port(port)} cannot be published: it is that of the DHCP server of networks with dhcp = "
                "true.",
                "Publish another one.",
            )


def _check_request(
    port: PortRequest,
    before: Sequence[PortRequest],
    nics: Collection[DeviceName],
    local: Collection[IPv4Address],
) -> None:
    if port.nic not in nics:
        raise InvalidRequestError(
            f"port {show_port(port)} leads to NIC {port.nic}, which is not requested: expected one of "
            f"{', '.join(nics) or 'the NICs, of which there are none'}."
        )
    if any(_overlap(port, other) for other in before):
        raise InvalidRequestError(f"port {show_port(port)} is published twice: expected each port once.")
    if port.host_ip is not None and not port.host_ip.is_loopback and port.host_ip not in local:
        raise InvalidRequestError(
            f"port {show_port(port)} cannot be published: {port.host_ip} is not an address of this host.",
            "`ip -4 address` shows the host's addresses; without one, the port is published at all of them.",
        )


def _overlap(one: PortRequest, other: PortRequest) -> bool:
    """Return whether a packet exists that matches both ports."""
    return (
        one.protocol == other.protocol
        and one.host_port == other.host_port
        and (one.host_ip is None or other.host_ip is None or one.host_ip == other.host_ip)
    )


def _is_bound(socket: BoundPort, port: PortRequest) -> bool:
    return (
        socket.protocol == port.protocol
        and socket.port == port.host_port
        and (socket.address is None or port.host_ip is None or socket.address == port.host_ip)
    )


def show_port(port: PortRequest) -> str:
    """Return a port of the host as `ADDRESS:PORT/PROTOCOL`."""
    address = f"{port.host_ip}:" if port.host_ip else ""
    return f"{address}{port.host_port}/{port.protocol.value}"
