"""What the kernel announces by netlink sockets: changes of other programs, and packets for tasks that sleep or wait.

Changes are those of links, addresses, forwarding and nftables; packets are those that a rule announces (nfnetlink_log),
or for which the kernel looks for a neighbour.
"""

import fcntl
import os
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple

from solo5_systemd.network import netlink as nl
from solo5_systemd.network.model import IpAddress
from solo5_systemd.network.nft_objects import TABLE
from solo5_systemd.network.nft_rules import ANNOUNCEMENTS, SNAPLEN
from solo5_systemd.network.sysctls import IP_FORWARD, IPV6_FORWARDING

# linux/rtnetlink.h, if_addr.h, netconf.h
_GROUP_IPV4_ADDRESS, _GROUP_IPV6_ADDRESS, _GROUP_IPV4_NETCONF, _GROUP_IPV6_NETCONF = 5, 9, 24, 25
_RTM_NEWNETCONF = 80
_FLAGS, _CHANGE = 24, 28  # of struct ifinfomsg, from the message's header on
_IS_NEW = 1 << 31  # all bits are set for a new link
_IFA_LABEL = 3
_NETCONFA_FORWARDING, _NO_LINK, _NEW_LINKS = 2, 0xFFFFFFFF, 0xFFFFFFFE
_INET6 = int.from_bytes((socket.AF_INET6, 0), sys.byteorder)  # struct netconfmsg, padded
_GROUP_NEIGHBOURS, _GROUP_NFTABLES = 3, 7  # the latter of linux/netfilter/nfnetlink.h
_TABLE_NAME = 1  # NFTA_TABLE_NAME, and the table's name in chains, rules, sets and elements alike

# linux/netfilter/nfnetlink_log.h: subsystem 4, its messages and attributes.
_PACKET, _CONFIG = 4 << 8, 4 << 8 | 1
_COMMAND, _MODE, _QUEUE_THRESHOLD = 1, 2, 5
_BIND, _COPY_PACKET = 1, 2
_PHYSICAL_IN, _PHYSICAL_OUT = 6, 7
_SIOCGIFNAME = 0x8910  # linux/sockios.h

HEADER, PAYLOAD = 1, 9
"""Attributes of a packet: NFULA_PACKET_HDR, and NFULA_PAYLOAD from the IP or ARP header on."""

_ARP, _IPV4, _IPV6 = 0x0806, 0x0800, 0x86DD
_PROTOCOLS = {6: "TCP", 17: "UDP"}

_QUESTION, _REQUEST, _REPLY = "ARP of ", b"\0\1", b"\0\2"
_NUMBER6, _SOLICIT, _ADVERT = 58, b"\x87", b"\x88"
_ICMPV6 = f"protocol {_NUMBER6} "


class LinkWatch(nl.NetlinkSocket):
    """A netlink socket, readable when a link is removed, leaves its bridge or is set down, or loses an address.

    The kernel removes the IPv6 addresses of all links when a program sets disable_ipv6. Also readable when
    net.ipv4.ip_forward or net.ipv6.conf.all.forwarding is set. The kernel drops all other messages: every step of an
    attach changes a link, and a new link has its sysctls announced.
    """

    def __init__(self) -> None:
        addresses, forwards = (_GROUP_IPV4_ADDRESS, _GROUP_IPV6_ADDRESS), (_GROUP_IPV4_NETCONF, _GROUP_IPV6_NETCONF)
        super().__init__(nl.NETLINK_ROUTE, nl.GROUP_LINK, *addresses, *forwards)
        forwarding = nl.equals(30, _NETCONFA_FORWARDING, 2)
        self.receive_only(
            [nl.is_type(nl.DELLINK)],
            [nl.is_type(nl.DELADDR)],
            [
                nl.is_type(nl.NEWLINK),
                nl.equals(_CHANGE, nl.IFF_UP, bits=nl.IFF_UP | _IS_NEW),
                nl.equals(_FLAGS, 0, bits=nl.IFF_UP),
            ],
            # Behind the header: the family, the attribute of the link, which is none (all), and that of the sysctl. Of
            # IPv6 also that of new links: a write of 1 where there is one changes no other (`sysctls`).
            [nl.is_type(_RTM_NEWNETCONF), nl.equals(24, _NO_LINK), forwarding],
            [nl.is_type(_RTM_NEWNETCONF), nl.equals(16, _INET6, 2), nl.equals(24, _NEW_LINKS), forwarding],
        )

    def changed(self) -> frozenset[str] | None:
        """Return the names of these links and sysctls; None after lost messages. To be called when readable."""
        found = self.queued()
        return None if found is None else frozenset(_name_in(kind, body) for kind, body in found)


