"""Packets that nftables announces (nfnetlink_log): the first ones for tasks that sleep."""

import fcntl
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from solo5_systemd.network.announced_packet import answered, asked, description
from solo5_systemd.network.model import IpAddress
from solo5_systemd.network.nft_rules import ANNOUNCEMENTS, SNAPLEN
from solo5_systemd.network.raw_netlink import NETLINK_NETFILTER, NLM_ACK, NetlinkSocket, attribute, attributes

# linux/netfilter/nfnetlink_log.h: subsystem 4, its messages and attributes.
_PACKET, _CONFIG = 4 << 8, 4 << 8 | 1
_NFGENMSG = struct.Struct("!BBH")
_COMMAND, _MODE, _QUEUE_THRESHOLD = 1, 2, 5
_BIND, _COPY_PACKET = 1, 2
_PHYSICAL_IN, _PHYSICAL_OUT = 6, 7
_SIOCGIFNAME = 0x8910  # linux/sockios.h

_READS_MAX = 64
"""Reads until the caller acts on the packets: those of a flood end when their task is woken."""


class Packets(NamedTuple):
    """Packets that were announced.

    Attributes:
        by_tap: a description of the first one from or to each tap.
        questions: the tap of a guest, and the address for which it asks.
        answers: addresses for which their guests have answered.
    """

    by_tap: Mapping[str, str]
    questions: frozenset[tuple[str, IpAddress]]
    answers: frozenset[IpAddress]


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

    def packets(self) -> "Packets | None":
        """Return the packets since the last call; None after lost messages.

        To be called when readable, and again while it is.
        """
        found: dict[str, str] = {}
        questions: set[tuple[str, IpAddress]] = set()
        answers: set[IpAddress] = set()
        try:
            for _ in range(_READS_MAX):
                for kind, body in self.receive():
                    values = attributes(body[_NFGENMSG.size :]) if kind == _PACKET else {}
                    for link in (_PHYSICAL_OUT, _PHYSICAL_IN):
                        with suppress(KeyError, OSError):  # OSError: the link is gone
                            name = self._name(int.from_bytes(values[link]))
                            found.setdefault(name, description(values))
                            if link == _PHYSICAL_IN and (address := asked(values)) is not None:
                                questions.add((name, address))
                    if (own := answered(values)) is not None:
                        answers.add(own)
        except BlockingIOError:
            pass
        except OSError:  # ENOBUFS: messages were lost; EBADMSG
            return None
        return Packets(found, frozenset(questions), frozenset(answers))

    def _name(self, link: int) -> str:
        """Return the name of a link in the socket's namespace; raises OSError without one (netdevice(7))."""
        found = fcntl.ioctl(self.fileno(), _SIOCGIFNAME, struct.pack("=16si20x", b"", link))
        return found[:16].rstrip(b"\0").decode(errors="replace")
