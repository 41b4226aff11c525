"""Which published ports can stand beside each other."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address

from solo5_systemd.errors import InvalidRequestError, TakenError
from solo5_systemd.names import DeviceName
from solo5_systemd.network.allocations import Book
from solo5_systemd.network.model import PortRequest, Protocol
from solo5_systemd.settings import Settings


@dataclass(frozen=True, kw_only=True)
class BoundPort:
    """A socket of the host that answers at a port; `address` None: at every address."""

    protocol: Protocol
    address: IPv4Address | None
    port: int


PORTS_MAX = 256
"""Of one task. Each is compared with each, and costs a socket and an element of a map."""


def check_ports(
    ports: Sequence[PortRequest],
    nics: Collection[DeviceName],
    held: Book,
    bound: Collection[BoundPort],
    local: Collection[IPv4Address],
) -> None:
    """Refuse what cannot be published.

    Args:
        ports: what is asked.
        nics: the NICs asked for beside it.
        held: what other tasks hold.
        bound: the host's own sockets.
        local: the host's own addresses.

    Raises:
        InvalidRequestError: too many, a NIC that is not asked for, an address that is not the host's, or one port
            twice.
        TakenError: another task or a process of the host has the port.
    """
    if len(ports) > PORTS_MAX:
        raise InvalidRequestError(
            f"{len(ports)} ports are asked for, TCP and UDP counted apart: expected {PORTS_MAX} or fewer for one task."
        )
    for index, port in enumerate(ports):
        _check_request(port, ports[:index], nics, local)
    for port in ports:
        for other, task in held.published(port.protocol, port.host_port):
            if _meet(port, other):
                raise TakenError(
                    f"port {show_port(port)} is taken by task {task}: expected a free port.",
                    f"Publish another one, or end task {task}.",
                )
    for port in ports:
        if any(_answers(socket, port) for socket in bound):
            raise TakenError(
                f"port {show_port(port)} is taken by another process of this host: expected a free port.",
                f"`ss -{port.protocol[0]}lnp sport = :{port.host_port}` shows which.",
            )


def check_reserved(ports: Sequence[PortRequest], settings: Settings) -> None:
    """Refuse ports that the operator keeps for the host.

    Raises:
        InvalidRequestError: one is among `reserved_ports`.
    """
    for port in ports:
        if settings.reserves(port.host_port):
            raise InvalidRequestError(
                f"port {show_port(port)} cannot be published: it is reserved for the host, as reserved_ports below "
                "/etc/solo5 has it.",
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
            f"port {show_port(port)} leads to NIC {port.nic}, which is not asked for: expected one of "
            f"{', '.join(nics) or 'the NICs, of which there are none'}."
        )
    if any(_meet(port, other) for other in before):
        raise InvalidRequestError(f"port {show_port(port)} is published twice: expected each port once.")
    if port.host_ip is not None and not port.host_ip.is_loopback and port.host_ip not in local:
        raise InvalidRequestError(
            f"port {show_port(port)} cannot be published: {port.host_ip} is not an address of this host.",
            "`ip -4 address` shows them; without one the port is published on all.",
        )


def _meet(one: PortRequest, other: PortRequest) -> bool:
    """Some packet would belong to both."""
    return (
        one.protocol == other.protocol
        and one.host_port == other.host_port
        and (one.host_ip is None or other.host_ip is None or one.host_ip == other.host_ip)
    )


def _answers(socket: BoundPort, port: PortRequest) -> bool:
    return (
        socket.protocol == port.protocol
        and socket.port == port.host_port
        and (socket.address is None or port.host_ip is None or socket.address == port.host_ip)
    )


def show_port(port: PortRequest) -> str:
    """Return a port of the host as `ADDRESS:PORT/PROTOCOL`."""
    address = f"{port.host_ip}:" if port.host_ip else ""
    return f"{address}{port.host_port}/{port.protocol.value}"
