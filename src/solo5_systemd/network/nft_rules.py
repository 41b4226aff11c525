"""The nftables tables `ip`, `ip6` and `bridge solo5`, in the syntax of nft(8): rules and transactions.

Table ip6 exists while a network with IPv6 is up. Networks, guests and published ports are elements of sets and maps
(`nft_elements`). So the cost of a packet and of a change does not grow with the number of tasks.

Text instead of libnftables' JSON: the JSON parser of nftables 1.0.6 (Debian 12) turns a map with a concatenated value
into a set, and crashes at the first rule that uses it.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from solo5_systemd.network import nft_frames
from solo5_systemd.network.drops import RULES
from solo5_systemd.network.model import Network
from solo5_systemd.network.nft_elements import TABLE, Element, Ruleset, elements, has_ipv6
from solo5_systemd.network.nft_ip6 import BRIDGE_CHAINS, BRIDGE_SETS, GROUPS, ip6
from solo5_systemd.network.nft_objects import EGRESS
from solo5_systemd.settings.egress import METADATA

FAMILIES = ("ip", "ip6", "bridge")

FLOWS = "flows"
"""The dynamic set whose elements count a guest's open connections (`ct count`); the kernel adds and removes them."""

CONTACTED = "contacted"
"""The dynamic set of the host's UDP ports that had a flow since the tables were made, or since their flows were
deleted. It has room for all ports: a port that is not in it had none.
"""

CLOSED_TIMEOUT_S = 10
"""The conntrack timeout of a closed TCP connection that a guest has opened."""

NEIGHBOURS_BURST, NEIGHBOURS_RATE, NEIGHBOUR_TIMEOUT_S = 64, 16, 5
"""The neighbours that one guest may use: a burst, a rate per second, and the time for which a neighbour is known.

That is 144 entries of the host's neighbour table, which has 1024 (net.ipv4.neigh.default.gc_thresh3) for all links
or, with many guests, twice their number and 512. Of IPv6 it is up to twice as many, with the groups of solicitations.
"""

ASKERS_BURST, ASKERS_RATE = 20, 5
"""The messages that one guest may send to the DHCP server: a burst, and a rate per second."""

STRANGERS, UNSERVED = "strangers", "unserved"
"""The dynamic map of table bridge of the taps that have sent ARP from another address than the leased one, with the
last, and the set of those that have asked a DHCP server in vain."""

LIMITED = "limited"
"""The chain of the connection limits, whose rules depend on the networks that are up."""

