"""Whether packet filters of other programs drop the packets of networks, and the commands that open them.

A packet passes only if every table of nftables accepts it: the accept of table `ip solo5` does not overrule the drop of
another. So the rules of the others are evaluated here as the kernel does, for one packet of each path of a network, of
IPv4, and of IPv6 where the network has it.
"""

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from solo5_systemd.settings.model import HostPort, NetworkSettings

_TABLE = "solo5"
_FAMILIES = {4: ("ip", "inet"), 6: ("ip6", "inet")}
"""The families of chains that packets pass, by version of IP."""

_HOOKS = ("forward", "input")
_WAYS = ("in", "out")
_REJECTING = ("drop", "reject")
_ENDING = ("accept", "queue", *_REJECTING)


@dataclass(frozen=True, kw_only=True)
class DroppingChain:
    """A base chain of another program that drops the packets of networks.

    Attributes:
        name: `FAMILY TABLE CHAIN`.
        bridges: of the networks.
        remedy: the commands of that program which accept the packets, to be typed as root.
    """

    name: str
    bridges: Sequence[str]
    remedy: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Packet:
    """A packet at a hook, by what is known of it; a match on anything else is taken not to match.

    Attributes:
        hook: `forward` or `input`.
        iif: the link that it came by; empty: one that no rule names.
        oif: the link that it leaves by; the same.
        state: its conntrack state, such as `new`.
        translated: its destination, or that of its connection, was translated: a published port.
        port: the host's port that it is for; None: one that no rule names.
        version: of IP.
        solicits: it is a neighbour solicitation, without which no IPv6 packet follows.
    """

    hook: str
    iif: str
    oif: str
    state: str = "new"
    translated: bool = False
    port: HostPort | None = None
    version: int = 4
    solicits: bool = False

    @property
    def protocol(self) -> str | None:
        """The transport protocol; None: unknown."""
        if self.solicits:
            return _ICMPV6
        return self.port.protocol if self.port else None


class _End(Enum):
    """How a chain ended: with a verdict, or without one."""

    ACCEPT = "accept"
    DROP = "drop"
    RETURN = "return"


