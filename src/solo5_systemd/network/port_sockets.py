"""Port sockets, which keep a published port from other processes, and the ports that processes have bound."""

import ctypes
import socket
import struct
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address

from solo5_systemd.network.model import PortRequest, Protocol
from solo5_systemd.network.port_conflicts import BoundPort
from solo5_systemd.network.raw_netlink import NETLINK_SOCK_DIAG, NLM_DUMP, NetlinkSocket

_BY_FAMILY = 20  # SOCK_DIAG_BY_FAMILY of sock_diag(7)
# struct inet_diag_req_v2: family, protocol, extensions, padding, states; the rest stays zero.
_REQUEST = struct.Struct("=BBBxI48x")
# struct inet_diag_msg: family, state, timer, retransmissions; source and destination port; source address.
_MESSAGE = struct.Struct("=BBBB2s2s16s")
# States that accept any client: TCP_LISTEN; TCP_CLOSE, which for UDP means bound and not connected.
_QUERIES = (
    (Protocol.TCP, socket.IPPROTO_TCP, 1 << 10),
    (Protocol.UDP, socket.IPPROTO_UDP, 1 << 7),
)


def bound_ports() -> frozenset[BoundPort]:
    """Return all listening TCP ports and bound UDP ports, of IPv4 and of IPv6 sockets that accept IPv4.

    Raises:
        OSError: the kernel refused a request.
    """
    diag = NetlinkSocket(NETLINK_SOCK_DIAG)
    try:
        return frozenset(
            port
            for protocol, number, states in _QUERIES
            for family in (socket.AF_INET, socket.AF_INET6)
            for port in _bound(diag, family, protocol, _REQUEST.pack(family, number, 0, states))
        )
    finally:
        diag.close()


def _bound(diag: NetlinkSocket, family: int, protocol: Protocol, request: bytes) -> Iterator[BoundPort]:
    for _, body in diag.request(_BY_FAMILY, NLM_DUMP, request):
        *_, port, _, source = _MESSAGE.unpack_from(body)
        address = _address(family, source)
        if port != b"\0\0" and not isinstance(address, IPv6Address):
            yield BoundPort(protocol=protocol, address=address, port=int.from_bytes(port))


def _address(family: int, source: bytes) -> IPv4Address | IPv6Address | None:
    """Return a bound address; None for every IPv4 address, also for `::`: UDP sockets do not report IPV6_V6ONLY."""
    if family == socket.AF_INET:
        address = IPv4Address(source[:4])
        return None if address.is_unspecified else address
    six = IPv6Address(source)
    return None if six.is_unspecified else six.ipv4_mapped or six


_KINDS = {Protocol.TCP: socket.SOCK_STREAM, Protocol.UDP: socket.SOCK_DGRAM}
_IP_FREEBIND = 15  # linux/in.h
_SO_ATTACH_FILTER = 26  # asm-generic/socket.h
_DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)  # BPF_RET | BPF_K of linux/filter.h: no byte of the packet is kept


def bind(port: PortRequest) -> socket.socket:
    """Return a new port socket, bound to the port of the host.

    No SO_REUSEADDR: a later bind(2) fails with any options. No listen(2): a TCP connection that no rule translates is
    refused, as without the socket. A BPF filter drops UDP datagrams that no rule translates before they take memory.
    IP_FREEBIND: the address may be absent for now, as on a link that is down.

    Raises:
        OSError: EADDRINUSE: another process has the port, or a connection of the host has it as its local port.
    """
    made = socket.socket(socket.AF_INET, _KINDS[port.protocol] | socket.SOCK_CLOEXEC)
    try:
        made.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
        if port.protocol is Protocol.UDP:
            _drop_everything(made)
        made.bind((str(port.host_ip or IPv4Address(0)), port.host_port))
    except OSError:
        made.close()
        raise
    return made


def is_free(port: PortRequest) -> bool:
    """Return whether bind(2) succeeds for the port at this moment."""
    try:
        bind(port).close()
    except OSError:
        return False
    return True


def _drop_everything(made: socket.socket) -> None:
    program = ctypes.create_string_buffer(_DROP_ALL, len(_DROP_ALL))
    made.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(program)))