_TABLES = (
    """
table ip solo5 {
    OWNED
    set bridges { type ifname; }
    set segments { type ifname; }
    set within { type ipv4_addr . ipv4_addr; flags interval; }
    set masqueraded { type ipv4_addr; flags interval; }
    map published { type inet_proto . inet_service : ipv4_addr . inet_service; }
    map published_at { type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service; }
    set paths { type ifname . ifname; }
    set bridged { type ifname . ifname; }
    set routed { type ifname; }
    set metadata { type ifname; }
    set shared { type ifname; }
    set gateways { type ifname . ipv4_addr; }
    set services { type ifname . inet_proto . inet_service; }
    set dhcp { type ifname; }
    set refused { type ipv4_addr; counter; }
    set unlisted { type ipv4_addr; counter; }
    map egress { type ipv4_addr : verdict; }
    set flows { type ipv4_addr; size 65535; flags dynamic; }
    set contacted { type inet_service; size 65536; flags dynamic; }
    # Each address twice: a look-up finds whether two addresses are the same, and a guest's.
    set leased { type ipv4_addr . ipv4_addr; }
    set opened { type ipv4_addr; size 65535; flags dynamic, timeout; timeout 1m; }
    set neighbours { type ipv4_addr; size 65535; flags dynamic, timeout; }
    set seekers { type ipv4_addr; size 65535; flags dynamic, timeout; timeout 1m; }
    set behind { type ipv4_addr; flags interval; }
    set routers { type ipv4_addr . ipv4_addr; flags interval; }
    set flows_behind { type ifname; size 1024; flags dynamic; }
    set opened_behind { type ifname; size 1024; flags dynamic, timeout; timeout 1m; }
    set seekers_behind { type ifname; size 1024; flags dynamic, timeout; timeout 1m; }
    set closed { type ipv4_addr . inet_service . ipv4_addr . inet_service; size 262144; flags dynamic, timeout; }

    # A closed TCP connection stays in the conntrack table for this long instead of two minutes. Every entry that stays
    # longer is counted in the set flows.
    ct timeout soon { protocol tcp; l3proto ip; policy = { time_wait : CLOSED, close : CLOSED }; }

    COUNTED_ip

    # The words of a rule that most packets do not match come first, and the look-up of a link in a set after them.
    # Ports published at 127.0.0.1 need route_localnet on the bridges, which alone would open the host's loopback.
    chain localnet {
        type filter hook prerouting priority raw; policy accept;
        ip daddr 127.0.0.0/8 iifname @bridges goto dropped_loopback
        udp sport 68 udp dport 67 iifname @dhcp fib daddr type != unicast notrack accept
        tcp flags & (syn | ack) != syn ip saddr . tcp sport . ip daddr . tcp dport @closed iifname @bridges drop
    }
    # Each packet of a closed connection restarts its timeout. So the first one passes, such as the last ACK, and enters
    # the connection in @closed: later ones from guests are dropped above, in raw, before conntrack sees them. A
    # remaining time below the timeout identifies a closed connection. A new connection of the same ports starts with
    # SYN, which passes.
    chain closing {
        type filter hook prerouting priority mangle; policy accept;
        meta l4proto tcp ct expiration <= CLOSEDs ct status confirmed iifname @bridges \\
            ct original ip saddr . ct original ip saddr @leased goto closed_now
        meta l4proto tcp ct expiration <= CLOSEDs ct status confirmed iifname @bridges ct original ip saddr @behind \\
            goto closed_now
    }
    chain closed_now {
        meta l4proto tcp add @closed { ct original ip saddr . ct original proto-src . \\
                ct original ip daddr . ct original proto-dst timeout CLOSEDs } \\
            add @closed { ct reply ip saddr . ct reply proto-src . \\
                ct reply ip daddr . ct reply proto-dst timeout CLOSEDs }
    }
    # The host's UDP ports that had a flow: the conntrack table is searched for stale flows of these only. Once for each
    # flow: the kernel calls a nat chain for the first packet only, and none after the one that translates it. So these
    # have the first priority that a nat chain can have.
    chain arriving {
        type nat hook prerouting priority -199; policy accept;
        meta l4proto udp fib daddr type local add @contacted { udp dport }
    }
    chain departing {
        type nat hook output priority -199; policy accept;
        meta l4proto udp fib daddr type local add @contacted { udp dport }
    }
    # Packets from a link for 127.0.0.0/8 are not translated, so that the kernel drops them as martians.
    chain prerouting {
        type nat hook prerouting priority dstnat; policy accept;
        ip daddr 127.0.0.0/8 accept
        fib daddr type local dnat ip to ip daddr . meta l4proto . th dport map @published_at
        fib daddr type local dnat ip to meta l4proto . th dport map @published
        iifname . ip daddr @gateways meta l4proto { tcp, udp } dnat ip to 127.0.0.1
    }
    chain output {
        type nat hook output priority -100; policy accept;
        fib daddr type local dnat ip to ip daddr . meta l4proto . th dport map @published_at
        fib daddr type local dnat ip to meta l4proto . th dport map @published
    }
    # Source address: the host's for a guest's connection to a published port of its own network (the reply must pass
    # the host), for packets that leave the network, and for the host's own connections from 127.0.0.1. Other packets
    # within a network keep theirs.
    chain postrouting {
        type nat hook postrouting priority srcnat; policy accept;
        ip saddr . ip daddr @within ct status dnat masquerade
        ip saddr . ip daddr @within accept
        ip saddr @masqueraded masquerade
        ip saddr 127.0.0.0/8 oifname @bridges masquerade
    }

    # A program that listens at the loopback only, as a proxy's upstream does, is reached by guests at their gateway.
    # They have the loopback's address there, which is also where a socket that is bound to every address replies to.
    chain arrived {
        type nat hook input priority 100; policy accept;
        iifname . ct original ip daddr @gateways ct status dnat ip daddr 127.0.0.1 snat ip to 127.0.0.1
    }

    # From a guest to the host: ping, DHCP, and the services that the network's `host` opens. Table bridge has checked
    # what a guest sends to a DHCP server; it is not tracked, since all guests without an address have the same one.
    # Programs that share a network namespace with their guests are reached at each of their ports. Packets of a
    # segment are not tracked, so that none is of an established connection.
    chain input {
        type filter hook input priority filter; policy accept;
        ct state established accept
        iifname != @bridges accept
        iifname @segments drop
        ct state related goto related
        ct state invalid goto dropped_invalid
        iifname @dhcp udp sport 68 udp dport 67 accept
        icmp type echo-request goto limited
        iifname . meta l4proto . th dport @services goto limited
        iifname @shared goto limited
        goto dropped_host
    }
    # With br_netfilter, frames within a joined bridge that a network joins pass here, too.
    chain forward {
        type filter hook forward priority filter; policy accept;
        ip hdrlength != 5 oifname @bridges goto dropped_options
        ct state established accept
        ct state related goto related
        iifname @segments oifname @segments accept
        iifname @segments drop
        iifname @bridges ct state invalid goto dropped_invalid
        oifname @bridges goto inward
        iifname @bridges goto outward
        iifname . oifname @bridged accept
        goto foreign
    }
    # An ICMP error belongs to the connection of the packet that it quotes, whoever sends it. A guest reports errors of
    # its own connections, and of those with an end that is behind it: those of others would be a way around its egress
    # list, and change the host's routes.
    chain related {
        iifname != @bridges accept
        ip saddr . ct original ip saddr @leased accept
        ip saddr . ct reply ip saddr @leased accept
        ip saddr . ct original ip saddr @routers accept
        ip saddr . ct reply ip saddr @routers accept
        goto dropped_invalid
    }
    chain foreign {
        FOREIGN
    }
    # To a guest: from guests of its network and of networks with `reach`, to published ports, and from other links
    # where the network is `routed`. Packets for an address without a lease are dropped: each would cost an entry in the
    # host's neighbour table. Broadcasts pass here only with br_netfilter.
    chain inward {
        meta pkttype host ip daddr . ip daddr != @leased ip daddr != @behind goto dropped_absent
        iifname . oifname @paths goto limited
        ct status dnat goto limited
        iifname != @bridges oifname @routed accept
        goto dropped_closed
    }
    chain outward {
        ip daddr { METADATA } iifname != @metadata goto dropped_metadata
        meta oiftype ether goto sought
        goto limited
    }
    # Each neighbour of a link that a guest connects to, present or not, costs an entry in the host's neighbour table;
    # destinations behind a router share the router's. Use does not extend the timeout of @neighbours: otherwise a guest
    # could collect ever more of them.
    chain sought {
        rt ip nexthop @neighbours goto limited
        ip saddr @behind goto sought_behind
        update @seekers { ip saddr limit rate over NEIGHBOURS_RATE/second burst NEIGHBOURS_BURST packets } goto refuse
        add @neighbours { rt ip nexthop timeout NEIGHBOURs }
        goto limited
    }
    # The addresses behind guests are many: those of a network share what one guest may use.
    chain sought_behind {
        update @seekers_behind { iifname limit rate over NEIGHBOURS_RATE/second burst NEIGHBOURS_BURST packets } \\
            goto refuse
        add @neighbours { rt ip nexthop timeout NEIGHBOURs }
        goto limited
    }
    # New connections. Only accepted ones are counted: dropped ones never enter the conntrack table. Packets of a
    # confirmed entry pass, such as further datagrams without a reply.
    chain limited {
        LIMITED
    }
    # A guest's egress chain returns for the destinations of its list, as the guest has sent them: before a published
    # port is translated.
    chain unlisted {
        ip saddr @unlisted drop
        drop
    }
    chain refuse {
        ip saddr @refused drop
        drop
    }
SEGMENTED
}
table bridge solo5 {
    OWNED
    set guests { type ifname . ether_addr . ipv4_addr; }
    set plain { type ifname . ether_addr . ipv4_addr; }
    set behind { type ifname . ether_addr . ipv4_addr; flags interval; }
    set behind6 { type ifname . ether_addr . ipv6_addr; flags interval; }
    set plain6 { type ifname . ether_addr . ipv6_addr; }
    set joined { type ifname; }
    set unleased { type ifname . ether_addr; }
    set whole { type ifname; }
    set ipv6 { type ifname . ether_addr; }
    set unleased6 { type ifname . ether_addr; }
    set reflected { type ifname . ifname; }
    map returned { type ifname : ether_addr; }
    set fragments { type ipv4_addr; counter; }
    set unlisted { type ipv4_addr; counter; }
    map confined { type ifname : ether_addr; }
    map secluded { type ether_addr : ether_addr; }
    set rated { type ifname; }
    map sent_bytes { type ifname : limit; }
    map sent_packets { type ifname : limit; }
    map received_bytes { type ifname : limit; }
    map received_packets { type ifname : limit; }
    set over_sent { type ifname; counter; }
    set over_received { type ifname; counter; }
    set storms { type ifname; size 65535; flags dynamic, timeout; timeout 1m; }
    map asking { typeof iifname . ether saddr . @th,288,48 . @th,160,32 : ether daddr; }
    set answered { typeof oifname . @th,288,48; }
    set askers { type ifname; size 65535; flags dynamic, timeout; timeout 1m; }
    map strangers { type ifname : ipv4_addr; size 4096; flags dynamic, timeout; timeout 1h; }
    set unserved { type ifname; size 4096; flags dynamic, timeout; timeout 1h; }

    COUNTED_bridge

BRIDGE_SETS
    # Broadcasts are rate-limited: each is copied into the queue of every guest of the network.
    # Most frames are those of guests without rate limits and egress lists: one lookup finds them, and what follows it
    # accepts nothing that the rules after it would not.
    chain prerouting {
        type filter hook prerouting priority dstnat; policy accept;
        iifname != "s5-*" accept
        ether type ip iifname . ether saddr . ip saddr @plain jump passing
        ether type ip6 iifname . ether saddr . ip6 saddr @plain6 jump passing6
        iifname @rated jump sending
        meta pkttype { broadcast, multicast } \\
            update @storms { iifname limit rate over 500/second burst 100 packets } goto dropped_broadcasts
        iifname @joined goto joining
        ether type ip udp dport 67 goto asking
        ether type ip iifname . ether saddr . ip saddr @guests goto proper
        ether type arp iifname . ether saddr . arp saddr ip @guests \\
            iifname . arp saddr ether . arp saddr ip @guests goto resolving
        ether type ip6 goto proper6
        ether type ip iifname . ether saddr . ip saddr @behind goto served
        goto strange
    }
    # What a guest without its leased address announces, or asks for: @strangers and @unserved show its mistake.
    chain strange {
        arp saddr ip != 0.0.0.0 update @strangers { iifname : arp saddr ip }
        ip saddr 0.0.0.0 udp dport 67 update @unserved { iifname }
        goto dropped_spoofed
    }
    chain resolving {
        ARP_FRAMES
        accept
    }
    chain passing {
        ip hdrlength != 5 return
        meta pkttype { broadcast, multicast } return
        udp dport 67-68 return
        ip protocol igmp return
        ip frag-off & 0x3fff != 0 return
        ether daddr set ether daddr map @secluded meta pkttype set host
        accept
    }
    chain passing6 {
        meta pkttype { broadcast, multicast } return
        ip6 nexthdr != { tcp, udp } return
        udp dport 546 return
        ip6 daddr fe80::/10 return
        ether daddr set ether daddr map @secluded meta pkttype set host
        accept
    }
    # From taps to a DHCP server: from port 68 and the leased address or none, no relay (giaddr, bytes 24 to 27 of the
    # message), and of itself only: its MAC address as chaddr (bytes 28 to 33), none or its own as ciaddr (bytes 12 to
    # 15), where replies are sent. The host alone receives it, as its bridge has the destination's MAC address then.
    chain asking {
        ip saddr != 0.0.0.0 iifname . ether saddr . ip saddr != @guests drop
        ip hdrlength != 5 goto dropped_unsafe
        ip frag-off & 0x3fff != 0 drop
        udp sport != 68 drop
        @th,256,32 != 0 drop
        update @askers { iifname limit rate over ASKERS_RATE/second burst ASKERS_BURST packets } drop
        ether daddr set iifname . ether saddr . @th,288,48 . @th,160,32 map @asking accept
        update @unserved { iifname } drop
        drop
    }
BRIDGE_CHAINS
    # From taps on joined bridges: no frames for bridges (spanning tree, LLDP, LACP), and no tagged frames, which
    # would enter another VLAN.
    chain joining {
        ether daddr and ff:ff:ff:ff:ff:f0 == 01:80:c2:00:00:00 goto dropped_unsafe
        ether type { 0x8100, 0x88a8, 0x9100 } goto dropped_unsafe
        ether type ip iifname . ether saddr . ip saddr @guests goto served
        ether type ip iifname . ether saddr @unleased goto served
        ether type ip iifname . ether saddr . ip saddr @behind goto served
        ether type arp iifname . ether saddr . arp saddr ip @guests \\
            iifname . arp saddr ether . arp saddr ip @guests goto resolving
        ether type arp iifname . ether saddr @unleased iifname . arp saddr ether @unleased goto resolving
        ether type ip6 iifname . ether saddr @ipv6 goto joining6
        goto strange
    }
    chain served {
        ip frag-off & 0x3fff != 0 iifname @whole drop
        goto proper
    }
    # A guest is no router of the LAN, no querier of groups and no DHCP server. Its neighbours are the LAN's, at their
    # link-local addresses as well.
    chain joining6 {
        IPV6_FRAMES
        icmpv6 type { nd-router-advert, nd-redirect, mld-listener-query } goto dropped_unsafe
        udp dport 546 goto dropped_unsafe
        icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } goto neighbours6
        exthdr frag exists iifname @whole drop
        iifname . ether saddr @unleased6 accept
        ip6 saddr :: icmpv6 type { GROUPS } accept
        iifname . ether saddr . ip6 saddr @guests6 accept
        iifname . ether saddr . ip6 saddr @behind6 accept
        goto dropped_spoofed
    }
    # A guest is no DHCP server, and no querier of groups (IGMP type 0x11). The host reassembles fragments before table
    # ip, in one memory (ipfrag_high_thresh) for all of its traffic.
    # A guest with an egress list reaches its neighbours, and is reached by them, through the host: so table ip, which
    # knows connections, decides on all that it sends, once. Frames between them get the gateway's MAC address, which
    # makes the bridge deliver them to the host. Broadcasts for all neighbours would not come back.
    chain proper {
        IPV4_FRAMES
        udp dport 68 goto dropped_unsafe
        ip protocol igmp @th,0,8 0x11 goto dropped_unsafe
        ip frag-off & 0x3fff != 0 ip saddr @fragments drop
        iifname @confined goto confining
        ether daddr set ether daddr map @secluded meta pkttype set host
        accept
    }
    chain confining {
        meta pkttype { broadcast, multicast } goto unlisted
        ether daddr set iifname map @confined meta pkttype set host
        accept
    }
    chain unlisted {
        ip saddr @unlisted drop
        drop
    }
    chain sending {
        limit name iifname map @sent_bytes goto too_fast
        limit name iifname map @sent_packets goto too_fast
    }
    chain too_fast {
        iifname @over_sent drop
        drop
    }
    chain postrouting {
        type filter hook postrouting priority filter; policy accept;
        oifname @rated jump receiving
        udp dport 68 oifname "s5-*" ether daddr ff:ff:ff:ff:ff:ff ether type ip goto answering
    }
    chain receiving {
        limit name oifname map @received_bytes goto too_many
        limit name oifname map @received_packets goto too_many
    }
    chain too_many {
        oifname @over_received drop
        drop
    }
    # A guest needs hairpin mode to connect to its own published port where br_netfilter passes bridged packets to table
    # ip. The first rule drops the echo of its own broadcasts. br_netfilter sends a packet for a guest's published port
    # back to the segment that it came from: with the first bridge's MAC, so that the reply comes here, too.
    chain forward {
        type filter hook forward priority filter; policy accept;
        iifname . oifname @reflected meta pkttype { broadcast, multicast } drop
        iifname . oifname @reflected ether saddr set iifname map @returned
        # From machines of a LAN: no options to guests, as from guests and by table ip.
        ether type ip ip hdrlength != 5 ip protocol != igmp oifname @joined goto to_guest
        ether type ip6 ip6 nexthdr != TRANSPORTS exthdr rt exists oifname @joined goto to_guest
    }
    chain to_guest {
        update @dropped_unsafe { oifname counter } drop
        drop
    }
    # A broadcast reply of the host's DHCP server reaches the guest with the MAC address that it is for (chaddr).
    chain answering {
        oifname @joined accept
        udp sport 67 oifname . @th,288,48 @answered accept
        drop
    }
}
""".replace("BRIDGE_SETS\n", BRIDGE_SETS)
    .replace("BRIDGE_CHAINS\n", BRIDGE_CHAINS.lstrip("\n"))
    .replace("GROUPS", GROUPS)
    .replace("TRANSPORTS", nft_frames.TRANSPORTS)
)
for _word, _rules in (
    ("ARP_FRAMES", nft_frames.arp),
    ("IPV4_FRAMES", nft_frames.ipv4),
    ("IPV6_FRAMES", nft_frames.ipv6),
    ("ND_FRAMES", nft_frames.neighbours),
    ("RS_FRAMES", nft_frames.routers),
):
    _TABLES = _TABLES.replace(_word, "\n        ".join(_rules("goto dropped_unsafe")))