def _name_in(kind: int, body: bytes) -> str:
    """Return the name of the link in a message on a link or an address, empty of one that is gone; or of the sysctl.

    The label of an IPv4 address may have a suffix (`eth0:1`); one of IPv6 has an index, of the watch's own namespace.
    """
    is_ipv6 = body[:1] == bytes([socket.AF_INET6])
    if kind == _RTM_NEWNETCONF:
        return IPV6_FORWARDING if is_ipv6 else IP_FORWARD
    if kind == nl.DELADDR and is_ipv6:
        with suppress(OSError):
            return socket.if_indextoname(nl.IFADDRMSG.unpack_from(body)[-1])
        return ""
    if kind == nl.DELADDR:
        label = nl.attributes(body[nl.IFADDRMSG.size :]).get(_IFA_LABEL, b"")
        return os.fsdecode(label.rstrip(b"\0").partition(b":")[0])
    return os.fsdecode(nl.link_attributes(body).get(nl.IFLA_IFNAME, b"").rstrip(b"\0"))


class CarrierWatch(nl.NetlinkSocket):
    """A netlink socket, readable when a link has a carrier, as a tap has while a process has it open.

    The kernel drops all other messages. Frames pass a moment later: `Neighbours.passes_frames`.
    """

    def __init__(self) -> None:
        super().__init__(nl.NETLINK_ROUTE, nl.GROUP_LINK)
        self.receive_only([nl.is_type(nl.NEWLINK), nl.equals(_FLAGS, nl.IFF_LOWER_UP, bits=nl.IFF_LOWER_UP)])

    def up(self) -> frozenset[str] | None:
        """Return the names of links with a carrier; None after lost messages. To be called when readable."""
        found = self.queued()
        return None if found is None else frozenset(_name_in(kind, body) for kind, body in found)


class LookupWatch(nl.NetlinkSocket):
    """A netlink socket in RTNLGRP_NEIGH, readable when the kernel looks for an address on a link of `Neighbours.hold`.

    The kernel drops all other messages of the group.
    """

    def __init__(self) -> None:
        super().__init__(nl.NETLINK_ROUTE, _GROUP_NEIGHBOURS)
        self.receive_only([nl.is_type(nl.GETNEIGH)])

    def looked_up(self) -> Sequence[tuple[int, IpAddress]] | None:
        """Return the links, by their indexes, and addresses; None after lost messages. To be called when readable."""
        if (queued := self.queued()) is None:
            return None
        found = (
            (nl.NDMSG.unpack_from(body)[1], nl.attributes(body[nl.NDMSG.size :]).get(nl.NDA_DST, b""))
            for _, body in queued
        )
        return [(link, ip_address(address)) for link, address in found if len(address) in (4, 16)]


class RulesetWatch(nl.NetlinkSocket):
    """A netlink socket in NFNLGRP_NFTABLES, readable when any program commits a change of nftables."""

    def __init__(self) -> None:
        super().__init__(nl.NETLINK_NETFILTER, _GROUP_NFTABLES)

    def changed(self) -> bool:
        """Return whether a commit concerned the tables of this service. To be called when readable."""
        queued = self.queued()
        if queued is None:  # messages were lost, so the tables may have changed
            return True
        own = TABLE.encode() + b"\0"
        return any(nl.attributes(body[nl.NFGENMSG.size :]).get(_TABLE_NAME) == own for _, body in queued)


# -- packets -----------------------------------------------------------------------------------------------------------


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


