"""An interpreter of the nftables rules: the verdict on a packet, from the text that the kernel gets.

A rule that is not understood is an error, so that no rule goes untested.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv6Network, ip_address, ip_network

from solo5_systemd.network import nft_elements, nft_rules
from solo5_systemd.network.nft_elements import Ruleset
from solo5_systemd.network.nft_objects import Element

GUESTS = {"solo5-front": "10.77.0.5", "solo5-back": "10.78.0.5"}
"""The leased address of each bridge."""

GUESTS6 = {"solo5-front": "fd00:77::5", "solo5-back": "fd00:78::5"}
"""The leased IPv6 address of each bridge."""


@dataclass(frozen=True, kw_only=True)
class Packet:
    """A packet; `oif` empty: to the host itself; `to` empty: to a guest there, or anywhere.

    `dnat`: it was sent to a published port; `tracked`: it is not the first of its connection. Of its guest's
    connections `open` are open, and `opened` of TCP were opened at once; it is for
    the `sought`-th neighbour at once of those that the host does not know. `hops`: its hop limit; one less if it was
    routed. `optioned`: it has IPv4 options, or an IPv6 routing header. `ends`: the sources of a connection's packets,
    as conntrack has them for both directions; none where it does not matter. `what` of TCP without SYN: `tcp-ack 80`.
    """

    iif: str
    oif: str = ""
    to: str = ""
    what: str = "udp 7"
    dnat: bool = False
    state: str = "new"
    source: str = "10.77.0.5"
    open: int = 0
    opened: int = 0
    sought: int = 0
    tracked: bool = False
    hops: int = 255
    optioned: bool = False
    ends: tuple[str, ...] = ()


def verdict(plan: Ruleset, packet: Packet, family: str = "ip") -> str:
    """Return `accept`, `drop` or `reject`, by the filter chains of table ip or ip6 at the input or forward hook."""
    rules = _Rules(nft_rules.tables(plan, owned=True)[family], nft_elements.elements(plan), family)
    to = packet.to or (
        GUESTS.get(packet.oif, "192.0.2.9") if family == "ip" else GUESTS6.get(packet.oif, "2001:db8::9")
    )
    return rules.walk("forward" if packet.oif else "input", replace(packet, to=to)) or "accept"  # the policy


@dataclass(frozen=True, kw_only=True)
class Frame:
    """A frame from a guest, or to one that the filters before the last hook have accepted.

    `kind` is ip, ip6 or arp (a request); `icmpv6` its type, 0: it is none. `target`: of a question for an address.
    `grouped`: it is for several receivers.
    """

    kind: str = "ip"
    icmpv6: int = 0
    target: str = ""
    grouped: bool = False


def seen(plan: Ruleset, tap: str, frame: Frame, *, sent: bool) -> set[str]:
    """Return what table bridge does with a frame from or to a tap: `counted`, as activity, `announced`, `dropped`."""
    rules = _Rules(nft_rules.tables(plan, owned=True)["bridge"], nft_elements.elements(plan), "bridge")
    begin = "iifname @metered jump sending" if sent else "oifname @metered jump receiving"
    assert begin in rules.chain("prerouting" if sent else "postrouting")
    found: set[str] = set()
    if (tap,) in rules.elements("metered"):
        rules.look("sending" if sent else "receiving", tap, frame, found)
    return found


class _Rules:
    def __init__(self, table: str, elements: Sequence[Element], family: str) -> None:
        self._chains = dict(_chain(match) for match in re.finditer(r"chain (\w+) \{(.*?)\n    \}", table, re.DOTALL))
        self._sets: dict[str, set[tuple[str, ...]]] = {
            name: set() for name in re.findall(r"(?:set|map) (\w+) \{", table)
        }
        for element in elements:
            if element.family == family:
                self._sets[element.name].add(tuple(word.strip('"') for word in element.key))

    def chain(self, name: str) -> Sequence[str]:
        return self._chains[name]

    def elements(self, name: str) -> set[tuple[str, ...]]:
        return self._sets[name]

    def look(self, chain: str, tap: str, frame: Frame, found: set[str]) -> bool:
        """Walk the chains of `seen`; return whether there was a verdict."""
        for rule in self._chains[chain]:
            rest = rule
            while (match := next((each for pattern in _FRAMES if (each := re.match(pattern, rest))), None)) is not None:
                if not _FRAMES[match.re.pattern](self._sets, tap, frame, *match.groups()):
                    break
                found |= {"counted"} if match[0].endswith("@active") else set()
                rest = rest[match.end() :].lstrip()
            else:
                if logged := re.match(r"log group \d+ snaplen \d+ ?", rest):
                    found.add("announced")
                    rest = rest[logged.end() :]
                rest = re.sub(r"^add @\w+ \{ oifname \} ", "", rest)
                word, _, target = rest.partition(" ")
                assert word in ("", "continue", "jump", "goto", "accept", "drop"), f"a rule not understood: {rule!r}"
                found |= {"dropped"} if word == "drop" else set()
                ended = word in ("accept", "drop") or (target and self.look(target, tap, frame, found))
                if ended or word == "goto":
                    return True
        return False

    def walk(self, chain: str, packet: Packet) -> str:
        """Return the verdict of a chain; empty: it has none."""
        for rule in self._chains[chain]:
            rest = rule
            while (match := _match(rest)) is not None:
                pattern, found = match
                if not _MATCHES[pattern](self._sets, packet, *found.groups()):
                    break
                rest = rest[found.end() :].lstrip()
            else:
                word, _, target = rest.partition(" ")
                if not word:  # a statement, such as what it does to the connection
                    continue
                if word == "goto":
                    return self.walk(target, packet)
                if word == "jump":
                    if found_in := self.walk(target, packet):
                        return found_in
                    continue
                if word in ("ip", "ip6"):  # ip saddr vmap @egress: the guests of these tests have no list
                    assert target == "saddr vmap @egress"
                    assert not self._sets["egress"]
                    continue
                assert word in ("accept", "drop", "reject"), f"a rule that is not understood: {rule!r}"
                return word
        return ""


def _chain(match: re.Match[str]) -> tuple[str, list[str]]:
    lines = (line.strip() for line in match[2].replace("\\\n", " ").splitlines())
    return match[1], [line for line in lines if line and not line.startswith(("#", "type "))]


Sets = Mapping[str, set[tuple[str, ...]]]


def _match(rule: str) -> tuple[str, re.Match[str]] | None:
    return next(((pattern, found) for pattern in _MATCHES if (found := re.match(pattern, rule))), None)


def _link(sets: Sets, packet: Packet, which: str, negated: str | None, name: str) -> bool:
    link = packet.iif if which == "iifname" else packet.oif
    return ((link,) in sets[name]) is not bool(negated)


def _service(sets: Sets, packet: Packet) -> bool:
    return (packet.iif, *packet.what.split()) in sets["services"]


def _has(ranges: set[tuple[str, ...]], address: str) -> bool:
    return bool(address) and any(ip_address(address) in ip_network(each) for (each,) in ranges)


def _has_pair(ranges: set[tuple[str, ...]], *addresses: str) -> bool:
    return any(all(_has({(part,)}, one) for part, one in zip(pair, addresses, strict=True)) for pair in ranges)


_MATCHES: Mapping[str, Callable[..., bool]] = {
    r"(iifname|oifname)( !=)? @(\w+)": _link,
    r"iifname \. oifname @(\w+)": lambda sets, packet, name: (packet.iif, packet.oif) in sets[name],
    r"iifname \. meta l4proto \. th dport @services": _service,
    r"iifname \{ (.*?) \}": lambda _, packet, links: f'"{packet.iif}"' in links.split(", "),
    r'ct timeout set "soon"': lambda *_: True,
    r"meta l4proto tcp": lambda _, packet: packet.what.startswith("tcp"),
    r"update @opened(?:_behind)? \{ (?:ip6? saddr|iifname) limit rate over \d+/second burst (\d+) packets \}": (
        lambda _, packet, burst: packet.opened >= int(burst)
    ),
    r"ip hdrlength != 5|ip6 nexthdr != \{ .*? \} exthdr rt exists": lambda _, packet: packet.optioned,
    r"ct state (established|related|invalid)": lambda _, packet, state: packet.state == state,
    r"ip6? saddr \. ct (?:original|reply) ip6? saddr @(\w+)": lambda sets, packet, name: any(
        _has_pair(sets[name], packet.source, end) for end in packet.ends
    ),
    r"ct status confirmed": lambda _, packet: packet.tracked,
    r"ct status dnat": lambda _, packet: packet.dnat,
    r"(?:icmp|icmpv6) type echo-request": lambda _, packet: packet.what == "ping",
    r"icmpv6 type (nd-router-solicit|\{ .*? \})": lambda _, packet, kinds: packet.what
    in kinds.strip("{} ").split(", "),
    r"ip6 saddr \. ip6 saddr != @leased": lambda sets, packet: (packet.source,) * 2 not in sets["leased"],
    r"ip6 daddr != fe80::/10": lambda _, packet: ip_address(packet.to) not in IPv6Network("fe80::/10"),
    r"ip6 hoplimit 255": lambda _, packet: packet.hops == 255,
    r"ip6? daddr \. ip6? daddr != @leased": lambda sets, packet: (packet.to,) * 2 not in sets["leased"],
    r"ip6? daddr != @behind": lambda sets, packet: not _has(sets["behind"], packet.to),
    r"ip6? daddr \{ (.*?) \}": lambda _, packet, ranges: any(
        ip_address(packet.to) in ip_network(each) for each in ranges.split(", ")
    ),
    r"ip6? daddr @waiting": lambda sets, packet: (packet.to,) in sets["waiting"],
    r"tcp flags & \(.*?\) != syn": lambda _, packet: packet.what.startswith("tcp-"),
    r"(?:icmp|icmpv6) type != (echo-request|\{ .*? \})": lambda _, packet, kinds: (
        packet.what.startswith(("icmp", "nd-")) and packet.what not in kinds.strip("{} ").split(", ")
    ),
    r"meta oiftype ether": lambda *_: True,
    r"rt ip6? nexthop @neighbours": lambda _, packet: not packet.sought,
    r"update @seekers(?:_behind)? \{ (?:ip6? saddr|iifname) limit rate over \d+/second burst (\d+) packets \}": (
        lambda _, packet, burst: packet.sought > int(burst)
    ),
    r"update @dropped_\w+ \{ [io]ifname counter \}": lambda *_: True,
    r"udp sport 68 udp dport 67": lambda _, packet: packet.what == "udp 67",
    r"add @neighbours \{ rt ip6? nexthop timeout \d+s \}": lambda *_: True,
    r"meta pkttype host": lambda *_: True,
    r"ip6? saddr @(\w+)": lambda sets, packet, name: _has(sets[name], packet.source),
    r"add @flows(?:_behind)? \{ (?:ip6? saddr|iifname) ct count over (\d+) \}": (
        lambda _, packet, limit: packet.open >= int(limit)
    ),
}


def _halves(address: str) -> tuple[str, str]:
    number = int(ip_address(address))
    return str(number >> 64), str(number & (1 << 64) - 1)


_FRAMES: Mapping[str, Callable[..., bool]] = {
    r"ether daddr & 01:00:00:00:00:00 == 00:00:00:00:00:00": lambda _, tap, frame: not frame.grouped,
    r"ether daddr & 01:00:00:00:00:00 != 00:00:00:00:00:00": lambda _, tap, frame: frame.grouped,
    r"icmpv6 type nd-router-advert": lambda _, tap, frame: frame.icmpv6 == 134,
    r"ether type (ip6?)": lambda _, tap, frame, kind: frame.kind == kind,
    r"meta l4proto != ipv6-icmp": lambda _, tap, frame: not frame.icmpv6,
    r"icmpv6 type != 133-137": lambda _, tap, frame: bool(frame.icmpv6) and not 133 <= frame.icmpv6 <= 137,
    r"arp operation request oifname \. arp daddr ip @(\w+)": lambda sets, tap, frame, name: (
        frame.kind == "arp" and (tap, frame.target) in sets[name]
    ),
    r"icmpv6 type nd-neighbor-solicit oifname \. @th,64,64 \. @th,128,64 @(\w+)": lambda sets, tap, frame, name: (
        frame.icmpv6 == 135 and (tap, *_halves(frame.target)) in sets[name]
    ),
    r"limit name [io]ifname map @(\w+)": lambda *_: False,
    r"tcp flags & \(syn \| ack\) == syn": lambda *_: False,
    r"ether saddr (?:[0-9a-f]{2}:){5}[0-9a-f]{2}": lambda *_: False,  # a question of solo5-networkd
    r"[io]ifname @(\w+)": lambda sets, tap, frame, name: (tap,) in sets[name],
}
"""The matches of the chains that count and announce; no frame is beyond a rate limit, or begins a connection."""