def _counted(family: str) -> str:
    """Return sets and chains of the rules whose drops are counted by link. A full set drops without a count."""
    parts = []
    for rule, (where, link, _) in RULES.items():
        if where == family:
            parts.append(f"set dropped_{rule} {{ type ifname; size 4096; flags dynamic, timeout; timeout 1h; }}")
            body = f"        update @dropped_{rule} {{ {link} counter }} drop\n        drop\n"
            parts.append(f"chain dropped_{rule} {{\n{body}    }}")
    return "\n    ".join(parts)


_TABLES = _TABLES.replace("COUNTED_ip", _counted("ip")).replace("COUNTED_bridge", _counted("bridge"))
DYNAMIC = frozenset(re.findall(r"(?:set|map) (\w+) \{[^}]*flags dynamic", _TABLES))
"""The sets whose elements the kernel adds. Listings of nftables 1.0.6 do not have the flag."""

# With br_netfilter, table ip sees the packets that a segment passes on. They come from the network's first bridge or go
# there, where the rules apply; here they would be translated twice. Packets for a segment itself, which has no address,
# are dropped in input and forward. Without a segment, no packet of the host is looked up for it.
_SEGMENTED_HOOK = "type filter hook prerouting priority -301; policy accept;"
_SEGMENTED_RULE = "iifname @segments notrack accept"
_SEGMENTED = f"    chain segmented {{\n        {_SEGMENTED_HOOK}\n        {_SEGMENTED_RULE}\n    }}\n"


