"""A minimal netlink(7) socket, and messages of rtnetlink(7): for what pyroute2 does not support, or is slow with."""

import ctypes
import errno
import os
import socket
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence

from solo5_systemd.base.descriptors import out_of_select
from solo5_systemd.base.errors import DependencyError, HostError
from solo5_systemd.network.modules import NF_TABLES, remedy

NLM_REQUEST, NLM_ACK, NLM_REPLACE, NLM_EXCL, NLM_DUMP, NLM_CREATE = 0x1, 0x4, 0x100, 0x200, 0x300, 0x400
NLMSG_ERROR, NLMSG_DONE = 2, 3
NETLINK_ROUTE, NETLINK_NETFILTER = 0, 12
FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}

Request = tuple[int, int, bytes]
"""A request: message type, flags without NLM_F_REQUEST, payload."""

_HEADER = struct.Struct("=IHHII")
_ERRNO = struct.Struct("=i")
_ATTRIBUTE = struct.Struct("=HH")
_SOL_NETLINK, _ADD_MEMBERSHIP = 270, 1
_SO_ATTACH_FILTER = 26  # asm-generic/socket.h
_BPF = struct.Struct("=HBBI")  # struct sock_filter of linux/filter.h
_NESTED, _TYPE_MASK = 0x8000, 0x3FFF
_BUFFER = 1 << 16
_BATCH_MAX = 64
"""Requests sent at once: the acknowledgements of all fit into the default receive buffer of a socket."""

_READS_MAX = 64
"""Reads until the caller acts on the messages: packets of a flood end when their task is woken."""

_LOADS, _AND, _EQUALS, _ACCEPT = {2: 0x28, 4: 0x20}, 0x54, 0x15, 0x06
Condition = tuple[int, int, int, int]
"""A condition of a socket filter (BPF): load instruction, offset, the bits that are compared, their value."""


def is_type(kind: int) -> Condition:
    """Return the condition that a message has a type."""
    return equals(4, kind, 2)


def equals(offset: int, value: int, size: int = 4, bits: int = 0xFFFFFFFF) -> Condition:
    """Return the condition that some bits of a number, of 2 or 4 bytes in host order, have a value.

    The offset is that from the message's header on.
    """
    order = socket.htons if size == 2 else socket.htonl
    return _LOADS[size], offset, order(bits & (1 << 8 * size) - 1), order(value)


