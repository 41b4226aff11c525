"""The rules of table `ip solo5`, in the syntax of nft(8), and those of table ip6: written once, to have one policy.

Words in capitals are replaced by `nft_rules`. A line that ends in `# IPv4` or `# IPv6` is in the table of that family
alone; in all others, `ip6` replaces the words of IPv4.
"""

import re

GROUPS = "mld-listener-report, mld-listener-done, mld2-listener-report, nd-router-solicit"
"""The ICMPv6 messages that are for routers, and come from guests without an address as well."""

TRANSPORTS = "{ tcp, udp, icmpv6 }"
"""Packets that begin with such a header have no routing header: the search for one is slower."""

IP = """
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
    set looped { type ipv6_addr; }  # IPv6
    set services { type ifname . inet_proto . inet_service; }
    set dhcp { type ifname; }  # IPv4
    set refused { type ipv4_addr; counter; }
    set unlisted { type ipv4_addr; counter; }
    map egress { type ipv4_addr : verdict; }
    set flows { type ipv4_addr; size LARGE; flags dynamic; }
    # Each address twice: a look-up finds whether two addresses are the same, and a guest's.
    set leased { type ipv4_addr . ipv4_addr; }
    set opened { type ipv4_addr; size LARGE; flags dynamic, timeout; timeout 1m; }
    set neighbours { type ipv4_addr; size LARGE; flags dynamic, timeout; }
    set seekers { type ipv4_addr; size LARGE; flags dynamic, timeout; timeout 1m; }
    set behind { type ipv4_addr; flags interval; }
    set waiting { type ipv4_addr; }
    set routers { type ipv4_addr . ipv4_addr; flags interval; }
    set flows_behind { type ifname; size 1024; flags dynamic; }
    set opened_behind { type ifname; size 1024; flags dynamic, timeout; timeout 1m; }
    set seekers_behind { type ifname; size 1024; flags dynamic, timeout; timeout 1m; }
    set closed { type ipv4_addr . inet_service . ipv4_addr . inet_service; size LARGEST; flags dynamic, timeout; }

    # A closed TCP connection stays in the conntrack table for this long instead of two minutes. Every entry that stays
    # longer is counted in the set flows.
    ct timeout soon { protocol tcp; l3proto ip; policy = { time_wait : CLOSED, close : CLOSED }; }

    COUNTED_ip

    # The words of a rule that most packets do not match come first, and the look-up of a link in a set after them.
    # Ports published at 127.0.0.1 need route_localnet on the bridges, which alone would open the host's loopback.
    # With br_netfilter, this table sees the packets that a segment passes on. They come from the network's first bridge
    # or go there, where the rules apply; here they would be translated twice. Packets for a segment itself, which has
    # no address, are dropped in input and forward.
    chain localnet {
        type filter hook prerouting priority raw; policy accept;
        meta iifkind "bridge" iifname @segments notrack
        ip daddr 127.0.0.0/8 iifname @bridges goto dropped_loopback
        udp sport 68 udp dport 67 iifname @dhcp fib daddr type != unicast notrack accept  # IPv4
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
    # Packets from a link for 127.0.0.0/8 are not translated, so that the kernel drops them as martians.
    chain prerouting {
        type nat hook prerouting priority dstnat; policy accept;
        ip daddr 127.0.0.0/8 accept
        fib daddr type local dnat ip to ip daddr . meta l4proto . th dport map @published_at
        fib daddr type local dnat ip to meta l4proto . th dport map @published
        iifname . ip daddr @gateways meta l4proto { tcp, udp } dnat ip to 127.0.0.1
    }
    # A reply to ::1 is routed to lo alone, but for the bridges of namespaces (`network.links`). Elsewhere, a connection
    # to ::1 is refused at once, for a client of `localhost` to go on with 127.0.0.1.
    chain output {
        type nat hook output priority -100; policy accept;
        ip6 daddr ::1 ip6 daddr != @looped accept  # IPv6
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
    # segment are not tracked, so that none is of an established connection. A router solicitation is for a
    # daemon of the operator. Of a guest's two IPv6 addresses, the leased one alone has a connection limit.
    chain input {
        type filter hook input priority filter; policy accept;
        ct state established accept
        iifname != @bridges accept
        iifname @segments drop
        ct state related goto related
        ct state invalid goto dropped_invalid
        iifname @dhcp udp sport 68 udp dport 67 accept  # IPv4
        icmp type echo-request goto limited  # IPv4
        icmpv6 type nd-router-solicit accept  # IPv6
        icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept  # IPv6
        ip6 saddr . ip6 saddr != @leased drop  # IPv6
        icmpv6 type echo-request goto limited  # IPv6
        iifname . meta l4proto . th dport @services goto limited
        iifname @shared goto limited
        goto dropped_host
    }
    # With br_netfilter, frames within a joined bridge that a network joins pass here, too.
    chain forward {
        type filter hook forward priority filter; policy accept;
        ip hdrlength != 5 oifname @bridges goto dropped_options  # IPv4
        ip6 nexthdr != TRANSPORTS exthdr rt exists oifname @bridges goto dropped_options  # IPv6
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
    # host's neighbour table. Broadcasts pass here only with br_netfilter; so do neighbour discovery and link-local
    # destinations within a bridge. The kernel also routes them, back to their link, at the cost of an entry of its
    # neighbour table: a routed packet has another hop limit, and table bridge drops those with link-local destinations
    # that are sent to the host's MAC address.
    chain inward {
        meta pkttype host ip daddr . ip daddr != @leased ip daddr != @behind goto dropped_absent  # IPv4
        iifname . oifname @paths icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } ip6 hoplimit 255 accept  # IPv6
        icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } goto dropped_absent  # IPv6
        meta pkttype host ip6 daddr . ip6 daddr != @leased ip6 daddr != @behind ip6 daddr != fe80::/10 \\
            goto dropped_absent  # IPv6
        ip daddr @waiting goto starting
        iifname . oifname @paths goto limited
        ct status dnat goto limited
        iifname != @bridges oifname @routed accept
        goto dropped_closed
    }
    # A guest without a process has no connection: of what reaches it, only what may begin one starts it.
    chain starting {
        iifname . oifname @paths goto beginning
        ct status dnat goto beginning
        iifname != @bridges oifname @routed goto beginning
        goto dropped_closed
    }
    chain beginning {
        tcp flags & (fin | syn | rst | ack) != syn reject with tcp reset
        icmp type != echo-request drop  # IPv4
        icmpv6 type != { echo-request, nd-neighbor-solicit, nd-neighbor-advert } drop  # IPv6
        goto limited
    }
    chain outward {
        ip daddr { METADATA } iifname != @metadata goto dropped_metadata  # IPv4
        ip6 daddr { METADATA6 } iifname != @metadata goto dropped_metadata  # IPv6
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
}
"""


def of_family(family: str, rules: str) -> str:
    """Return the rules of table ip or ip6."""
    rules = re.sub(rf"^(.*\\\n)*.*# IPv{6 if family == 'ip' else 4}\n", "", rules, flags=re.MULTILINE)
    if family == "ip":
        return rules
    rules = re.sub(r"127\.0\.0\.(0/8|1\b)", "::1", rules)
    return re.sub(r"\bip\b", "ip6", rules.replace("ipv4_addr", "ipv6_addr"))