def tables(
    networks: Sequence[Network],
    *,
    forwards: bool,
    owned: bool,
    forwards6: bool = False,
    forwarding: Sequence[str] = (),
    only6: bool = False,
    segmented: bool = False,
) -> str:
    """Return the tables without their elements; table ip6 if one of the networks has IPv6.

    Args:
        networks: the networks that are up.
        forwards: the host forwards IPv4 packets for others; packets between other links are accepted.
        owned: set `flags owner, persist` (Linux 6.9, nftables 1.1.0): only this process may change the tables, and they
            stay after its exit.
        forwards6: as `forwards`, of IPv6.
        forwarding: as of `Ruleset`.
        only6: table ip6 alone.
        segmented: a network has segments.
    """
    text = _TABLES.replace("SEGMENTED\n", _SEGMENTED if segmented else "")
    text = text.replace("OWNED", "flags owner, persist;" if owned else "").replace("CLOSED", str(CLOSED_TIMEOUT_S))
    text = text.replace("NEIGHBOURS_RATE", str(NEIGHBOURS_RATE))
    text = text.replace("NEIGHBOURS_BURST", str(NEIGHBOURS_BURST)).replace("NEIGHBOUR", str(NEIGHBOUR_TIMEOUT_S))
    text = text.replace("ASKERS_RATE", str(ASKERS_RATE)).replace("ASKERS_BURST", str(ASKERS_BURST))
    ip, bridge, rest = text.partition("table bridge ")
    of_ip = ip.replace("METADATA", ", ".join(METADATA))
    of_ip = of_ip.replace("FOREIGN", _RULE_BREAK.join(foreign(forwards, forwarding)))
    of_ip = of_ip.replace("LIMITED", _RULE_BREAK.join(limited(networks)))
    of_ip6 = (
        ip6(ip)
        .replace("FOREIGN", _RULE_BREAK.join(foreign(forwards6)))
        .replace("LIMITED", _RULE_BREAK.join(limited6(networks)))
    )
    if only6:
        return of_ip6
    return of_ip + (of_ip6 if has_ipv6(networks) else "") + bridge + rest


