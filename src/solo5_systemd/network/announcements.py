"""Packets that nftables announces (nfnetlink_log): the first ones for tasks that sleep."""

import fcntl
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import ip_address

from solo5_systemd.network.nft_rules import ANNOUNCEMENTS, SNAPLEN
from solo5_systemd.network.raw_netlink import NETLINK_NETFILTER, NLM_ACK, NetlinkSocket, attribute, attributes

# linux/netfilter/nfnetlink_log.h: subsystem 4, its messages and attributes.
_PACKET, _CONFIG = 4 << 8, 4 << 8 | 1
_NFGENMSG = struct.Struct("!BBH")
_COMMAND, _MODE, _QUEUE_THRESHOLD = 1, 2, 5
_BIND, _COPY_PACKET = 1, 2
_HEADER, _PHYSICAL_IN, _PHYSICAL_OUT, _PAYLOAD = 1, 6, 7, 9
_SIOCGIFNAME = 0x8910  # linux/sockios.h
_ARP, _IPV4, _IPV6 = 0x0806, 0x0800, 0x86DD
_PROTOCOLS = {socket.IPPROTO_TCP: "TCP", socket.IPPROTO_UDP: "UDP"}


class AnnouncedPackets(NetlinkSocket):
    """A netlink socket, readable when a packet from or to a task that sleeps has passed the packet filter."""

    def __init__(self) -> None:
        """Open the socket.

        Raises:
            OSError: the kernel lacks nfnetlink_log, or another program has the group.
        """
        super().__init__(NETLINK_NETFILTER)
        head = _NFGENMSG.pack(socket.AF_UNSPEC, 0, ANNOUNCEMENTS)
        for setting in (
            attribute(_COMMAND, bytes([_BIND])),
            attribute(_MODE, struct.pack("!IBx", SNAPLEN, _COPY_PACKET)),
            attribute(_QUEUE_THRESHOLD, struct.pack("!I", 1)),  # at once
        ):
            [*_] = self.request(_CONFIG, NLM_ACK, head + setting)
        self._socket.setblocking(False)

    def packets(self) -> Mapping[str, str] | None:
        """Return the taps of packets, each with a description of its first one; None after lost messages.

        To be called when readable.
        """
        found: dict[str, str] = {}
        try:
            while True:
                for kind, body in self.receive():
                    values = attributes(body[_NFGENMSG.size :]) if kind == _PACKET else {}
                    for link in (_PHYSICAL_OUT, _PHYSICAL_IN):
                        with suppress(KeyError, OSError):  # OSError: the link is gone
                            name = self._name(int.from_bytes(values[link]))
                            found.setdefault(name, _description(values))
        except BlockingIOError:
            return found
        except OSError:  # ENOBUFS: messages were lost; EBADMSG
            return None

    def _name(self, link: int) -> str:
        """Return the name of a link in the socket's namespace; raises OSError without one (netdevice(7))."""
        found = fcntl.ioctl(self.fileno(), _SIOCGIFNAME, struct.pack("=16si20x", b"", link))
        return found[:16].rstrip(b"\0").decode(errors="replace")


QUESTION = "ARP of "


def is_question(description: str) -> bool:
    """Return whether a packet is a question for an address, after which another one comes for it."""
    return description.startswith((QUESTION, f"protocol {socket.IPPROTO_ICMPV6} "))


def _description(values: Mapping[int, bytes]) -> str:
    """Return the description of a packet, such as `TCP 192.0.2.9:41234 to 10.89.0.2:80`."""
    kind, packet = int.from_bytes(values.get(_HEADER, b"")[:2]), values.get(_PAYLOAD, b"")
    try:
        if kind == _ARP:
            return f"{QUESTION}{ip_address(packet[14:18])} for {ip_address(packet[24:28])}"
        if kind == _IPV4:
            start, number = (packet[0] & 15) * 4, packet[9]
            source, destination = packet[12:16], packet[16:20]
        elif kind == _IPV6:
            start, number = 40, packet[6]
            source, destination = packet[8:24], packet[24:40]
        else:
            return "a frame"
        ends = [str(ip_address(source)), str(ip_address(destination))]
        if number in _PROTOCOLS and len(packet) >= start + 4:
            ports = struct.unpack_from("!HH", packet, start)
            ends = [f"[{end}]:{port}" if ":" in end else f"{end}:{port}" for end, port in zip(ends, ports, strict=True)]
    except (ValueError, IndexError):
        return "a frame"
    return f"{_PROTOCOLS.get(number, f'protocol {number}')} {' to '.join(ends)}"