class NetlinkSocket(socket.socket):
    """A netlink socket for requests, or, with groups, for multicast messages of the kernel (non-blocking)."""

    def __init__(self, protocol: int = NETLINK_ROUTE, *groups: int) -> None:
        """Open the socket; raises HostError if the process may not receive these messages."""
        made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        # Of each network namespace that has guests, some stay open.
        super().__init__(made.family, made.type, protocol, fileno=out_of_select(made.detach()))
        self.bind((0, 0))
        for group in groups:
            self.setblocking(False)
            try:
                self.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, group)
            except PermissionError as error:
                self.close()
                raise HostError(
                    f"messages of the kernel cannot be received: {error.strerror}; expected CAP_NET_ADMIN.",
                    "In a container: `systemd-nspawn --private-network` gives it.",
                ) from error
        self._sequence = 0

    def request(self, kind: int, flags: int, payload: bytes) -> Iterator[tuple[int, bytes]]:
        """Send one request and yield its replies, as message type and payload; raises OSError if it is refused."""
        self._sequence += 1
        length = _HEADER.size + len(payload)
        self.send(_HEADER.pack(length, kind, NLM_REQUEST | flags, self._sequence, 0) + payload)
        while True:
            for sequence, answer, body in _messages(self.recv(_BUFFER)):
                if sequence != self._sequence:  # left of an earlier request, which was not read to its end
                    continue
                if answer in (NLMSG_ERROR, NLMSG_DONE):
                    if code := _errno(body):
                        raise OSError(code, os.strerror(code))
                    return
                yield answer, body

    def run(self, requests: Sequence[Request]) -> Sequence[int]:
        """Send requests without replies, many in one system call, and return the errno of each, 0 for success.

        The kernel handles them in order; one that fails does not prevent the next.

        Raises:
            OSError: EBADMSG: malformed; or an error of the socket.
        """
        starts = range(0, len(requests), _BATCH_MAX)
        return [code for start in starts for code in self._run(requests[start : start + _BATCH_MAX])]

    def execute(self, requests: Sequence[Request], but: int = 0) -> None:
        """Send requests as `run`, all of which have to succeed, or fail with the errno `but`.

        Raises:
            OSError: the kernel refused one: the first that it refused. The others were sent as well.
        """
        for code in self.run(requests):
            if code not in (0, but):
                raise OSError(code, os.strerror(code))

    def _run(self, requests: Sequence[Request]) -> Sequence[int]:
        first = self._sequence + 1
        self._sequence += len(requests)
        self.send(
            b"".join(
                _HEADER.pack(_HEADER.size + len(payload), kind, NLM_REQUEST | NLM_ACK | flags, sequence, 0)
                + payload
                + bytes(-len(payload) % 4)
                for sequence, (kind, flags, payload) in enumerate(requests, first)
            )
        )
        codes: dict[int, int] = {}
        while len(codes) < len(requests):
            for sequence, kind, body in _messages(self.recv(_BUFFER)):
                if kind == NLMSG_ERROR and first <= sequence <= self._sequence:
                    codes[sequence] = _errno(body)
        return [codes[sequence] for sequence in range(first, self._sequence + 1)]

    def receive_only(self, *kinds: Sequence[Condition]) -> None:
        """Have the kernel drop all messages but those that meet all conditions of a kind, by a filter.

        A message that is too short for a condition does not meet it. (SO_ATTACH_FILTER)
        """
        instructions: list[tuple[int, int, int, int]] = []
        for conditions in kinds:
            left = 3 * len(conditions)
            for load, offset, bits, value in conditions:
                left -= 3
                # To the next kind where it is not met.
                instructions += [(load, 0, 0, offset), (_AND, 0, 0, bits), (_EQUALS, 0, left + 1, value)]
            instructions.append((_ACCEPT, 0, 0, 0xFFFFFFFF))
        attach_filter(self, *instructions)

    def queued(self) -> Sequence[tuple[int, bytes]] | None:
        """Return multicast messages that are queued, as message type and payload; None after lost ones.

        To be called when readable, and again while it is: of a flood, these are a part.
        """
        found: list[tuple[int, bytes]] = []
        try:
            for _ in range(_READS_MAX):
                found += [(kind, body) for _, kind, body in _messages(self.recv(_BUFFER))]
        except BlockingIOError:
            pass
        except OSError:  # ENOBUFS: messages were lost; EBADMSG
            return None
        return found


def attach_filter(of: socket.socket, *instructions: tuple[int, int, int, int]) -> None:
    """Have the kernel drop what a BPF program does not accept by one of its instructions (SO_ATTACH_FILTER)."""
    program = b"".join(_BPF.pack(*instruction) for instruction in (*instructions, (_ACCEPT, 0, 0, 0)))  # no byte: drop
    buffer = ctypes.create_string_buffer(program, len(program))
    filtered = struct.pack("HP", len(program) // _BPF.size, ctypes.addressof(buffer))
    of.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filtered)


def link_index(name: str) -> int:
    """Return a link's index; 0 where no link has this name."""
    try:
        return socket.if_nametoindex(name)
    except OSError:
        return 0


def check_netfilter() -> None:
    """Check that the kernel has nfnetlink: libnftables ends the process without it. Raises DependencyError."""
    try:
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER).close()
    except OSError as error:
        raise DependencyError(
            f"nftables cannot be used: {error.strerror}; expected a kernel with module nf_tables.", remedy(NF_TABLES)
        ) from error


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
        if length < _ATTRIBUTE.size:  # malformed: a length of 0 would be an endless loop
            break
        found[kind & _TYPE_MASK] = data[offset + _ATTRIBUTE.size : offset + length]
        offset += length + -length % 4
    return found