_RULE_BREAK = "\n        "


def foreign(forwards: bool, forwarding: Sequence[str] = ()) -> Sequence[str]:
    """Return the rules of the chain `foreign`, for packets between links of others.

    This service has all links forward: packets to published ports and replies arrive on any. A host that no one else
    has forward must not become a router by that.
    """
    if forwards:
        return ()
    links = ", ".join(f'"{link}"' for link in forwarding)
    return (*((f"iifname {{ {links} }} accept",) if links else ()), "drop")


def limited6(networks: Sequence[Network]) -> Sequence[str]:
    """Return the rules of the chain `limited` of table ip6."""
    return [ip6(rule) for rule in limited([network for network in networks if network.ipv6])]


def limited(networks: Sequence[Network]) -> Sequence[str]:
    """Return the rules of the chain `limited` for these networks."""
    networks = [network for network in networks if network.join is None]
    numbers = sorted({network.policy.connections for network in networks})
    return (
        "ct status confirmed accept",
        f"ip saddr vmap @{EGRESS}",
        'iifname @bridges meta l4proto tcp ct timeout set "soon"',
        *(rule for number in numbers for rule in _limit(number, networks, behind=True)),
        "ip saddr @behind accept",
        *(rule for number in numbers for rule in _limit(number, networks)),
        "accept",
    )


