"""A socket that holds a published port: bound, so that no other process binds the port, and never answering."""

import ctypes
import socket
import struct
from ipaddress import IPv4Address

from solo5_systemd.network.plan import PortRequest, Protocol

_KINDS = {Protocol.TCP: socket.SOCK_STREAM, Protocol.UDP: socket.SOCK_DGRAM}
_IP_FREEBIND = 15  # linux/in.h
_SO_ATTACH_FILTER = 26  # asm-generic/socket.h
_DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)  # BPF_RET | BPF_K of linux/filter.h: no byte of the packet is kept


def bind(port: PortRequest) -> socket.socket:
    """Bind the port of the host.

    Without SO_REUSEADDR, so that a later bind fails whatever options it has. TCP is not listened at: a connection that
    our rules do not translate is refused as it was before. UDP that they do not translate is dropped by a filter
    before it takes memory. The address need not be the host's at this moment: a link may come back with it.

    Raises:
        OSError: EADDRINUSE, another process has it, or a connection of the host uses it as its own port.
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
    """Whether the port could be bound at this moment."""
    try:
        bind(port).close()
    except OSError:
        return False
    return True


def _drop_everything(made: socket.socket) -> None:
    program = ctypes.create_string_buffer(_DROP_ALL, len(_DROP_ALL))
    made.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(program)))
