"""The host's own sockets: which ports are answered already (sock_diag(7))."""

import socket
import struct
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address

from solo5_systemd.network.nlsocket import NETLINK_SOCK_DIAG, NLM_DUMP, NetlinkSocket
from solo5_systemd.network.plan import Protocol
from solo5_systemd.network.ports import BoundPort

_BY_FAMILY = 20
# struct inet_diag_req_v2: family, protocol, extensions, padding, states; the rest stays zero.
_REQUEST = struct.Struct("=BBBxI48x")
# struct inet_diag_msg: family, state, timer, retransmissions; source and destination port; source address.
_MESSAGE = struct.Struct("=BBBB2s2s16s")
# States that answer anybody: TCP_LISTEN; and TCP_CLOSE, which is what UDP calls bound and not connected.
_QUERIES = (
    (Protocol.TCP, socket.IPPROTO_TCP, 1 << 10),
    (Protocol.UDP, socket.IPPROTO_UDP, 1 << 7),
)


def bound_ports() -> frozenset[BoundPort]:
    """All TCP ports listened at and UDP ports bound, IPv4, and IPv6 where it answers IPv4 too.

    Raises:
        OSError: the kernel does not tell.
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
    """None: at every IPv4 address. `::` counts as that; that it may be IPv6 only is not told for UDP."""
    if family == socket.AF_INET:
        address = IPv4Address(source[:4])
        return None if address.is_unspecified else address
    six = IPv6Address(source)
    return None if six.is_unspecified else six.ipv4_mapped or six
