"""The rules of table `bridge solo5`, in the syntax of nft(8).

Words in capitals are replaced by `nft_rules`.

nftables 1.0.6 has no names for the fields of neighbour discovery: 64 bits after the begin of the ICMPv6 header is
the target address, 208 bits after it the link-layer address of a first option.

ARP and neighbour discovery pass between guests that may not send each other anything: so their frames have one form,
and carry nothing. IPv4 options and IPv6 routing headers name further addresses, which no rule sees.

The address is two numbers: nftables 1.1.3 lists one of 128 bits by its name, and then cannot read its own listing. Four
numbers are too many for `typeof`.
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
    set metered { type ifname; }
    set active { type ifname; counter; }
    set asleep { type ifname; }
    set waiting4 { type ipv4_addr; }
    set waiting6 { typeof @th,64,64 . @th,128,64; }
    set syn4 { typeof ip saddr . tcp sport . ip daddr . tcp dport; size LARGE; flags dynamic, timeout; timeout 1s; }
    set syn6 { typeof ip6 saddr . tcp sport . ip6 daddr . tcp dport; size LARGE; flags dynamic, timeout; timeout 1s; }
    set booting { type ifname; size LARGE; flags dynamic, timeout; timeout 10s; }
    set heard { type ifname; size LARGE; flags dynamic; }
    set asleep4 { type ifname . ipv4_addr; }
    set asleep6 { typeof oifname . @th,64,64 . @th,128,64; }
    set asleep_own { typeof oifname . @th,128,64; }
    map sent_bytes { type ifname : limit; }
    map sent_packets { type ifname : limit; }
    map received_bytes { type ifname : limit; }
    map received_packets { type ifname : limit; }
    set over_sent { type ifname; counter; }
    set over_received { type ifname; counter; }
    set storms { type ifname; size LARGE; flags dynamic, timeout; timeout 1m; }
    map asking { typeof iifname . ether saddr . @th,288,48 . @th,160,32 : ether daddr; }
    set answered { typeof oifname . @th,288,48; }
    set askers { type ifname; size LARGE; flags dynamic, timeout; timeout 1m; }
    set tellers { type ifname; size LARGE; flags dynamic, timeout; timeout 1m; }
    map strangers { type ifname : ipv4_addr; size 4096; flags dynamic, timeout; timeout 1h; }
    set unserved { type ifname; size 4096; flags dynamic, timeout; timeout 1h; }

    COUNTED_bridge

    set guests6 { type ifname . ether_addr . ipv6_addr; }
    set linked { typeof iifname . @th,208,48; }
    set advertised { typeof iifname . @th,64,64 . @th,128,64; }
    set fragments6 { type ipv6_addr; counter; }
    set unlisted6 { type ipv6_addr; counter; }
    set near6 { type ether_addr . ipv6_addr; }
    # Broadcasts are rate-limited: each is copied into the queue of every guest of the network.
    # Most frames are those of guests without rate limits and egress lists: one lookup finds them, and what follows it
    # accepts nothing that the rules after it would not.
    chain prerouting {
        type filter hook prerouting priority dstnat; policy accept;
        iifname != "s5-*" accept
        ether type ip iifname . ether saddr . ip saddr @plain jump passing
        ether type ip6 iifname . ether saddr . ip6 saddr @plain6 jump passing6
        iifname @metered jump sending
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
    # What a guest without its leased address announces or requests: @strangers and @unserved show its mistake.
    chain strange {
        arp saddr ip != 0.0.0.0 update @strangers { iifname : arp saddr ip }
        ip saddr 0.0.0.0 udp dport 67 update @unserved { iifname }
        goto dropped_spoofed
    }
    # Of Ethernet and IPv4, 28 bytes, alone or filled with zeros to 46. The receiver of a request ignores the target's
    # MAC address, and that of a reply is its own: it is replaced.
    chain resolving {
        meta length != { 28, 46 } goto dropped_unsafe
        @nh,0,48 != 0x000108000604 goto dropped_unsafe
        arp operation != { request, reply } goto dropped_unsafe
        meta length 46 @nh,224,128 != 0 goto dropped_unsafe
        meta length 46 @nh,352,16 != 0 goto dropped_unsafe
        arp daddr ether set ether daddr
        arp operation reply arp daddr ether ASKER_MAC iifname . ether saddr . arp saddr ip @guests goto telling
        arp operation request arp daddr ip @waiting4 ANNOUNCED
        accept
    }
    # The answer to solo5-networkd's own question, for the guest's own address: one without a lease may announce any.
    # The kernel would send at once what it holds for the guest.
    chain telling {
        update @tellers { iifname limit rate over ASKERS_RATE/second burst ASKERS_BURST packets } drop
        ANNOUNCED drop
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
    # From taps with a leased IPv6 address. Without an address (::) a guest only announces groups, looks for a router,
    # and detects duplicates of its addresses. Each solicitation of a router can have a reply to all guests of the
    # network, so they are limited as messages to DHCP servers are. They have no option, or one of 8 bytes, which is not
    # checked: MirageOS has sent one with the type 0.
    chain proper6 {
        icmpv6 type { nd-router-advert, nd-redirect, mld-listener-query } goto dropped_unsafe
        udp dport 546 goto dropped_unsafe
        icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } goto neighbours6
        icmpv6 type nd-router-solicit meta length != { 48, 56 } goto dropped_unsafe
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
    # No extension header. Traffic class, flow label, code, and reserved bits are 0.
    chain neighbours6 {
        ip6 nexthdr != icmpv6 goto dropped_unsafe
        meta length != { 64, 72 } goto dropped_unsafe
        meta length 64 ip6 length != 24 goto dropped_unsafe
        meta length 72 ip6 length != 32 goto dropped_unsafe
        @nh,0,32 != 0x60000000 goto dropped_unsafe
        @th,8,8 != 0 goto dropped_unsafe
        icmpv6 type nd-neighbor-solicit @th,32,32 != 0 goto dropped_unsafe
        icmpv6 type nd-neighbor-advert @th,32,32 & 0x1fffffff != 0 goto dropped_unsafe
        ip6 length 24 goto announced6
        icmpv6 type nd-neighbor-solicit @th,192,16 0x0101 iifname . @th,208,48 @linked goto announced6
        icmpv6 type nd-neighbor-solicit @th,192,16 0x0e01 ip6 saddr :: iifname @joined goto announced6
        icmpv6 type nd-neighbor-advert @th,192,16 0x0201 iifname . @th,208,48 @linked goto announced6
        goto dropped_unsafe
    }
    # Without a leased address, on a joined bridge, any one is: its own MAC is checked alone.
    chain announced6 {
        iifname . ether saddr @unleased6 accept
        icmpv6 type nd-neighbor-solicit iifname . ether saddr . ip6 saddr @guests6 goto seeking6
        icmpv6 type nd-neighbor-solicit ip6 saddr :: iifname . ether saddr @ipv6 \\
            iifname . @th,64,64 . @th,128,64 @advertised accept
        icmpv6 type nd-neighbor-advert iifname . ether saddr . ip6 saddr @guests6 \\
            iifname . @th,64,64 . @th,128,64 @advertised goto advertising6
        drop
    }
    chain advertising6 {
        ether daddr ASKER_MAC goto telling
        accept
    }
    chain seeking6 {
        @th,64,64 . @th,128,64 @waiting6 ANNOUNCED
        accept
    }
    # A routing header names further destinations, which no rule would see: a guest is no source of routes. A link-local
    # destination is a neighbour's, with its MAC address: the host would route any other, and look for it.
    chain whole6 {
        ip6 nexthdr != TRANSPORTS exthdr rt exists goto dropped_unsafe
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
        ip6 daddr fe80::/10 goto unlisted
        meta pkttype { broadcast, multicast } goto unlisted
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
        ip6 nexthdr != TRANSPORTS exthdr rt exists goto dropped_unsafe
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
    # A guest is no DHCP server, and no querier of groups (IGMP type 0x11). Its packets have no IPv4 options, but Router
    # Alert of IGMP (RFC 3376). The host reassembles fragments before table
    # ip, in one memory (ipfrag_high_thresh) for all of its traffic.
    # A guest with an egress list reaches its neighbours, and is reached by them, through the host: so table ip, which
    # has connections, decides on all that it sends, once. Frames between them get the gateway's MAC address, which
    # makes the bridge deliver them to the host. Broadcasts for all neighbours would not come back.
    chain proper {
        ip hdrlength != 5 ip protocol != igmp goto dropped_unsafe
        ip hdrlength > 6 goto dropped_unsafe
        ip hdrlength 6 @nh,160,32 != 0x94040000 goto dropped_unsafe
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
        ip6 saddr @unlisted6 drop
        drop
    }
    # A task sleeps after a time without frames that are counted here, by a look-up: those of IP to one receiver,
    # without neighbour discovery (ICMPv6 types 133 to 137). While it sleeps, they are announced and wait
    # in the queue of its tap, as questions for its addresses do. One with the prefix of a LAN, which is not known here,
    # has an address by its second half, which is derived from its MAC: @asleep_own.
    chain sending {
        ether daddr & 01:00:00:00:00:00 == 00:00:00:00:00:00 ether type ip jump sent
        ether daddr & 01:00:00:00:00:00 == 00:00:00:00:00:00 ether type ip6 meta l4proto != ipv6-icmp jump sent
        ether daddr & 01:00:00:00:00:00 == 00:00:00:00:00:00 icmpv6 type != 133-137 jump sent
        limit name iifname map @sent_bytes goto too_fast
        limit name iifname map @sent_packets goto too_fast
    }
    chain too_fast {
        iifname @over_sent drop
        drop
    }
    chain postrouting {
        type filter hook postrouting priority filter; policy accept;
        oifname @metered jump receiving
        udp dport 68 oifname "s5-*" ether daddr ff:ff:ff:ff:ff:ff ether type ip goto answering
    }
    chain sent {
        iifname @active continue
        iifname @asleep ANNOUNCED
        iifname @booting goto early
    }
    # A guest that was started for a packet may take it before it listens, as one that works first. Its refusal (RFC
    # 9293, 3.10.7.1: the sequence number is 0) reaches no client, which asks again.
    chain early {
        tcp flags & (syn | rst | ack) == (rst | ack) tcp sequence 0 drop
        icmp type destination-unreachable icmp code port-unreachable drop
        icmpv6 type destination-unreachable icmpv6 code port-unreachable drop
    }
    chain receiving {
        ether daddr & 01:00:00:00:00:00 == 00:00:00:00:00:00 ether type ip jump received
        ether daddr & 01:00:00:00:00:00 == 00:00:00:00:00:00 ether type ip6 meta l4proto != ipv6-icmp jump received
        ether daddr & 01:00:00:00:00:00 == 00:00:00:00:00:00 icmpv6 type != 133-137 jump received
        arp operation request oifname . arp daddr ip @asleep4 ANNOUNCED accept
        icmpv6 type nd-neighbor-solicit oifname . @th,64,64 . @th,128,64 @asleep6 ANNOUNCED accept
        icmpv6 type nd-neighbor-solicit oifname . @th,128,64 @asleep_own ANNOUNCED accept
        ether saddr ASKER_MAC update @booting { oifname }
        oifname @asleep ether daddr & 01:00:00:00:00:00 != 00:00:00:00:00:00 goto unheard
        limit name oifname map @received_bytes goto too_many
        limit name oifname map @received_packets goto too_many
    }
    chain received {
        oifname @active continue
        oifname @asleep ANNOUNCED
        tcp flags & (syn | ack) == syn oifname @active goto connecting
    }
    # A request for a connection that was sent again while the kernel held the first one: they arrive together. MirageOS
    # would forget the connection that it has answered, and its client would wait.
    chain connecting {
        ether type ip update @syn4 \\
            { ip saddr . tcp sport . ip daddr . tcp dport limit rate over 5/second burst 1 packets } drop
        ether type ip6 update @syn6 \\
            { ip6 saddr . tcp sport . ip6 daddr . tcp dport limit rate over 5/second burst 1 packets } drop
    }
    # The queue of a tap has room for 500 to 1000 frames, which those for all would fill in days. One router
    # advertisement passes: the route that the guest has may time out while it sleeps.
    chain unheard {
        oifname @heard drop
        icmpv6 type nd-router-advert add @heard { oifname } accept
        drop
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
