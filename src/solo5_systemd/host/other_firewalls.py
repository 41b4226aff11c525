"""Other programs whose packet filters drop the packets of networks, recognised by what they install.

Each has a place for rules that open it, and these name the bridge of a network: such a rule shows that its owner has
opened the chain. No other rule is evaluated (docs/decisions/beside-other-firewalls.md).
"""

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any

from solo5_systemd.settings.network_policy import Network

LEGACY = "filter (iptables-legacy)"
"""The name of the table filter of iptables' older kernel interface, which nftables neither lists nor evaluates."""

_OURS = "solo5"
_FIREWALLD = "firewalld"
_FAMILIES = {4: ("ip", "inet"), 6: ("ip6", "inet")}
"""The families of chains that packets pass, by version of IP."""

_IN, _OUT = "iifname", "oifname"
_MATCH = re.compile('"(?:match|vmap)":')
_OPENING = re.compile('"(accept|jump|goto)"')
_TRANSLATING = re.compile('"(masquerade|snat|MASQUERADE|SNAT)"')  # of nftables, and as targets of iptables
_NEIGHBOURS = re.compile('"(icmpv6|ipv6-icmp)"')
"""What rules with these effects have in their JSON; the last one is of ICMPv6, by which neighbours find each other."""

Item = Mapping[str, Any]
"""An item of a listing of libnftables: `{"chain": …}` or `{"rule": …}`."""


@dataclass(frozen=True, kw_only=True)
class DroppingChain:
    """A base chain of another program that drops the packets of networks.

    Attributes:
        name: `FAMILY TABLE CHAIN`.
        remedy: the commands of that program which accept the packets, to be typed as root.
    """

    name: str
    bridges: Sequence[str]
    remedy: Sequence[str]


def may_drop(chain: Mapping[str, Any]) -> bool:
    """Return whether a chain is a base chain of another program that drops what its rules do not accept."""
    is_filter = chain["family"] in (*_FAMILIES[4], *_FAMILIES[6]) and chain.get("hook") in ("forward", "input")
    drops = chain.get("policy") == "drop" or chain["table"] == _FIREWALLD
    return is_filter and drops and chain["table"] != _OURS


def dropping(listing: Iterable[Item], networks: Iterable[Network]) -> Sequence[DroppingChain]:
    """Return the base chains that drop packets of networks of the settings, but for those on a joined bridge."""
    items, own = list(listing), [network for network in networks if network.join is None]
    found = []
    for chain in (item["chain"] for item in items if "chain" in item and may_drop(item["chain"])):
        passed = _Passed(chain, items)
        if closed := [network for network in own if passed.drops(network)]:
            name = f"{chain['family']} {chain['table']} {chain['name']}"
            commands = dict.fromkeys(command for network in closed for command in passed.remedy(network))
            bridges = [network.bridge for network in closed]
            found.append(DroppingChain(name=name, bridges=bridges, remedy=list(commands)))
    return found


class _Passed:
    """A base chain with what a packet may pass from it on: the names of chains, and their rules as JSON."""

    def __init__(self, chain: Mapping[str, Any], items: Iterable[Item]) -> None:
        self._chain = chain
        table = chain["family"], chain["table"]
        bodies = [(item, body) for item in items for body in item.values()]
        of_table = [item for item, body in bodies if (body.get("family"), body.get("table")) == table]
        sets = {f'"@{item["set"]["name"]}"': json.dumps(item["set"].get("elem")) for item in of_table if "set" in item}
        rules: dict[str, list[str]] = {}
        for rule in (item["rule"] for item in of_table if "rule" in item):
            text = _text(rule)
            for name, elements in sets.items():
                text = text.replace(name, elements)
            rules.setdefault(rule["chain"], []).append(text)
        self._chains = new = {chain["name"]}
        while new:
            texts = [text for name in new for text in rules.get(name, ())]
            new = {found for text in texts for found in re.findall('"target": "([^"]*)"', text)} - self._chains
            self._chains |= new
        self._rules = [text for name in self._chains for text in rules.get(name, ())]
        self._is_input = chain["hook"] == "input"

    def drops(self, network: Network) -> bool:
        """Return whether the chain drops packets of a network: no rule that opens it names the bridge."""
        has = {4: not network.without_ipv4, 6: network.has_ipv6}
        versions = [version for version in has if has[version] and self._chain["family"] in _FAMILIES[version]]
        # Without an accepted neighbour solicitation of a guest, no IPv6 packet follows.
        stops_neighbours = 6 in versions and not any(map(_NEIGHBOURS.search, self._rules))
        if not versions or (self._is_input and not (network.policy.host or stops_neighbours)):
            return False
        entered = network.policy.routed and not self._is_input
        if self._chain["table"] == _FIREWALLD and entered:  # there, a policy opens a zone, by chains with its name
            return not any(_policy(network) in name for name in self._chains)
        ways = (_IN, _OUT) if entered else (_IN,)
        return not all(self._opens(way, network.bridge) for way in ways)

    def _opens(self, way: str, bridge: str) -> bool:
        matches = (each for text in self._rules if _OPENING.search(text) for each in _MATCH.split(text))
        named = (each for each in matches if f'"{way}"' in each and '"!="' not in each)
        return any(fnmatchcase(bridge, word) for each in named for word in re.findall('"([^"]*)"', each))

    def remedy(self, network: Network) -> Iterator[str]:
        """Yield the commands that open the chain, in the words of the program that has made it."""
        family, table, name = self._chain["family"], self._chain["table"], self._chain["name"]
        bridge, ways = shlex.quote(network.bridge), 1 if self._is_input else 2
        iptables = ("ip6tables" if family == "ip6" else "iptables") + ("-legacy" if table == LEGACY else "")
        if table == _FIREWALLD:
            yield from _firewalld(bridge, network)
        elif any(re.match("ufw6?-", each) for each in self._chains):
            yield from (
                [f"ufw allow in on {bridge}"]
                if self._is_input
                else [f"ufw route allow {way} on {bridge}" for way in ("in", "out")]
            )
        elif "DOCKER-USER" in self._chains:
            yield from (f"{iptables} -I DOCKER-USER {way} {bridge} -j ACCEPT" for way in ("-i", "-o"))
        elif family != "inet" and name in ("FORWARD", "INPUT"):
            yield from (f"{iptables} -I {name} {way} {bridge} -j ACCEPT" for way in ("-i", "-o")[:ways])
        else:
            yield from (f"nft insert rule {family} {table} {name} {way} {bridge} accept" for way in (_IN, _OUT)[:ways])


