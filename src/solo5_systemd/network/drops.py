"""Counts of packets that the packet filter has dropped, by guest, by NIC, and by rule.

They begin with the tables: a repair that replaces these, and a restart of the service, set them to 0.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Annotated

from solo5_systemd.base.names import DeviceName, NetworkName
from solo5_systemd.settings.records import text

RULES: Mapping[str, tuple[str, str, str]] = {
    "spoofed": ("bridge", "iifname", "frames with another source than the leased one, or another protocol"),
    "unsafe": (
        "bridge",
        "iifname",
        "frames for bridges or VLANs, of DHCP servers or routers, with IP options, odd ARP and neighbour discovery",
    ),
    "broadcasts": ("bridge", "iifname", "broadcasts above 500 a second"),
    "loopback": ("ip", "iifname", "packets for 127.0.0.0/8 of the host"),
    "metadata": ("ip", "iifname", "packets for metadata services"),
    "host": ("ip", "iifname", "packets for closed ports of the host"),
    "invalid": (
        "ip",
        "iifname",
        "packets without a connection, and ICMP errors for connections that are not the guest's",
    ),
    "options": ("ip", "oifname", "packets for guests with IPv4 options or IPv6 routing headers"),
    "absent": ("ip", "oifname", "packets for addresses without a lease"),
    "closed": ("ip", "oifname", "packets to guest ports that are not published"),
}
"""The rules whose drops are counted by link: the family of their table, the link, and what they drop.

In table bridge the link is a tap (its bridge, `meta ibrname`, needs a module that not every kernel has), in table ip a
bridge. Each rule has the dynamic set `dropped_NAME`. The kernel makes the element of a link with its first drop, and
removes it an hour after the last one: so nothing is added at an attach, and nothing stays of a released tap.
"""

OF_TAPS = tuple(name for name, (family, _, _) in RULES.items() if family == "bridge")

OF_GUESTS: Mapping[str, str] = {
    "connections": "packets of new connections above the limits of connections and neighbours",
    "fragments": "IPv4 and IPv6 fragments",
    "egress": "packets for destinations that are not listed",
    "sent_rate": "sent frames above the rate limit",
    "received_rate": "received frames above the rate limit",
}
"""The rules whose drops are counted by guest: the first three by its address, the others by its tap."""

SETS: Mapping[str, Sequence[tuple[str, str]]] = {
    "connections": (("ip", "refused"), ("ip6", "refused")),
    "fragments": (("bridge", "fragments"), ("bridge", "fragments6")),
    "egress": (("ip", "unlisted"), ("ip6", "unlisted"), ("bridge", "unlisted"), ("bridge", "unlisted6")),
    "sent_rate": (("bridge", "over_sent"),),
    "received_rate": (("bridge", "over_received"),),
    **{
        rule: [(family, f"dropped_{rule}") for family in (("ip", "ip6") if of == "ip" else (of,))]
        for rule, (of, _, _) in RULES.items()
    },
}
"""The sets, with their families, whose elements count what a rule has dropped."""

_OF_ADDRESSES = tuple(OF_GUESTS)[:3]

DESCRIPTIONS: Mapping[str, str] = {**OF_GUESTS, **{name: text for name, (_, _, text) in RULES.items()}}

_RuleAndKey = Annotated[tuple[str, str], text(lambda key: (*key.split(" ", 1), "")[:2], " ".join)]
"""As a key: separated by a blank, which neither an address nor a link's name has."""


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """Counts of dropped packets, by rule (DESCRIPTIONS), and by what it counts: a guest's address, or a link."""

    rules: Mapping[_RuleAndKey, int] = field(default_factory=dict)

    def within(self, ranges: Iterable[IPv4Network | IPv6Network | None], links: Collection[str] = ()) -> "Dropped":
        """Return the counts of one network: of its ranges (None: it has none), its taps, and its bridges."""
        known = [each for each in ranges if each is not None]

        def is_of(rule: str, key: str) -> bool:
            return any(ip_address(key) in each for each in known) if rule in _OF_ADDRESSES else key in links

        return Dropped(rules={each: count for each, count in self.rules.items() if is_of(*each)})

    def by_guest(self, rule: str) -> Mapping[IPv4Address | IPv6Address, int]:
        """Return the counts of a rule that counts by the guest's address."""
        return {ip_address(key): count for (of, key), count in self.rules.items() if of == rule}

    def of_guest(self, addresses: Iterable[IPv4Address | IPv6Address], tap: str) -> Mapping[str, int]:
        """Return the counts of one NIC, by OF_GUESTS and OF_TAPS: those of its tap, and of all of its addresses."""
        own = (tap, *map(str, addresses))
        return {rule: sum(self.rules.get((rule, key), 0) for key in own) for rule in (*OF_GUESTS, *OF_TAPS)}

    def by_rule(self) -> Mapping[str, int]:
        """Return the sum of each rule, in the order of DESCRIPTIONS."""
        sums = dict.fromkeys(DESCRIPTIONS, 0)
        for (rule, _), count in self.rules.items():
            if rule in sums:  # solo5-networkd may be of a later version
                sums[rule] += count
        return sums


def of_nics(
    nics: Iterable[tuple[str, str, str, str, str]], dropped: Mapping[NetworkName, Dropped]
) -> Mapping[DeviceName, Mapping[str, int]]:
    """Return the counts of each NIC of a task: of those in these networks.

    Args:
        nics: name, network, IPv4 address (empty: none), tap and IPv6 address (empty: none) of each.
    """
    return {
        DeviceName(nic): dropped[NetworkName(network)].of_guest(map(ip_address, filter(None, (ipv4, ipv6))), tap)
        for nic, network, ipv4, tap, ipv6 in nics
        if network in dropped
    }
