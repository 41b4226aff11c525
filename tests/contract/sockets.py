"""Sockets of the test process in a network namespace: datagrams, streams, and the frames of links."""

import asyncio
import socket
import struct

SOL_PACKET, PACKET_AUXDATA = 263, 8  # linux/socket.h, if_packet.h
_AUXDATA = struct.Struct("=IIIHHHH")  # status, lengths, offsets, tag, its Ethernet type
_VLAN_VALID = 1 << 4
_EVERY_PROTOCOL = socket.htons(3)  # ETH_P_ALL


def bound(address: str, port: int) -> socket.socket:
    made = socket.socket(_family(address), socket.SOCK_DGRAM)
    made.bind((address, port))
    made.setblocking(False)
    return made


def wire(link: str = "") -> socket.socket:
    """Return a socket for all frames of a link; without one, of all links of the namespace."""
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, _EVERY_PROTOCOL)
    made.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
    if link:
        made.bind((link, 0))
    made.setblocking(False)
    return made


def arrived(listener: socket.socket) -> list[bytes]:
    """Return all datagrams or frames that have been received since the last time; frames with their VLAN tag."""
    found: list[bytes] = []
    while True:
        try:
            data, more, _, _ = listener.recvmsg(65536, socket.CMSG_SPACE(_AUXDATA.size))
        except BlockingIOError:
            return found
        for _, _, auxiliary in more:
            *_, tag, kind = values = _AUXDATA.unpack(auxiliary)
            if values[0] & _VLAN_VALID:  # the kernel has taken it off the frame
                data = data[:12] + struct.pack("!HH", kind, tag) + data[12:]
        found.append(data)


class Inbox:
    """All that a socket has received so far."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener, self._got = listener, list[bytes]()
        listener.setblocking(False)

    def __call__(self) -> list[bytes]:
        self._got += arrived(self._listener)
        return self._got


async def next_at(listener: socket.socket) -> tuple[bytes, tuple[str, int]]:
    """Wait for a datagram, and return it with its source: address and port."""
    async with asyncio.timeout(30):
        data, source = await asyncio.get_running_loop().sock_recvfrom(listener, 3000)
    return data, source[:2]


async def ask_udp(address: str, port: int, sock: socket.socket | None = None) -> bytes:
    loop = asyncio.get_running_loop()
    with sock or socket.socket(_family(address), socket.SOCK_DGRAM) as client:
        client.setblocking(False)
        async with asyncio.timeout(30):
            await loop.sock_sendto(client, b"hello", (address, port))
            answer, sender = await loop.sock_recvfrom(client, 2000)
    assert sender[:2] == (address, port)
    return answer


async def ask_tcp(address: str, port: int = 80, sock: socket.socket | None = None) -> bytes:
    loop = asyncio.get_running_loop()
    with sock or socket.socket(_family(address)) as client:
        client.setblocking(False)
        async with asyncio.timeout(30):
            await loop.sock_connect(client, (address, port))
            await loop.sock_sendall(client, b"hello")
            return await loop.sock_recv(client, 2000)


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