class Filters:
    """The rules of all programs, from libnftables' JSON listings."""

    def __init__(self, listing: Iterable[Mapping[str, Any]]) -> None:
        """Read the base chains at the hooks forward and input, the rules and the sets."""
        self._rules: dict[tuple[str, str, str], list[Sequence[Any]]] = {}
        self._sets: dict[tuple[str, str, str], Collection[Any]] = {}
        self._chains: list[Mapping[str, Any]] = []
        for item in listing:
            for kind, body in item.items():
                if kind == "chain" and is_filter(body):
                    self._chains.append(body)
                elif kind == "rule":
                    self._rules.setdefault(_key(body, "chain"), []).append(body.get("expr", ()))
                elif kind == "set":
                    self._sets[_key(body, "name")] = body.get("elem", ())

    def dropping(self, networks: Sequence[NetworkSettings], uplink: str, uplink6: str = "") -> Sequence[DroppingChain]:
        """Return the base chains that drop a packet of a network.

        Args:
            networks: those of the settings; one on a bridge of others is left out.
            uplink: the link of the default route; empty without one.
            uplink6: the same of IPv6.
        """
        own = [network for network in networks if network.join is None]
        found = []
        for chain in self._chains:
            lacking = [(net, [p for p in packets(net, uplink, uplink6) if self._drops(chain, p)]) for net in own]
            lacking = [(network, dropped) for network, dropped in lacking if dropped]
            if lacking:
                family, table, _ = key = _key(chain, "name")
                known = {name for of, in_table, name in self._rules if (of, in_table) == (family, table)}
                found.append(
                    DroppingChain(
                        name=" ".join(key),
                        bridges=[network.bridge for network, _ in lacking],
                        remedy=list(
                            dict.fromkeys(c for net, lost in lacking for c in _remedy(chain, known, net, lost))
                        ),
                    )
                )
        return found

    def _drops(self, chain: Mapping[str, Any], packet: Packet) -> bool:
        if chain["hook"] != packet.hook or chain["family"] not in _FAMILIES[packet.version]:
            return False
        end = self._walk(_key(chain, "name"), packet)
        return end is _End.DROP or (end is _End.RETURN and chain.get("policy") == "drop")

    def _walk(self, chain: tuple[str, str, str], packet: Packet) -> _End:
        for rule in self._rules.get(chain, ()):
            end = self._apply(chain, rule, packet)
            if end is not None:
                return end
        return _End.RETURN

    def _apply(self, chain: tuple[str, str, str], rule: Sequence[Any], packet: Packet) -> _End | None:
        """Return how a rule ends its chain; None: the next rule follows."""
        for statement in rule:
            if not isinstance(statement, Mapping):
                continue
            [(kind, body)] = statement.items()
            if kind == "match" and not self._matches(chain, body, packet):
                return None
            if kind == "xt" and not _is_target(body):
                return None
            if kind == "xt" and body["name"] == "REJECT":
                return _End.DROP
            if kind == "vmap":
                kind, body = self._mapped(chain, body, packet)
            if kind in _ENDING:
                return _End.DROP if kind in _REJECTING else _End.ACCEPT
            if kind == "return":
                return _End.RETURN
            if kind in ("jump", "goto"):
                end = self._walk((*chain[:2], body["target"]), packet)
                if end is not _End.RETURN or kind == "goto":
                    return end
        return None

    def _mapped(self, chain: tuple[str, str, str], body: Mapping[str, Any], packet: Packet) -> tuple[str, Any]:
        """Return the verdict of a verdict map; `continue` without one."""
        value, data = _value(body["key"], packet), body["data"]
        elements = data["set"] if isinstance(data, Mapping) and "set" in data else ()
        for key, verdict in elements:
            if value is not None and self._is_one_of(chain, value, key):
                [(kind, target)] = verdict.items()
                return kind, target
        return "continue", None

    def _matches(self, chain: tuple[str, str, str], body: Mapping[str, Any], packet: Packet) -> bool:
        value = _value(body["left"], packet)
        if value is None or body["op"] not in ("==", "!=", "in"):
            return False
        found = self._is_one_of(chain, value, body["right"])
        if body["left"] == _CTSTATE and packet.translated:  # to iptables, it is one state more
            found = found or self._is_one_of(chain, "dnat", body["right"])
        return found is not (body["op"] == "!=")

    def _is_one_of(self, chain: tuple[str, str, str], value: str, right: Any) -> bool:
        if isinstance(right, Mapping):
            right = right.get("set", right.get("range", ()))
        if isinstance(right, str) and right.startswith("@"):
            right = self._sets.get((*chain[:2], right[1:]), ())
        if isinstance(right, list | tuple):
            return any(self._is_one_of(chain, value, each) for each in right)
        text = str(right)
        return value.startswith(text[:-1]) if text.endswith("*") else value == _NAMES.get(text, text)


def packets(network: NetworkSettings, uplink: str, uplink6: str = "") -> Iterator[Packet]:
    """Yield a packet of each path of a network: out, to a published port, the replies, and to services of the host.

    To a routed network also one for a guest itself: its destination is not translated.
    """
    inside = network.bridge
    for version, beyond in ((4, uplink), (6, uplink6)):
        if network.without_ipv4 if version == 4 else network.ipv6 is None:
            continue
        outward, inward = ("new", "established"), ("established", "new")
        paths = [(outward, False), (inward, True), *([(inward, False)] if network.policy.routed else [])]
        for states, translated in paths:
            ways = zip(((inside, beyond), (beyond, inside)), states, strict=True)
            for (iif, oif), state in ways:
                yield Packet(hook="forward", iif=iif, oif=oif, state=state, translated=translated, version=version)
        for port in network.policy.host:
            yield Packet(hook="input", iif=inside, oif="", port=port, version=version)
        if version == 6:
            yield Packet(hook="input", iif=inside, oif="", state="untracked", version=6, solicits=True)


def is_filter(chain: Mapping[str, Any]) -> bool:
    """Return whether a chain of libnftables' JSON is a base chain of another program that IP packets pass."""
    families = (*_FAMILIES[4], *_FAMILIES[6])
    return chain["family"] in families and chain.get("hook") in _HOOKS and chain["table"] != _TABLE


def is_translation(chain: Mapping[str, Any], version: int = 4) -> bool:
    """Return whether a chain is one of another program that can translate the source of packets."""
    is_nat = chain.get("hook") == "postrouting" and chain.get("type") == "nat"
    return chain["family"] in _FAMILIES[version] and is_nat and chain["table"] != _TABLE


