"""Sockets that the kernel makes readable when another program changes links, addresses or forwarding."""

import os
import socket
import sys
from contextlib import suppress

from solo5_systemd.network import ipv6_sysctls
from solo5_systemd.network import rtnetlink as rt
from solo5_systemd.network.raw_netlink import NETLINK_ROUTE, NetlinkSocket, attributes, equals, has_bits, is_type
from solo5_systemd.network.sysctls import IP_FORWARD

# linux/rtnetlink.h, if_addr.h, netconf.h
_GROUP_IPV4_ADDRESS, _GROUP_IPV6_ADDRESS, _GROUP_IPV4_NETCONF, _GROUP_IPV6_NETCONF = 5, 9, 24, 25
_RTM_DELADDR, _RTM_NEWNETCONF = 21, 80
_FLAGS, _CHANGE = 24, 28  # of struct ifinfomsg, from the message's header on
_IS_NEW = 1 << 31  # all bits are set for a new link
_IFA_LABEL = 3
_NETCONFA_FORWARDING, _NO_LINK, _NEW_LINKS = 2, 0xFFFFFFFF, 0xFFFFFFFE
_INET6 = int.from_bytes((socket.AF_INET6, 0), sys.byteorder)  # struct netconfmsg, padded


class LinkWatch(NetlinkSocket):
    """A netlink socket, readable when a link is removed, leaves its bridge or is set down, or loses an address.

    The kernel removes the IPv6 addresses of all links when a program sets disable_ipv6. Also readable when
    net.ipv4.ip_forward or net.ipv6.conf.all.forwarding is set. The kernel drops all other messages: every step of an
    attach changes a link, and a new link has its sysctls announced.
    """

    def __init__(self) -> None:
        addresses, forwards = (_GROUP_IPV4_ADDRESS, _GROUP_IPV6_ADDRESS), (_GROUP_IPV4_NETCONF, _GROUP_IPV6_NETCONF)
        super().__init__(NETLINK_ROUTE, rt.GROUP_LINK, *addresses, *forwards)
        forwarding = equals(30, _NETCONFA_FORWARDING, 2)
        self.receive_only(
            [is_type(rt.DELLINK)],
            [is_type(_RTM_DELADDR)],
            [
                is_type(rt.NEWLINK),
                has_bits(_CHANGE, rt.IFF_UP),
                has_bits(_CHANGE, _IS_NEW, negated=True),
                has_bits(_FLAGS, rt.IFF_UP, negated=True),
            ],
            # Behind the header: the family, the attribute of the link, which is none (all), and that of the sysctl. Of
            # IPv6 also that of new links: a write of 1 where there is one changes no other (`ipv6_sysctls`).
            [is_type(_RTM_NEWNETCONF), equals(24, _NO_LINK), forwarding],
            [is_type(_RTM_NEWNETCONF), equals(16, _INET6, 2), equals(24, _NEW_LINKS), forwarding],
        )

    def changed(self) -> frozenset[str] | None:
        """Return the names of these links and sysctls; None after lost messages. To be called when readable."""
        found = self.queued()
        if found is None:
            return None
        return frozenset(_sysctl(body) if kind == _RTM_NEWNETCONF else _link_name(kind, body) for kind, body in found)


def _sysctl(body: bytes) -> str:
    """Return the name of the sysctl in a message on forwarding, by its family."""
    return ipv6_sysctls.FORWARDING if body[:1] == bytes([socket.AF_INET6]) else IP_FORWARD


def _link_name(kind: int, body: bytes) -> str:
    """Return the name of the link in a message on a link or an address, empty of one that is gone.

    The label of an IPv4 address may have a suffix (`eth0:1`); one of IPv6 has an index, of the watch's own namespace.
    """
    if kind == _RTM_DELADDR and body[:1] == bytes([socket.AF_INET6]):
        with suppress(OSError):
            return socket.if_indextoname(rt.IFADDRMSG.unpack_from(body)[-1])
        return ""
    if kind == _RTM_DELADDR:
        return os.fsdecode(attributes(body[rt.IFADDRMSG.size :]).get(_IFA_LABEL, b"").rstrip(b"\0").partition(b":")[0])
    return os.fsdecode(rt.link_attributes(body).get(rt.IFLA_IFNAME, b"").rstrip(b"\0"))


class CarrierWatch(NetlinkSocket):
    """A netlink socket, readable when a link has a carrier, as a tap has while a process has it open.

    The kernel drops all other messages. Frames pass a moment later: `Neighbours.passes_frames`.
    """

    def __init__(self) -> None:
        super().__init__(NETLINK_ROUTE, rt.GROUP_LINK)
        self.receive_only([is_type(rt.NEWLINK), has_bits(_FLAGS, rt.IFF_LOWER_UP)])

    def up(self) -> frozenset[str] | None:
        """Return the names of links with a carrier; None after lost messages. To be called when readable."""
        found = self.queued()
        return None if found is None else frozenset(_link_name(kind, body) for kind, body in found)