def _limit(connections: int, networks: Sequence[Network], *, behind: bool = False) -> Sequence[str]:
    """Return the rules of one connection limit, for the bridges of all networks that have it.

    `ct count` leaves out closed TCP connections. With the rate a guest never has more than three times `connections`
    entries in the conntrack table: those open CLOSED_TIMEOUT_S ago, the burst, and what the rate has accepted since.
    With `behind`, for all addresses together that the guests of a bridge have behind them.
    """
    of, key, end = ("ip saddr @behind ", "iifname", "_behind") if behind else ("", "ip saddr", "")
    bridges = ", ".join(f'"{network.bridge}"' for network in networks if network.policy.connections == connections)
    rate = f"limit rate over {max(1, connections // CLOSED_TIMEOUT_S)}/second burst {connections} packets"
    return (
        f"{of}iifname {{ {bridges} }} meta l4proto tcp update @opened{end} {{ {key} {rate} }} goto refuse",
        f"{of}iifname {{ {bridges} }} add @{FLOWS}{end} {{ {key} ct count over {connections} }} goto refuse",
    )


def replace(ruleset: Ruleset, *, owned: bool) -> str:
    """Return the transaction that replaces all tables, whatever their state."""
    made = tables(
        ruleset.networks,
        forwards=ruleset.forwards,
        forwards6=ruleset.forwards6,
        forwarding=ruleset.forwarding,
        owned=owned,
        segmented=bool(ruleset.segments),
    )
    return f"{remove(owned=owned)}\n{made}\n{add(elements(ruleset))}"


