"""What our tables are but for their elements, in nft's own language (nft(8)).

It is text, and not libnftables' JSON, because the JSON reader of nftables 1.0.6 (Debian 12) makes a plain set of a map
whose value is a concatenation, and crashes at the first rule that uses it.
"""

from collections.abc import Sequence

from solo5_systemd.network.model import Network

TABLE = "solo5"
FAMILIES = ("ip", "bridge")
REFUSED = "refused"
"""The set whose elements count the connections that a guest was refused, by its address."""

FRAGMENTS = "fragments"
"""The set whose elements count the fragments of a guest that were dropped, by its address."""

FLOWS = "flows"
"""The set whose elements count the connections that a guest has open; the kernel adds and removes them."""

CLOSED_S = 10
"""Seconds for which a closed TCP connection that a guest has begun is tracked."""

METADATA = ("169.254.0.0/16", "168.63.129.16", "100.100.100.200")
"""Where clouds have their metadata service: link-local addresses, those of Azure and of Alibaba Cloud.

The one of IPv6, fd00:ec2::254, no guest reaches: its IPv6 goes nowhere.
"""

NEIGHBOURS_BURST, NEIGHBOURS_RATE, NEIGHBOUR_S = 64, 16, 5
"""Of a link's neighbours a guest may call so many at once, so many more each second, and for so many seconds each.

That is 144 entries of the host's table, which has 1024 (net.ipv4.neigh.default.gc_thresh3) for all its links.
"""

LIMITED = "limited"
"""The chain whose rules depend on which networks are up."""

_TABLES = """
table ip solo5 {
    OWNED
    set bridges { type ifname; }
    set within { type ipv4_addr . ipv4_addr; flags interval; }
    set masqueraded { type ipv4_addr; flags interval; }
    map published { type inet_proto . inet_service : ipv4_addr . inet_service; }
    map published_at { type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service; }
    set paths { type ifname . ifname; }
    set routed { type ifname; }
    set metadata { type ifname; }
    set services { type ifname . inet_proto . inet_service; }
    set refused { type ipv4_addr; counter; }
    set flows { type ipv4_addr; size 65535; flags dynamic; }
    set leased { type ipv4_addr; }
    set opened { type ipv4_addr; size 65535; flags dynamic, timeout; timeout 1m; }
    set neighbours { type ipv4_addr; size 65535; flags dynamic, timeout; }
    set seekers { type ipv4_addr; size 65535; flags dynamic, timeout; timeout 1m; }
    set closed { type ipv4_addr . inet_service . ipv4_addr . inet_service; size 262144; flags dynamic, timeout; }

    # A closed connection of TCP stays in the host's table for this long, and not for two minutes. All that may be in
    # the table for longer is counted.
    ct timeout soon { protocol tcp; l3proto ip; policy = { time_wait : CLOSED, close : CLOSED }; }

    # 127.0.0.1:PORT needs route_localnet on our bridges, which by itself would open the host's loopback to guests.
    chain localnet {
        type filter hook prerouting priority raw; policy accept;
        iifname @bridges ip daddr 127.0.0.0/8 drop
        iifname @bridges tcp flags & (syn | ack) != syn \\
            ip saddr . tcp sport . ip daddr . tcp dport @closed drop
    }
    # Each packet of a closed connection would keep it in the table for as long again: the first one passes, such as the
    # last acknowledgement, and what guests send after it, from either end, is dropped above, before it is tracked. What
    # is left of a connection's time tells that it is closed. A new one in the place of an old one begins with SYN.
    chain closing {
        type filter hook prerouting priority mangle; policy accept;
        iifname @bridges meta l4proto tcp ct original ip saddr @leased ct status confirmed ct expiration <= CLOSEDs \\
            add @closed { ct original ip saddr . ct original proto-src . \\
                ct original ip daddr . ct original proto-dst timeout CLOSEDs } \\
            add @closed { ct reply ip saddr . ct reply proto-src . \\
                ct reply ip daddr . ct reply proto-dst timeout CLOSEDs }
    }
    # What comes from a link for 127.0.0.1 is a neighbour's attempt: translated, the kernel would no longer refuse it.
    chain prerouting {
        type nat hook prerouting priority dstnat; policy accept;
        ip daddr 127.0.0.0/8 accept
        fib daddr type local dnat ip to ip daddr . meta l4proto . th dport map @published_at
        fib daddr type local dnat ip to meta l4proto . th dport map @published
    }
    chain output {
        type nat hook output priority -100; policy accept;
        fib daddr type local dnat ip to ip daddr . meta l4proto . th dport map @published_at
        fib daddr type local dnat ip to meta l4proto . th dport map @published
    }
    # A guest that calls a published port must be answered through us; what else stays within a network keeps its
    # address, what leaves it takes ours, and so does the host when it calls from 127.0.0.1.
    chain postrouting {
        type nat hook postrouting priority srcnat; policy accept;
        ip saddr . ip daddr @within ct status dnat masquerade
        ip saddr . ip daddr @within accept
        ip saddr @masqueraded masquerade
        ip saddr 127.0.0.0/8 oifname @bridges masquerade
    }

    # A guest calls the host: ping, and what the operator has opened.
    chain input {
        type filter hook input priority filter; policy accept;
        iifname != @bridges accept
        ct state established,related accept
        ct state invalid drop
        icmp type echo-request goto limited
        iifname . meta l4proto . th dport @services goto limited
        drop
    }
    chain forward {
        type filter hook forward priority filter; policy accept;
        ct state established,related accept
        iifname @bridges ct state invalid drop
        oifname @bridges goto inward
        iifname @bridges goto outward
        FOREIGN
    }
    # To a guest: from guests of its own network and of those that may reach it, to published ports, and from beyond the
    # host where the network is routed. For an address that no guest has, the host would send ARP requests, and keep an
    # entry in its table of neighbours. A broadcast is here only where br_netfilter hands it over.
    chain inward {
        meta pkttype host ip daddr != @leased drop
        iifname . oifname @paths goto limited
        ct status dnat goto limited
        iifname != @bridges oifname @routed accept
        drop
    }
    chain outward {
        ip daddr { METADATA } iifname != @metadata drop
        meta oiftype ether goto sought
        goto limited
    }
    # For each neighbour on a link that a guest calls, there or not, the host sends ARP requests and keeps an entry.
    # What lies behind a router has one neighbour, the router. A call does not lengthen the time for which a neighbour
    # is known here: a guest would have ever more of them.
    chain sought {
        rt ip nexthop @neighbours goto limited
        update @seekers { ip saddr limit rate over NEIGHBOURS_RATE/second burst NEIGHBOURS_BURST packets } goto refuse
        add @neighbours { rt ip nexthop timeout NEIGHBOURs }
        goto limited
    }
    # A new connection. Only what is accepted is counted; what is dropped is never entered in the host's table. What is
    # in it already, such as datagrams that nothing answers, goes on.
    chain limited {
        LIMITED
    }
    chain refuse {
        ip saddr @refused drop
        drop
    }
}
table bridge solo5 {
    OWNED
    set guests { type ifname . ether_addr . ipv4_addr; }
    set reflected { type ifname . ifname; }
    set fragments { type ipv4_addr; counter; }
    set storms { type ifname; size 65535; flags dynamic, timeout; timeout 1m; }

    # What one guest sends to all is a copy for each of them, and a queue of theirs that fills.
    chain prerouting {
        type filter hook prerouting priority dstnat; policy accept;
        iifname != "s5-*" accept
        meta pkttype { broadcast, multicast } \\
            update @storms { iifname limit rate over 500/second burst 100 packets } drop
        ether type ip iifname . ether saddr . ip saddr @guests goto proper
        ether type arp iifname . ether saddr . arp saddr ip @guests \\
            iifname . arp saddr ether . arp saddr ip @guests accept
        drop
    }
    # The host puts fragments together before table ip sees them, in one memory for all of its traffic.
    chain proper {
        ip frag-off & 0x3fff != 0 ip saddr @fragments drop
        accept
    }
    # The price of hairpin mode on the taps, which a guest needs to call its own published port where br_netfilter
    # hands bridged packets to table ip: without this it would hear its own broadcasts.
    chain forward {
        type filter hook forward priority filter; policy accept;
        iifname . oifname @reflected meta pkttype { broadcast, multicast } drop
    }
}
"""

