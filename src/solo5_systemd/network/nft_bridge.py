"""The rules of table `bridge solo5`, in the syntax of nft(8).

Words in capitals are replaced by `nft_rules`.
"""

BRIDGE = """table bridge solo5 {
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
"""