def _text(rule: Mapping[str, Any]) -> str:
    return json.dumps(rule.get("expr", ()))


def _policy(network: Network) -> str:
    """Return the name of a policy of firewalld: of 17 characters at most, and not that of a zone."""
    return f"{network.bridge[:14]}-in"


def _firewalld(bridge: str, network: Network) -> Iterator[str]:
    """Yield the commands for firewalld; a routed network has a zone of its own, which others may enter."""
    command = "firewall-cmd --permanent"
    policy = shlex.quote(_policy(network))
    if network.policy.routed:
        yield f"{command} --new-zone={bridge}"
        yield f"{command} --zone={bridge} --set-target=ACCEPT"
        yield f"{command} --zone={bridge} --change-interface={bridge}"
        yield f"{command} --new-policy={policy}"
        yield f"{command} --policy={policy} --add-ingress-zone=ANY"
        yield f"{command} --policy={policy} --add-egress-zone={bridge}"
        yield f"{command} --policy={policy} --set-target=ACCEPT"
    else:
        yield f"{command} --zone=trusted --add-interface={bridge}"
    yield "firewall-cmd --reload"


def saved_listing(saved: str, family: str) -> Iterator[Item]:
    """Yield the output of iptables-legacy-save(8) for its table filter as libnftables would list it.

    `family`: `ip6` for that of ip6tables-legacy-save.
    """
    body = {"family": family, "table": LEGACY}
    for line in saved.splitlines():
        words = shlex.split(line)
        if line.startswith(":"):
            name, hook = words[0][1:], {":FORWARD": "forward", ":INPUT": "input"}.get(words[0])
            yield {"chain": {**body, "name": name, "hook": hook, "policy": words[1].lower()}}
        elif words[:1] == ["-A"]:
            yield {"rule": {**body, "chain": words[1], "expr": list(_saved_rule(words[2:]))}}


def _saved_rule(words: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """Yield those statements of a rule that are looked at: links, protocol and target."""
    for option, value in pairwise(words):
        if option in ("-i", "-o"):
            left = {"meta": {"key": _IN if option == "-i" else _OUT}}
            yield {"match": {"op": "==", "left": left, "right": value.replace("+", "*")}}
        elif option == "-p":
            yield {"match": {"op": "==", "left": {"meta": {"key": "l4proto"}}, "right": value}}
        elif option in ("-j", "-g"):
            yield {value.lower(): None} if value in ("ACCEPT", "DROP", "REJECT") else {"jump": {"target": value}}


def is_translation(chain: Mapping[str, Any], version: int = 4) -> bool:
    """Return whether a chain is one of another program that can translate the source of packets."""
    is_nat = chain.get("hook") == "postrouting" and chain.get("type") == "nat"
    return chain["family"] in _FAMILIES[version] and is_nat and chain["table"] != _OURS


def translating(listing: Iterable[Item], version: int = 4) -> Sequence[str]:
    """Return the tables with a rule that translates sources: the host forwards packets for their programs.

    A rule of a table for both families (`inet`) that names the other one is none.
    """
    rules = (item["rule"] for item in listing if "rule" in item)
    other = re.compile('"(ip6|ipv6)"' if version == 4 else '"(ip|ipv4)"')
    found = (rule for rule in rules if _TRANSLATING.search(_text(rule)) and not other.search(_text(rule)))
    return list(dict.fromkeys(f"{rule['family']} {rule['table']}" for rule in found))


def drops_foreign(listing: Iterable[Item]) -> bool:
    """Return whether chain foreign of this service ends in a drop: of packets between other links."""
    rules = [item["rule"] for item in listing if "rule" in item]
    return bool(rules) and '"drop"' in _text(rules[-1])
