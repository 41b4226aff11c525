"""Rules for frames that pass where policy forbids all else: they have one form, so that they carry nothing.

ARP and neighbour discovery pass between guests that may not send each other anything. IPv4 options and IPv6 routing
headers name further addresses, which no rule sees. The rules are those of a guest's frames, in table bridge and in
the table of a guest that has the interface of its namespace (`network.redirect`).
"""

from collections.abc import Iterator

TRANSPORTS = "{ tcp, udp, icmpv6 }"
"""Packets that begin with such a header have no routing header: the search for one is slower."""


def ipv4(refused: str) -> Iterator[str]:
    """Yield the rules of an IPv4 packet: no options, but Router Alert of IGMP (RFC 3376)."""
    yield f"ip hdrlength != 5 ip protocol != igmp {refused}"
    yield f"ip hdrlength > 6 {refused}"
    yield f"ip hdrlength 6 @nh,160,32 != 0x94040000 {refused}"


def ipv6(refused: str) -> Iterator[str]:
    """Yield the rules of an IPv6 packet: no routing header."""
    yield f"ip6 nexthdr != {TRANSPORTS} exthdr rt exists {refused}"


def arp(refused: str) -> Iterator[str]:
    """Yield the rules of an ARP frame: of Ethernet and IPv4, 28 bytes, alone or filled with zeros to 46.

    The receiver of a request ignores the target's MAC address, and that of a reply is its own: it is replaced.
    """
    yield f"meta length != {{ 28, 46 }} {refused}"
    yield f"@nh,0,48 != 0x000108000604 {refused}"
    yield f"arp operation != {{ request, reply }} {refused}"
    yield f"meta length 46 @nh,224,128 != 0 {refused}"
    yield f"meta length 46 @nh,352,16 != 0 {refused}"
    yield "arp daddr ether set ether daddr"


def neighbours(refused: str) -> Iterator[str]:
    """Yield the rules of a neighbour solicitation or advertisement: no extension header, no option, or one of 8 bytes.

    Traffic class, flow label, code, and reserved bits are 0.
    """
    yield f"ip6 nexthdr != icmpv6 {refused}"
    yield f"meta length != {{ 64, 72 }} {refused}"
    yield f"meta length 64 ip6 length != 24 {refused}"
    yield f"meta length 72 ip6 length != 32 {refused}"
    yield f"@nh,0,32 != 0x60000000 {refused}"
    yield f"@th,8,8 != 0 {refused}"
    yield f"icmpv6 type nd-neighbor-solicit @th,32,32 != 0 {refused}"
    yield f"icmpv6 type nd-neighbor-advert @th,32,32 & 0x1fffffff != 0 {refused}"


def routers(refused: str) -> Iterator[str]:
    """Yield the rules of a router solicitation: with no option, or one of 8 bytes. MirageOS has sent one of type 0."""
    yield f"icmpv6 type nd-router-solicit meta length != {{ 48, 56 }} {refused}"