# ip_forward concerns all links, and has to: a published port is called, and a reply arrives, on any of them, and each
# link that a packet comes in by must forward. So where the host forwarded nothing before us, this rule does it.
_FOREIGN = "drop"


def tables(networks: Sequence[Network], *, forwards: bool, owned: bool) -> str:
    """Return our tables without their elements.

    Args:
        networks: those that are up.
        forwards: what passes between links that are not ours is forwarded.
        owned: no other program may change them while we live (Linux 6.9, nftables 1.0.9). They stay when we end.
    """
    text = _TABLES.replace("OWNED", "flags owner, persist;" if owned else "").replace("CLOSED", str(CLOSED_S))
    text = text.replace("METADATA", ", ".join(METADATA)).replace("NEIGHBOURS_RATE", str(NEIGHBOURS_RATE))
    text = text.replace("NEIGHBOURS_BURST", str(NEIGHBOURS_BURST)).replace("NEIGHBOUR", str(NEIGHBOUR_S))
    text = text.replace("FOREIGN", "" if forwards else _FOREIGN)
    return text.replace("LIMITED", "\n        ".join(limited(networks)))


def limited(networks: Sequence[Network]) -> Sequence[str]:
    """Return the rules of the chain that limits what guests of these networks open."""
    numbers = sorted({network.policy.connections for network in networks})
    return (
        "ct status confirmed accept",
        'iifname @bridges meta l4proto tcp ct timeout set "soon"',
        *(rule for number in numbers for rule in _limit(number, networks)),
        "accept",
    )


def _limit(connections: int, networks: Sequence[Network]) -> Sequence[str]:
    """By the bridge, since the networks that have one limit are few, and known when the rule is made.

    The kernel's count leaves out TCP connections that are closed. With the rate there are never more than three times
    `connections` of a guest in the table: those that were open CLOSED_S ago, the burst, and what the rate let in since.
    """
    bridges = ", ".join(f'"{network.bridge}"' for network in networks if network.policy.connections == connections)
    rate = f"limit rate over {max(1, connections // CLOSED_S)}/second burst {connections} packets"
    return (
        f"iifname {{ {bridges} }} meta l4proto tcp update @opened {{ ip saddr {rate} }} goto refuse",
        f"iifname {{ {bridges} }} add @{FLOWS} {{ ip saddr ct count over {connections} }} goto refuse",
    )