class AnnouncedPackets(nl.NetlinkSocket):
    """A netlink socket, readable when a packet from or to a task that sleeps has passed the packet filter."""

    def __init__(self) -> None:
        """Open the socket; raises OSError where the kernel lacks nfnetlink_log, or another program has the group."""
        super().__init__(nl.NETLINK_NETFILTER)
        head = nl.NFGENMSG.pack(socket.AF_UNSPEC, 0, ANNOUNCEMENTS)
        for setting in (
            nl.attribute(_COMMAND, bytes([_BIND])),
            nl.attribute(_MODE, struct.pack("!IBx", SNAPLEN, _COPY_PACKET)),
            nl.attribute(_QUEUE_THRESHOLD, struct.pack("!I", 1)),  # at once
        ):
            [*_] = self.request(_CONFIG, nl.NLM_ACK, head + setting)
        self.setblocking(False)

    def packets(self) -> Packets | None:
        """Return the packets since the last call; None after lost messages.

        To be called when readable, and again while it is.
        """
        found: dict[str, str] = {}
        questions: set[tuple[str, IpAddress]] = set()
        answers: set[IpAddress] = set()
        if (queued := self.queued()) is None:
            return None
        for kind, body in queued:
            values = nl.attributes(body[nl.NFGENMSG.size :]) if kind == _PACKET else {}
            asks, address = target(values)
            if address is not None and not asks:
                answers.add(address)
            for link in (_PHYSICAL_OUT, _PHYSICAL_IN):
                with suppress(KeyError, OSError):  # OSError: the link is gone
                    name = self._name(int.from_bytes(values[link]))
                    found.setdefault(name, description(values))
                    if link == _PHYSICAL_IN and address is not None and asks:
                        questions.add((name, address))
        return Packets(found, frozenset(questions), frozenset(answers))

    def _name(self, link: int) -> str:
        """Return the name of a link in the socket's namespace; raises OSError without one (netdevice(7))."""
        found = fcntl.ioctl(self.fileno(), _SIOCGIFNAME, struct.pack("=16si20x", b"", link))
        return found[:16].rstrip(b"\0").decode(errors="replace")


def is_question(what: str) -> bool:
    """Return whether a description is that of a question for an address, after which another packet comes for it."""
    return what.startswith((_QUESTION, _ICMPV6))


def target(values: Mapping[int, bytes]) -> tuple[bool, IpAddress | None]:
    """Return whether a packet asks for an address, by ARP or neighbour discovery, or answers for it, and that address.

    None: it does neither.
    """
    kind, packet = int.from_bytes(values.get(HEADER, b"")[:2]), values.get(PAYLOAD, b"")
    if kind == _ARP and packet[6:8] in (_REQUEST, _REPLY) and len(packet) >= 28:  # a guest may send less
        asks = packet[6:8] == _REQUEST
        return asks, IPv4Address(packet[24:28] if asks else packet[14:18])
    message = packet[40:41] if kind == _IPV6 and packet[6:7] == bytes([_NUMBER6]) and len(packet) >= 64 else b""
    return message == _SOLICIT, IPv6Address(packet[48:64]) if message in (_SOLICIT, _ADVERT) else None


def description(values: Mapping[int, bytes]) -> str:
    """Return the description of a packet by the attributes of its message: `TCP 192.0.2.9:41234 to 10.89.0.2:80`."""
    kind, packet = int.from_bytes(values.get(HEADER, b"")[:2]), values.get(PAYLOAD, b"")
    try:
        if kind == _ARP:
            return f"{_QUESTION}{ip_address(packet[14:18])} for {ip_address(packet[24:28])}"
        if kind == _IPV4:
            start, number = (packet[0] & 15) * 4, packet[9]
            source, destination = packet[12:16], packet[16:20]
        elif kind == _IPV6:
            start, number = 40, packet[6]
            source, destination = packet[8:24], packet[24:40]
        else:
            return "a frame"
        ends = [str(ip_address(source)), str(ip_address(destination))]
    except (ValueError, IndexError):  # a guest may send a header that is cut off
        return "a frame"
    if number in _PROTOCOLS and len(packet) >= start + 4:
        ports = struct.unpack_from("!HH", packet, start)
        ends = [f"[{end}]:{port}" if ":" in end else f"{end}:{port}" for end, port in zip(ends, ports, strict=True)]
    return f"{_PROTOCOLS.get(number, f'protocol {number}')} {' to '.join(ends)}"
