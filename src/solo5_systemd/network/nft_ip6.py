"""The nftables rules of IPv6: those of table ip, translated, so that both families have one policy.

What differs is here: the names of fields and types, neighbour discovery in place of ARP, which passes the tables as
ICMPv6, and link-local addresses, which every guest has beside its leased one.
"""

import re

from solo5_systemd.network.nft_frames import TRANSPORTS
from solo5_systemd.settings.egress import METADATA6

GROUPS = "mld-listener-report, mld-listener-done, mld2-listener-report, nd-router-solicit"
"""The ICMPv6 messages that are for routers, and come from guests without an address as well."""

_NEIGHBOURS = "{ nd-neighbor-solicit, nd-neighbor-advert }"

_TRANSLATED = (
    ("table ip ", "table ip6 "),
    (r"\bipv4_addr\b", "ipv6_addr"),
    # The order matters: "rt ip nexthop" has both words.
    (r"\b(dnat|snat|rt|l3proto) ip\b", r"\1 ip6"),
    # A reply to ::1 is routed to lo alone, but for the bridges of namespaces (`network.links`). Elsewhere, a connection
    # to ::1 is refused at once, for a client of `localhost` to go on with 127.0.0.1.
    (r"(\n +)set gateways \{.*\}", r"\g<0>\1set looped { type ipv6_addr; }"),
    (
        r"( +)(type nat hook output priority -100; policy accept;)",
        r"\1\2\n\1ip6 daddr ::1 ip6 daddr != @looped accept",
    ),
    # DHCP is of IPv4.
    (r"\n +set dhcp \{.*\}", ""),
    (r"\n.*@dhcp\b.*", ""),
    (r"127\.0\.0\.(0/8|1\b)", "::1"),
    (r"\bip (saddr|daddr)\b", r"ip6 \1"),
    (r"\bMETADATA\b", ", ".join(METADATA6)),
    # A router solicitation: for a router advertisement daemon of the operator. Of a guest's two addresses, the leased
    # one alone has a connection limit.
    (
        r"( +)icmp type echo-request goto limited",
        rf"\1icmpv6 type nd-router-solicit accept\n\1icmpv6 type {_NEIGHBOURS} accept\n"
        r"\1ip6 saddr . ip6 saddr != @leased drop\n"
        r"\1icmpv6 type echo-request goto limited",
    ),
    # Neighbour discovery and link-local destinations within a bridge, with br_netfilter. The kernel also routes them,
    # back to their link, at the cost of an entry of its neighbour table: a routed packet has another hop limit, and
    # table bridge drops those with link-local destinations that are sent to the host's MAC address.
    # In the place of IPv4 options.
    (r"\bip hdrlength != 5\b", f"ip6 nexthdr != {TRANSPORTS} exthdr rt exists"),
    (
        r"( +)meta pkttype host ip6 daddr . ip6 daddr != @leased ip6 daddr != @behind goto dropped_absent",
        rf"\1iifname . oifname @paths icmpv6 type {_NEIGHBOURS} ip6 hoplimit 255 accept\n"
        rf"\1icmpv6 type {_NEIGHBOURS} goto dropped_absent\n"
        r"\1meta pkttype host ip6 daddr . ip6 daddr != @leased "
        r"ip6 daddr != @behind ip6 daddr != fe80::/10 goto dropped_absent",
    ),
)


def ip6(rules: str) -> str:
    """Return rules of table ip for table ip6."""
    for pattern, text in _TRANSLATED:
        rules = re.sub(pattern, text, rules)
    return rules


BRIDGE_SETS = """
    set guests6 { type ifname . ether_addr . ipv6_addr; }
    set linked { typeof iifname . @th,208,48; }
    set advertised { typeof iifname . @th,64,64 . @th,128,64; }
    set fragments6 { type ipv6_addr; counter; }
    set unlisted6 { type ipv6_addr; counter; }
    set near6 { type ether_addr . ipv6_addr; }
"""
"""nftables 1.0.6 has no names for the fields of neighbour discovery: 64 bits after the begin of the ICMPv6 header is
the target address, 208 bits after it the link-layer address of a first option.

The address is two numbers: nftables 1.1.3 lists one of 128 bits by its name, and then cannot read its own listing. Four
numbers are too many for `typeof`.
"""