def translating(listing: Iterable[Mapping[str, Any]], version: int = 4) -> Sequence[str]:
    """Return the tables with a rule that translates sources: the host forwards packets for their programs.

    A rule of a table for both families (`inet`) that matches on the other one is none.
    """
    rules = (item["rule"] for item in listing if "rule" in item)
    found = (rule for rule in rules if _has(rule, "masquerade", "snat", "MASQUERADE", "SNAT"))
    of_version = (rule for rule in found if not _matches_version(rule, 10 - version))
    return list(dict.fromkeys(f"{rule['family']} {rule['table']}" for rule in of_version))


def _matches_version(rule: Mapping[str, Any], version: int) -> bool:
    """Return whether a rule has a match that packets of one version of IP alone have."""
    words = (f"ipv{version}", "ip" if version == 4 else "ip6")
    matches = (each["match"] for each in rule.get("expr", ()) if isinstance(each, Mapping) and "match" in each)
    for match in matches:
        left = match["left"]
        if left in ({"meta": {"key": "nfproto"}}, {"meta": {"key": "protocol"}}) and match["op"] == "==":
            if match["right"] in words:
                return True
        elif isinstance(left, Mapping) and (left.get("payload") or {}).get("protocol") == words[1]:
            return True
    return False


def drops_foreign(listing: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether chain foreign of this service ends in a drop: of packets between other links."""
    rules = [item["rule"] for item in listing if "rule" in item]
    return bool(rules) and _has(rules[-1], "drop")


def _has(rule: Mapping[str, Any], *kinds: str) -> bool:
    """Return whether a rule has a statement of a kind, of nftables or, as `xt`, a target of iptables."""
    statements = [each for each in rule.get("expr", ()) if isinstance(each, Mapping)]
    return any(kind in each or kind == (each.get("xt") or {}).get("name") for each in statements for kind in kinds)


LEGACY = "filter (iptables-legacy)"
"""The name of the table filter of iptables' older kernel interface, which nftables neither lists nor evaluates."""


def saved_listing(saved: str, table: str, family: str = "ip") -> Iterator[Mapping[str, Any]]:
    """Yield the output of iptables-save(8) for its table filter as libnftables would list a table without extensions.

    `family`: `ip6` for that of ip6tables-save.

    libnftables has no more than the name of an extension of iptables (`xt`), such as conntrack.
    """
    for line in saved.splitlines():
        words = shlex.split(line)
        if line.startswith(":"):
            name, policy = words[0][1:], words[1].lower()
            hook = {"FORWARD": "forward", "INPUT": "input"}.get(name)
            yield {"chain": {"family": family, "table": table, "name": name, "hook": hook, "policy": policy}}
        elif words[:1] == ["-A"]:
            expr = list(_saved_rule(words[2:]))
            yield {"rule": {"family": family, "table": table, "chain": words[1], "expr": expr}}


def has_extensions(listing: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether a rule matches by an extension of iptables."""
    statements = (each for item in listing for each in item.get("rule", {}).get("expr", ()))
    return any(isinstance(each, Mapping) and "xt" in each and not _is_target(each["xt"]) for each in statements)


def _is_target(extension: Mapping[str, Any] | None) -> bool:
    """Return whether an extension of iptables is a target; one that is listed without attributes is taken not to be."""
    return extension is not None and extension.get("type") == "target"


_ICMPV6, _SOLICITATION = "ipv6-icmp", "nd-neighbor-solicit"
_NAMES = {
    "58": _ICMPV6, "icmpv6": _ICMPV6, "135": _SOLICITATION, "neighbor-solicitation": _SOLICITATION,
    "neighbour-solicitation": _SOLICITATION,
}  # fmt: skip
"""Other words for the same, of nftables and ip6tables."""

_PORT = {"payload": {"protocol": "th", "field": "dport"}}
_CTSTATE = {"ct": {"key": "ctstate"}}
_MATCHES = {
    "-i": {"meta": {"key": "iifname"}},
    "-o": {"meta": {"key": "oifname"}},
    "--ctstate": _CTSTATE,
    "--state": {"ct": {"key": "state"}},
    "--dst-type": {"fib": {"result": "type", "flags": ["daddr"]}},
    "-p": {"meta": {"key": "l4proto"}},
    "--icmpv6-type": {"payload": {"protocol": "icmpv6", "field": "type"}},
    "--hl-eq": {"payload": {"protocol": "ip6", "field": "hoplimit"}},
    "--dport": _PORT,
    "--dports": _PORT,
}
_TARGETS = {"ACCEPT": "accept", "DROP": "drop", "REJECT": "reject", "RETURN": "return"}
_WITHOUT_EFFECT = ("-m", "--comment", "--reject-with")


def _saved_rule(words: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the statements of a rule: pairs of an option and its value, and `!` before a negated one."""
    rest, op = list(words), "=="
    while rest:
        option = rest.pop(0)
        if option == "!":
            op = "!="
            continue
        value = rest.pop(0) if rest and not rest[0].startswith("-") else ""
        if option in _MATCHES:
            is_link = option in ("-i", "-o")
            right = [value.replace("+", "*")] if is_link else value.lower().split(",")
            yield {"match": {"op": op, "left": _MATCHES[option], "right": right}}
        elif option in ("-j", "-g") and value in _TARGETS:
            yield {_TARGETS[value]: None}
        elif option in ("-j", "-g"):
            yield {"jump" if option == "-j" else "goto": {"target": value}}
        elif option not in _WITHOUT_EFFECT:
            yield {"xt": {"type": "match"}}
        op = "=="


def _key(body: Mapping[str, Any], name: str) -> tuple[str, str, str]:
    return body["family"], body["table"], body[name]


def _value(left: Any, packet: Packet) -> str | None:
    """Return the value of an expression for a packet; None: unknown."""
    match left:
        case {"meta": {"key": "iifname" | "iif"}}:
            return packet.iif
        case {"meta": {"key": "oifname" | "oif"}}:
            return packet.oif
        case {"meta": {"key": "nfproto"}}:
            return f"ipv{packet.version}"
        case {"meta": {"key": "protocol"}}:
            return "ip" if packet.version == 4 else "ip6"
        case {"meta": {"key": "l4proto"}}:
            return packet.protocol
        case {"payload": {"protocol": "icmpv6", "field": "type"}} if packet.solicits:
            return _SOLICITATION
        case {"payload": {"protocol": "ip6", "field": "hoplimit"}} if packet.solicits:
            return "255"
        case {"payload": {"protocol": protocol, "field": "dport"}} if packet.port:
            return str(packet.port.port) if protocol in ("th", packet.port.protocol) else None
        case {"payload": {"protocol": "ip", "field": "protocol"}} if packet.version == 4:
            return packet.protocol
        case {"payload": {"protocol": "ip6", "field": "nexthdr"}} if packet.version == 6:
            return packet.protocol
        case {"fib": {"result": "type", "flags": "daddr" | ["daddr"]}}:
            return "local" if packet.hook == "input" else "unicast"
        case {"ct": {"key": "state" | "ctstate"}}:
            return packet.state
        case {"ct": {"key": "status"}}:
            return "dnat" if packet.translated else "none"
        case _:
            return None


def _firewalld(bridge: str, network: NetworkSettings) -> Iterator[str]:
    """Yield the commands for firewalld; a routed network has a zone of its own, which others may enter."""
    command = "firewall-cmd --permanent"
    policy = shlex.quote(f"{network.bridge[:14]}-in")  # of 17 characters at most; none may have a zone's name
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


def _remedy(
    chain: Mapping[str, Any], known: Collection[str], network: NetworkSettings, lost: Sequence[Packet]
) -> Iterator[str]:
    """Yield the commands, in the words of the program to which a chain belongs."""
    family, table, name = _key(chain, "name")
    bridge = shlex.quote(network.bridge)
    iptables = ("ip6tables" if family == "ip6" else "iptables") + ("-legacy" if table == LEGACY else "")
    is_input = chain["hook"] == "input"
    if table == "firewalld":
        yield from _firewalld(bridge, network)
    elif not is_input and "DOCKER-USER" in known:
        yield from (f"{iptables} -I DOCKER-USER {way} {bridge} -j ACCEPT" for way in ("-i", "-o"))
    elif any(re.match("ufw6?-", each) for each in known):
        ports = [f"ufw allow in on {bridge} to any port {p.port.port} proto {p.port.protocol}" for p in lost if p.port]
        whole = [f"ufw allow in on {bridge}"] if is_input else [f"ufw route allow {way} on {bridge}" for way in _WAYS]
        yield from ports or whole
    elif family != "inet" and re.fullmatch("FORWARD|INPUT", name):
        yield from (f"{iptables} -I {name} {way} {bridge} -j ACCEPT" for way in ("-i", "-o")[: 1 if is_input else 2])
    else:
        ways = ("iifname", "oifname")[: 1 if is_input else 2]
        yield from (f"nft insert rule {family} {table} {name} {way} {bridge} accept" for way in ways)