def change(before: Ruleset, after: Ruleset, *, owned: bool = True) -> str:
    """Return the transaction that changes the tables from `before` to `after`; the kernel's counters are kept.

    Table ip6 comes with the first network with IPv6, and goes with the last.
    """
    old, new = elements(before), elements(after)
    had6, has6 = has_ipv6(before.networks), has_ipv6(after.networks)
    removed = set(old) - set(new)
    commands = [delete(each for each in old if each in removed and (has6 or each.family != "ip6"))]
    if had6 and not has6:
        commands.append(_remove("ip6", owned=owned))
    if has6 and not had6:
        new6 = tables(
            after.networks,
            forwards=False,
            forwards6=after.forwards6,
            owned=owned,
            only6=True,
            segmented=bool(after.segments),
        )
        commands.append(new6)
    for chain, present, rules in _changing(before, after, six=had6 and has6):
        if present != rules:
            commands.append(f"flush chain {chain}")
            commands += [f"add rule {chain} {rule}" for rule in rules]
    commands += _segmented(before, after, ("ip", "ip6") if had6 and has6 else ("ip",))
    added = set(new) - set(old)
    return "\n".join([*commands, add(each for each in new if each in added)]).strip()


def _changing(before: Ruleset, after: Ruleset, *, six: bool) -> Iterator[tuple[str, Sequence[str], Sequence[str]]]:
    """Yield the chains whose rules depend on more than elements, with the present and the new rules."""
    yield f"ip {TABLE} {LIMITED}", limited(before.networks), limited(after.networks)
    yield f"ip {TABLE} foreign", *(foreign(each.forwards, each.forwarding) for each in (before, after))  # type: ignore[misc]
    if six:
        yield f"ip6 {TABLE} {LIMITED}", limited6(before.networks), limited6(after.networks)
        yield f"ip6 {TABLE} foreign", foreign(before.forwards6), foreign(after.forwards6)


