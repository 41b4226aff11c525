"""What our rules make of a packet: the text that the kernel is given, read line by line.

A rule that is not understood is an error, so that no rule goes untested.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from solo5_systemd.network import ruleset
from solo5_systemd.network.ruleset import Element, Plan


@dataclass(frozen=True, kw_only=True)
class Packet:
    """One on its way; `oif` empty: to the host itself. `dnat`: it was sent to a published port; `tracked`: it
    is not the first of its connection."""

    iif: str
    oif: str = ""
    to: str = "192.0.2.9"
    what: str = "udp 7"
    dnat: bool = False
    state: str = "new"
    source: str = "10.77.0.5"
    open: int = 0
    tracked: bool = False


def verdict(plan: Plan, packet: Packet) -> str:
    """`accept` or `drop`, of our filter chains at the input hook, or at the forward hook."""
    rules = _Rules(ruleset.tables(plan, owned=True), ruleset.elements(plan))
    return rules.walk("forward" if packet.oif else "input", packet)


class _Rules:
    def __init__(self, text: str, elements: Sequence[Element]) -> None:
        table = text.partition("table ip solo5 {")[2].partition("table bridge")[0]
        self._chains = dict(_chain(match) for match in re.finditer(r"chain (\w+) \{(.*?)\n    \}", table, re.DOTALL))
        self._sets: dict[str, set[tuple[str, ...]]] = {
            name: set() for name in re.findall(r"(?:set|map) (\w+) \{", table)
        }
        for element in elements:
            if element.family == "ip":
                self._sets[element.name].add(tuple(word.strip('"') for word in element.key))

    def walk(self, chain: str, packet: Packet) -> str:
        for rule in self._chains[chain]:
            rest = rule
            while (match := _match(rest)) is not None:
                pattern, found = match
                if not _MATCHES[pattern](self._sets, packet, *found.groups()):
                    break
                rest = rest[found.end() :].lstrip()
            else:
                word, _, target = rest.partition(" ")
                if word == "goto":
                    return self.walk(target, packet)
                assert word in ("accept", "drop"), f"a rule that is not understood: {rule!r}"
                return word
        return "accept"  # the policy


def _chain(match: re.Match[str]) -> tuple[str, list[str]]:
    lines = (line.strip() for line in match[2].splitlines())
    return match[1], [line for line in lines if line and not line.startswith(("#", "type "))]


Sets = Mapping[str, set[tuple[str, ...]]]


def _match(rule: str) -> tuple[str, re.Match[str]] | None:
    return next(((pattern, found) for pattern in _MATCHES if (found := re.match(pattern, rule))), None)


def _link(sets: Sets, packet: Packet, which: str, negated: str | None, name: str) -> bool:
    link = packet.iif if which == "iifname" else packet.oif
    return ((link,) in sets[name]) is not bool(negated)


def _service(sets: Sets, packet: Packet) -> bool:
    return (packet.iif, *packet.what.split()) in sets["services"]


_MATCHES: Mapping[str, Callable[..., bool]] = {
    r"(iifname|oifname)( !=)? @(\w+)": _link,
    r"iifname \. oifname @paths": lambda sets, packet: (packet.iif, packet.oif) in sets["paths"],
    r"iifname \. meta l4proto \. th dport @services": _service,
    r"iifname \{ (.*?) \}": lambda _, packet, links: f'"{packet.iif}"' in links.split(", "),
    r"ct state established,related": lambda _, packet: packet.state in ("established", "related"),
    r"ct state invalid": lambda _, packet: packet.state == "invalid",
    r"ct status confirmed": lambda _, packet: packet.tracked,
    r"ct status dnat": lambda _, packet: packet.dnat,
    r"icmp type echo-request": lambda _, packet: packet.what == "ping",
    r"ip daddr (\S+)": lambda _, packet, range_: IPv4Address(packet.to) in IPv4Network(range_),
    r"ip saddr @(\w+)": lambda sets, packet, name: (packet.source,) in sets[name],
    r"add @flows \{ ip saddr ct count over (\d+) \}": lambda _, packet, limit: packet.open >= int(limit),
}