def attribute_of(data: bytes, *path: int) -> bytes:
    """Return the first attribute of a type, or of several types that are nested in turn.

    It takes a fifth of the processor time of `attributes`, for large dumps.

    Raises:
        OSError: EBADMSG: there is none.
    """
    for kind in path:
        offset, length, found = 0, 0, -1
        while found != kind:
            offset += length + -length % 4
            if offset + _ATTRIBUTE.size > len(data):
                raise _malformed()
            length, found = _ATTRIBUTE.unpack_from(data, offset)
            found &= _TYPE_MASK
            if length < _ATTRIBUTE.size:
                raise _malformed()
        data = data[offset + _ATTRIBUTE.size : offset + length]
    return data


def _messages(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    offset = 0
    while offset + _HEADER.size <= len(data):
        length, kind, _, sequence, _ = _HEADER.unpack_from(data, offset)
        if length < _HEADER.size:
            raise _malformed()
        yield sequence, kind, data[offset + _HEADER.size : offset + length]
        offset += length + -length % 4


def _errno(body: bytes) -> int:
    """Return the errno of NLMSG_ERROR or NLMSG_DONE, 0 for success. Both begin with it, negative."""
    if len(body) < _ERRNO.size:
        raise _malformed()
    return -int(_ERRNO.unpack_from(body)[0])


def _malformed() -> OSError:
    return OSError(errno.EBADMSG, os.strerror(errno.EBADMSG))


NFGENMSG = struct.Struct("!BBH")
"""Of a message of nfnetlink: family, version, resource."""

# Of rtnetlink: linux/rtnetlink.h, if_link.h, neighbour.h, net/if.h
NEWLINK, DELLINK, GETLINK, SETLINK, NEWNEIGH, DELNEIGH, GETNEIGH = 16, 17, 18, 19, 28, 29, 30
DELADDR, GETADDR, GETROUTE = 21, 22, 26
GROUP_LINK, IFF_UP, IFF_LOWER_UP = 1, 1, 1 << 16
IFLA_ADDRESS, IFLA_IFNAME, IFLA_MTU, IFLA_LINK, IFLA_MASTER, IFLA_LINKINFO, IFLA_IFALIAS = 1, 3, 4, 5, 10, 18, 20
INFO_KIND, INFO_DATA, NDA_DST, NDA_LLADDR = 1, 2, 1, 2
MACVLAN = attribute(INFO_KIND, b"macvlan\0")

IFINFOMSG = struct.Struct("=BxHiII")
"""Of a link: family, type, index, flags, changed flags."""
IFADDRMSG = struct.Struct("=BBBBI")
"""Of an address: family, prefix length, flags, scope, index."""
NDMSG = struct.Struct("=BxxxiHBB")
"""Of a neighbour: family, index, state, flags, type."""


def ifinfo(index: int, *values: bytes, up: bool = False, family: int = socket.AF_UNSPEC) -> bytes:
    """Return the payload of a request about a link; with the index 0, about links with these attributes."""
    flags = IFF_UP if up else 0
    return IFINFOMSG.pack(family, 0, index, flags, flags) + b"".join(values)


def number(kind: int, value: int) -> bytes:
    """Return one attribute of a number of 32 bits."""
    return attribute(kind, value.to_bytes(4, sys.byteorder))


def integer(values: Mapping[int, bytes], kind: int) -> int:
    """Return the number that an attribute has, in host order; 0 without it."""
    return int.from_bytes(values.get(kind, b""), sys.byteorder)


def named(link: str) -> bytes:
    """Return the attribute of a link's name, which may have any bytes except / and white space."""
    return attribute(IFLA_IFNAME, os.fsencode(link), b"\0")


def new_link(kind: str, data: bytes, *values: bytes) -> Request:
    """Return the request that makes a link of a kind, with attributes of the kind (`data`) and of every link."""
    info = nested(IFLA_LINKINFO, attribute(INFO_KIND, kind.encode(), b"\0"), nested(INFO_DATA, data))
    return NEWLINK, NLM_CREATE | NLM_EXCL, ifinfo(0, *values, info)


def link_attributes(message: bytes) -> dict[int, bytes]:
    """Return the attributes of a message about a link."""
    return attributes(message[IFINFOMSG.size :])


def link_name(message: bytes) -> str:
    """Return the name of the link that a message is about."""
    return os.fsdecode(attribute_of(message[IFINFOMSG.size :], IFLA_IFNAME).rstrip(b"\0"))
