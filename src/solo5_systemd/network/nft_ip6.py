"""The rules of table `ip6 solo5`: those of table ip, translated, so that both families have one policy.

What differs is here: the names of fields and types, neighbour discovery in place of ARP, which passes the tables as
ICMPv6, and link-local addresses, which every guest has beside its leased one.
"""

import re

from solo5_systemd.settings.egress import METADATA6

GROUPS = "mld-listener-report, mld-listener-done, mld2-listener-report, nd-router-solicit"
"""The ICMPv6 messages that are for routers, and come from guests without an address as well."""

TRANSPORTS = "{ tcp, udp, icmpv6 }"
"""Packets that begin with such a header have no routing header: the search for one is slower."""

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
    (r"icmp type != echo-request drop", f"icmpv6 type != {{ echo-request, {_NEIGHBOURS[2:-2]} }} drop"),
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