BRIDGE_CHAINS = """
    # From taps with a leased IPv6 address. Without an address (::) a guest only announces groups, looks for a router,
    # and detects duplicates of its addresses. Each solicitation of a router can have a reply to all guests of the
    # network, so they are limited as messages to DHCP servers are. Their option is not checked: MirageOS has sent one
    # with the type 0.
    chain proper6 {
        icmpv6 type { nd-router-advert, nd-redirect, mld-listener-query } goto dropped_unsafe
        udp dport 546 goto dropped_unsafe
        icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } goto neighbours6
        RS_FRAMES
        icmpv6 type nd-router-solicit \\
            update @askers { iifname limit rate over ASKERS_RATE/second burst ASKERS_BURST packets } drop
        ip6 saddr :: iifname . ether saddr @ipv6 icmpv6 type { GROUPS } goto grouping6
        iifname . ether saddr . ip6 saddr @guests6 goto whole6
        iifname . ether saddr . ip6 saddr @behind6 goto routing6
        goto dropped_spoofed
    }
    # From addresses behind a guest. They are of no neighbour, and have no link-local destinations.
    chain routing6 {
        ip6 daddr fe80::/10 goto dropped_unsafe
        exthdr frag exists iifname @whole drop
        goto whole6
    }
    # As ARP: only own addresses are announced, and only with the guest's own MAC. No option, or one of 8 bytes: the
    # source (1) or target (2) link-layer address; on a LAN, where others may have its address, a nonce (14, RFC 7527).
    chain neighbours6 {
        ND_FRAMES
        ip6 length 24 goto announced6
        icmpv6 type nd-neighbor-solicit @th,192,16 0x0101 iifname . @th,208,48 @linked goto announced6
        icmpv6 type nd-neighbor-solicit @th,192,16 0x0e01 ip6 saddr :: iifname @joined goto announced6
        icmpv6 type nd-neighbor-advert @th,192,16 0x0201 iifname . @th,208,48 @linked goto announced6
        goto dropped_unsafe
    }
    # Without a leased address, on a joined bridge, any one is: its own MAC is checked alone.
    chain announced6 {
        iifname . ether saddr @unleased6 accept
        icmpv6 type nd-neighbor-solicit iifname . ether saddr . ip6 saddr @guests6 accept
        icmpv6 type nd-neighbor-solicit ip6 saddr :: iifname . ether saddr @ipv6 \\
            iifname . @th,64,64 . @th,128,64 @advertised accept
        icmpv6 type nd-neighbor-advert iifname . ether saddr . ip6 saddr @guests6 \\
            iifname . @th,64,64 . @th,128,64 @advertised accept
        drop
    }
    # A routing header names further destinations, which no rule would see: a guest is no source of routes. A link-local
    # destination is a neighbour's, with its MAC address: the host would route any other, and look for it.
    chain whole6 {
        IPV6_FRAMES
        ip6 daddr fe80::/10 ether daddr . ip6 daddr != @near6 goto dropped_unsafe
        exthdr frag exists ip6 saddr @fragments6 drop
        exthdr frag exists ip6 saddr fe80::/10 drop
        iifname @confined goto confining6
        ip6 daddr fe80::/10 ether daddr @secluded goto dropped_unsafe
        ether daddr set ether daddr map @secluded meta pkttype set host
        accept
    }
    # With an egress list, all but neighbour discovery goes to the host, whose rules decide. The kernel returns
    # packets with link-local addresses to the link that they came from, so these would be a way around the list, and
    # cost an entry of its neighbour table each.
    chain confining6 {
        icmpv6 type { GROUPS } goto grouping6
        ip6 saddr fe80::/10 goto dropped_spoofed
        ip6 daddr fe80::/10 goto unlisted6
        meta pkttype { broadcast, multicast } goto unlisted6
        ether daddr set iifname map @confined meta pkttype set host
        accept
    }
    # Groups and router solicitations are for routers. Of a guest with an egress list the host alone receives them, and
    # does not pass them on: they have room for any text.
    chain grouping6 {
        ip6 daddr != ff02::/16 goto dropped_unsafe
        iifname != @confined accept
        ether daddr set iifname map @confined meta pkttype set host
        accept
    }
    chain unlisted6 {
        ip6 saddr @unlisted6 drop
        drop
    }
""".replace("GROUPS", GROUPS)
