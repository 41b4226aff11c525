"""A minimal netlink(7) socket, for requests and groups that pyroute2 does not support."""

import errno
import os
import socket
import struct
from collections.abc import Iterator

NLM_REQUEST, NLM_ACK, NLM_DUMP = 0x1, 0x4, 0x300
NLMSG_ERROR, NLMSG_DONE = 2, 3
NETLINK_SOCK_DIAG, NETLINK_NETFILTER = 4, 12

_HEADER = struct.Struct("=IHHII")
_ERRNO = struct.Struct("=i")
_ATTRIBUTE = struct.Struct("=HH")
_SOL_NETLINK, _ADD_MEMBERSHIP = 270, 1
_NESTED, _TYPE_MASK = 0x8000, 0x3FFF
_BUFFER = 1 << 16


class NetlinkSocket:
    """A netlink socket for requests, or, with a group, for multicast messages of the kernel (non-blocking)."""

    def __init__(self, protocol: int, group: int | None = None) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        self._socket.bind((0, 0))
        if group is not None:
            self._socket.setblocking(False)
            self._socket.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, group)
        self._sequence = 0

    def fileno(self) -> int:
        """Return the file descriptor."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def request(self, kind: int, flags: int, payload: bytes) -> Iterator[tuple[int, bytes]]:
        """Send one request and yield its replies, as message type and payload.

        Raises:
            OSError: the kernel refused it.
        """
        self._sequence += 1
        length = _HEADER.size + len(payload)
        self._socket.send(_HEADER.pack(length, kind, NLM_REQUEST | flags, self._sequence, 0) + payload)
        while True:
            for sequence, answer, body in _messages(self._socket.recv(_BUFFER)):
                if sequence != self._sequence:
                    continue
                if answer in (NLMSG_ERROR, NLMSG_DONE):
                    _raise_error(body)
                    return
                yield answer, body

    def receive(self) -> Iterator[tuple[int, bytes]]:
        """Receive one batch of multicast messages, as message type and payload.

        Raises:
            BlockingIOError: no message is queued.
            OSError: ENOBUFS: messages were lost; EBADMSG: malformed.
        """
        for _, kind, body in _messages(self._socket.recv(_BUFFER)):
            yield kind, body


def attribute(kind: int, *values: bytes) -> bytes:
    """Return one attribute (struct nlattr) of raw values, padded to four bytes."""
    value = b"".join(values)
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value + bytes(-len(value) % 4)


def nested(kind: int, *attributes: bytes) -> bytes:
    """Return one attribute of nested attributes (NLA_F_NESTED)."""
    return attribute(kind | _NESTED, *attributes)


def attributes(data: bytes) -> dict[int, bytes]:
    """Return the attributes of a payload, by type; of two with one type the last."""
    found = {}
    offset = 0
    while offset + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if length < _ATTRIBUTE.size:
            break
        found[kind & _TYPE_MASK] = data[offset + _ATTRIBUTE.size : offset + length]
        offset += length + -length % 4
    return found


def _messages(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    offset = 0
    while offset + _HEADER.size <= len(data):
        length, kind, _, sequence, _ = _HEADER.unpack_from(data, offset)
        if length < _HEADER.size:
            raise _malformed()
        yield sequence, kind, data[offset + _HEADER.size : offset + length]
        offset += length + -length % 4


def _raise_error(body: bytes) -> None:
    if len(body) < _ERRNO.size:
        raise _malformed()
    # NLMSG_ERROR and NLMSG_DONE both begin with the errno, negative, or 0.
    code = -int(_ERRNO.unpack_from(body)[0])
    if code:
        raise OSError(code, os.strerror(code))


def _malformed() -> OSError:
    return OSError(errno.EBADMSG, os.strerror(errno.EBADMSG))
