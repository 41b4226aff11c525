"""Messages of rtnetlink(7) about links and neighbours: numbers, headers and attributes that several modules have."""

import os
import socket
import struct
import sys

from solo5_systemd.network.raw_netlink import attribute, attribute_of, attributes

# linux/rtnetlink.h, if_link.h, neighbour.h, net/if.h
NEWLINK, DELLINK, GETLINK, SETLINK, NEWNEIGH, DELNEIGH, GETNEIGH = 16, 17, 18, 19, 28, 29, 30
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
    """Return the payload of a request about a link.

    Args:
        index: 0: of the link, or of links, with these attributes.
        up: it is to be set up.
    """
    flags = IFF_UP if up else 0
    return IFINFOMSG.pack(family, 0, index, flags, flags) + b"".join(values)


def number(kind: int, value: int) -> bytes:
    """Return one attribute of a number of 32 bits."""
    return attribute(kind, value.to_bytes(4, sys.byteorder))


def named(link: str) -> bytes:
    """Return the attribute of a link's name, which may have any bytes except / and white space."""
    return attribute(IFLA_IFNAME, os.fsencode(link), b"\0")


def link_attributes(message: bytes) -> dict[int, bytes]:
    """Return the attributes of a message about a link."""
    return attributes(message[IFINFOMSG.size :])


def link_name(message: bytes) -> str:
    """Return the name of the link that a message is about."""
    return os.fsdecode(attribute_of(message[IFINFOMSG.size :], IFLA_IFNAME).rstrip(b"\0"))
