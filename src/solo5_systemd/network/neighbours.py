"""The host's neighbour tables: which MAC address it sends to for a guest's address, and when it looks for one.

A packet for an address without an entry waits in the kernel, which asks for the address: first user space, where
`app_solicit` is set on the link (neigh_app_ns of net/core/neighbour.c), then the link.
"""

import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from ipaddress import IPv4Address, ip_address
from pathlib import Path

from solo5_systemd.network.model import IpAddress
from solo5_systemd.network.nft_rules import ASKER
from solo5_systemd.network.raw_netlink import (
    NETLINK_ROUTE,
    NLM_ACK,
    NLM_CREATE,
    NLM_REPLACE,
    NetlinkSocket,
    attribute,
    attributes,
    is_type,
)

# linux/rtnetlink.h, neighbour.h
_NEWNEIGH, _DELNEIGH, _GETNEIGH = 28, 29, 30
_GROUP_NEIGHBOURS = 3
_NDMSG = struct.Struct("=BxxxiHBB")  # family, index, state, flags, type
_NDA_DST, _NDA_LLADDR = 1, 2
_NUD_INCOMPLETE, _NUD_REACHABLE, _NUD_PERMANENT = 0x01, 0x02, 0x80

_SYSCTLS = Path("/proc/sys/net")
_SYSCTLS_OF_LOOKUPS = (
    ("ipv4/neigh/{}/app_solicit", "1"),
    ("ipv6/neigh/{}/app_solicit", "1"),
    ("ipv4/conf/{}/arp_evict_nocarrier", "0"),
    ("ipv6/conf/{}/ndisc_evict_nocarrier", "0"),
    # A guest announces its address before its stack takes packets (MirageOS), and the kernel would send what it holds.
    ("ipv4/conf/{}/drop_gratuitous_arp", "1"),
    ("ipv6/conf/{}/drop_unsolicited_na", "1"),
)

_ETHERNET, _IPV4, _ARP = 1, 0x0800, 0x0806
_ARP_PACKET = struct.Struct("!HHBBH6s4s6s4s")
_REQUEST = 1
_NONE = bytes(6)


class Neighbours:
    """An rtnetlink socket for neighbour entries. Not thread-safe."""

    def __init__(self) -> None:
        self._route = NetlinkSocket(NETLINK_ROUTE)

    def close(self) -> None:
        """Close the socket."""
        self._route.close()

    def forget(self, link: str, addresses: Iterable[IpAddress]) -> bool:
        """Delete the entries of addresses, as far as there are any; an operator's own (permanent) entries stay.

        An entry for which the kernel looks, and holds packets, stays, too.

        Returns:
            Whether there is one of these.

        Raises:
            OSError: the kernel refused, or the link does not exist.
        """
        number, looked_for = socket.if_nametoindex(link), False
        for entry, state in self._found(number, addresses):
            looked_for |= state == _NUD_INCOMPLETE
            if state not in (_NUD_INCOMPLETE, _NUD_PERMANENT):
                self._route.execute([(_DELNEIGH, 0, entry)])
        return looked_for

    def keep(self, link: str, addresses: Iterable[IpAddress]) -> None:
        """Have the kernel hold packets for addresses until `confirm` or `refuse`, instead of for four seconds.

        Raises:
            OSError: the kernel refused, or the link does not exist.
        """
        number = socket.if_nametoindex(link)
        # An update to this state stops the timer of the entry (__neigh_update of net/core/neighbour.c).
        for address in addresses:
            if any(state == _NUD_INCOMPLETE for _, state in self._found(number, [address])):
                self._route.execute([(_NEWNEIGH, NLM_REPLACE, _entry(number, address, _NUD_INCOMPLETE))])

    def refuse(self, link: str, addresses: Iterable[IpAddress]) -> None:
        """Drop the packets that the kernel holds for addresses: their senders learn that these are unreachable.

        Raises:
            OSError: the kernel refused, or the link does not exist.
        """
        number = socket.if_nametoindex(link)
        for entry, state in self._found(number, addresses):
            if state == _NUD_INCOMPLETE:
                self._route.execute([(_DELNEIGH, 0, entry)])

    def _found(self, number: int, addresses: Iterable[IpAddress]) -> Iterator[tuple[bytes, int]]:
        """Yield the entries that exist, each with its state."""
        for address in addresses:
            entry = _entry(number, address)
            with suppress(FileNotFoundError):
                [(_, found)] = self._route.request(_GETNEIGH, NLM_ACK, entry)
                yield entry, _NDMSG.unpack_from(found)[2]

    def confirm(self, link: str, addresses: Iterable[IpAddress], mac: str) -> None:
        """Set the MAC address of addresses, as if their guest had answered: packets that wait for it are sent at once.

        Raises:
            OSError: the kernel refused, or the link does not exist.
        """
        number, lladdr = socket.if_nametoindex(link), attribute(_NDA_LLADDR, bytes.fromhex(mac.replace(":", "")))
        self._route.execute(
            [
                (_NEWNEIGH, NLM_CREATE | NLM_REPLACE, _entry(number, address, _NUD_REACHABLE) + lladdr)
                for address in addresses
            ]
        )

    @staticmethod
    def ask(link: str, address: IPv4Address, mac: str) -> None:
        """Ask a guest for its address; table bridge announces its answer, and keeps it from the kernel (`ASKER`).

        The kernel would send what it holds at once: too early for a guest that answers before it listens to a port.
        No sender address is in it, as in a probe of RFC 5227, so that no guest learns one with that MAC address.

        Raises:
            OSError: the kernel refused, or the link does not exist.
        """
        guest, asker = (bytes.fromhex(each.replace(":", "")) for each in (mac, ASKER))
        packet = _ARP_PACKET.pack(_ETHERNET, _IPV4, 6, 4, _REQUEST, asker, bytes(4), _NONE, address.packed)
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC) as sender:  # 0: it receives nothing
            sender.bind((link, 0))
            sender.send(guest + asker + _ARP.to_bytes(2) + packet)

    def announce_lookups(self, link: str) -> None:
        """Have the kernel announce each look-up of an address on a link to `LookupWatch`, before it asks the link.

        What it holds meanwhile is not dropped when the link has no carrier: a bridge without a guest that runs.

        Raises:
            OSError: the link does not exist.
        """
        for name, value in _SYSCTLS_OF_LOOKUPS:
            path = _SYSCTLS / name.format(link)
            if path.exists():  # not where the kernel lacks the family
                path.write_text(value)


class LookupWatch(NetlinkSocket):
    """A netlink socket in RTNLGRP_NEIGH, readable when the kernel looks for an address on a link of `announce_lookups`.

    The kernel drops all other messages of the group.
    """

    def __init__(self) -> None:
        super().__init__(NETLINK_ROUTE, _GROUP_NEIGHBOURS)
        self.receive_only([is_type(_GETNEIGH)])

    def looked_up(self) -> Sequence[tuple[int, IpAddress]] | None:
        """Return the links, by their indexes, and addresses; None after lost messages. To be called when readable."""
        queued = self.queued()
        if queued is None:
            return None
        found: list[tuple[int, IpAddress]] = []
        for _, body in queued:
            address = attributes(body[_NDMSG.size :]).get(_NDA_DST, b"")
            if len(address) in (4, 16):
                found.append((_NDMSG.unpack_from(body)[1], ip_address(address)))
        return found


def _entry(link: int, address: IpAddress, state: int = 0) -> bytes:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    return _NDMSG.pack(family, link, state, 0, 0) + attribute(_NDA_DST, address.packed)