def _segmented(before: Ruleset, after: Ruleset, families: Sequence[str]) -> Iterator[str]:
    """Yield the commands that add the chain `segmented` with the first segment, and delete it after the last."""
    if bool(before.segments) == bool(after.segments):
        return
    for chain in (f"{family} {TABLE} segmented" for family in families):
        if after.segments:
            yield f"add chain {chain} {{ {_SEGMENTED_HOOK} }}"
            yield f"add rule {chain} {_SEGMENTED_RULE}"
        else:
            yield f"flush chain {chain}"
            yield f"delete chain {chain}"


def remove(*, owned: bool) -> str:
    """Return the transaction that removes all tables; it succeeds without them, too."""
    return "\n".join(_remove(family, owned=owned) for family in FAMILIES)


def _remove(family: str, *, owned: bool) -> str:
    if owned:
        return f"destroy table {family} {TABLE}"
    # Added first, so that the deletion cannot fail: nftables 1.0.6 has no "destroy".
    return f"add table {family} {TABLE}\ndelete table {family} {TABLE}"


def add(elements: Iterable[Element]) -> str:
    """Return the transaction that adds these elements; idempotent."""
    return "\n".join(command for element in elements for command in element.added())


def delete(elements: Iterable[Element]) -> str:
    """Return the transaction that deletes these elements; it fails as a whole if one is missing."""
    return "\n".join(command for element in elements for command in element.deleted())
