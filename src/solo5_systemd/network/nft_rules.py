"""Transactions of the nftables tables `ip`, `ip6` and `bridge solo5`, in the syntax of nft(8).

The rules are in `nft_ip` and `nft_bridge`. Table ip6 exists while a network with IPv6 is up. Networks,
guests and published ports are elements of sets and maps (`nft_elements`). So the cost of a packet and of a change does
not grow with the number of tasks.

Text instead of libnftables' JSON: the JSON parser of nftables 1.0.6 (Debian 12) turns a map with a concatenated value
into a set, and crashes at the first rule that uses it.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from solo5_systemd.network.derived_addresses import ASKER
from solo5_systemd.network.drops import RULES
from solo5_systemd.network.nft_bridge import BRIDGE
from solo5_systemd.network.nft_elements import Ruleset, differing, grouped, has_ipv6
from solo5_systemd.network.nft_ip import GROUPS, IP, TRANSPORTS, of_family
from solo5_systemd.network.nft_objects import EGRESS, TABLE, Element
from solo5_systemd.settings.egress import METADATA, METADATA6
from solo5_systemd.settings.network_policy import Network

FAMILIES = ("ip", "ip6", "bridge")

FLOWS = "flows"
"""The dynamic set whose elements count a guest's open connections (`ct count`); the kernel adds and removes them."""

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
last, and the set of those that have sent a DHCP request without a server."""

ANNOUNCEMENTS, SNAPLEN = 5805, 64
"""The group of nfnetlink_log that has the first packets for tasks that sleep, and the bytes of each: headers of IP and
of its transport."""

SIZES = {"LARGE": (65535, 2048), "LARGEST": (262144, 16384)}
"""The sizes of sets, and those in namespaces of other programs, which have few guests. The kernel takes memory for as
many elements at once (nft_rhash_init): 24 MB for all sets of the usual sizes."""

HEARD = "heard"
"""The dynamic set of table bridge of the taps that have had a router advertisement while their task slept."""


def _counted(family: str) -> str:
    """Return sets and chains of the rules whose drops are counted by link. A full set drops without a count."""
    parts = []
    for rule, (where, link, _) in RULES.items():
        if where == family:
            parts.append(f"set dropped_{rule} {{ type ifname; size 4096; flags dynamic, timeout; timeout 1h; }}")
            body = f"        update @dropped_{rule} {{ {link} counter }} drop\n        drop\n"
            parts.append(f"chain dropped_{rule} {{\n{body}    }}")
    return "\n    ".join(parts)


_WORDS = {
    "GROUPS": GROUPS,
    "TRANSPORTS": TRANSPORTS,
    "METADATA": ", ".join(METADATA),
    "METADATA6": ", ".join(METADATA6),
    "COUNTED_ip": _counted("ip"),
    "COUNTED_bridge": _counted("bridge"),
    "CLOSED": str(CLOSED_TIMEOUT_S),
    "NEIGHBOURS_RATE": str(NEIGHBOURS_RATE),
    "NEIGHBOURS_BURST": str(NEIGHBOURS_BURST),
    "NEIGHBOUR": str(NEIGHBOUR_TIMEOUT_S),
    "ASKERS_RATE": str(ASKERS_RATE),
    "ASKERS_BURST": str(ASKERS_BURST),
    "ASKER_MAC": ASKER,
}
_TABLES = re.sub(rf"\b({'|'.join(_WORDS)})(?=s?\b)", lambda word: _WORDS[word[0]], IP + BRIDGE)
DYNAMIC = frozenset(re.findall(r"(?:set|map) (\w+) \{[^}]*flags dynamic", _TABLES))
"""The sets whose elements the kernel adds. Listings of nftables 1.0.6 do not have the flag."""


def tables(ruleset: Ruleset, *, owned: bool, announced: bool = True) -> Mapping[str, str]:
    """Return the tables without their elements, by family; table ip6 if one of the networks has IPv6.

    Args:
        owned: set `flags owner, persist`: only this process may change the tables, and they stay after its exit.
        announced: packets for tasks that sleep are announced (nfnetlink_log).
    """
    text = _TABLES.replace("OWNED", "flags owner, persist;" if owned else "")
    text = text.replace("ANNOUNCED", f"log group {ANNOUNCEMENTS} snaplen {SNAPLEN}" if announced else "")
    shared = any(network.shared for network in ruleset.networks)
    for name, sizes in SIZES.items():
        text = text.replace(f"size {name};", f"size {sizes[shared]};")
    ip, bridge, rest = text.partition(f"table bridge {TABLE}")
    routed = ("ip", "ip6") if has_ipv6(ruleset.networks) else ("ip",)
    made = {**{family: of_family(family, ip) for family in routed}, "bridge": bridge + rest}
    for (family, chain), rules in _varying(ruleset).items():
        made[family] = made[family].replace(chain.upper(), "\n        ".join(rules))
    return made


def _varying(ruleset: Ruleset) -> Mapping[tuple[str, str], Sequence[str]]:
    """Return the rules of the chains whose rules depend on more than elements, by family and chain."""
    found = {
        ("ip", "limited"): limited(ruleset.networks),
        ("ip", "foreign"): foreign(ruleset.forwards, ruleset.forwarding),
    }
    if has_ipv6(ruleset.networks):
        rules = limited([network for network in ruleset.networks if network.ipv6])
        found["ip6", "limited"] = [of_family("ip6", rule) for rule in rules]
        found["ip6", "foreign"] = foreign(ruleset.forwards6)
    return found


def foreign(forwards: bool, forwarding: Sequence[str] = ()) -> Sequence[str]:
    """Return the rules of the chain `foreign`, for packets between links of others.

    This service has all links forward: packets to published ports and replies arrive on any. A host that no one else
    has forward must not become a router by that.
    """
    if forwards:
        return ()
    links = ", ".join(f'"{link}"' for link in forwarding)
    return (*((f"iifname {{ {links} }} accept",) if links else ()), "drop")  # nft refuses a set without an element


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


def replace(ruleset: Ruleset, *, owned: bool, announced: bool = True) -> str:
    """Return the transaction that replaces all tables, whatever their state."""
    made = "".join(tables(ruleset, owned=owned, announced=announced).values())
    added = "\n".join(filter(None, map(add, grouped(ruleset))))
    return f"{remove(owned=owned)}\n{made}\n{added}"


def change(before: Ruleset, after: Ruleset, *, owned: bool = True) -> str:
    """Return the transaction that changes the tables from `before` to `after`; the kernel's counters are kept.

    Table ip6 comes with the first network with IPv6, and goes with the last.
    """
    if before == after:  # as after most changes of links
        return ""
    old, new = differing(before, after), differing(after, before)
    had6, has6 = has_ipv6(before.networks), has_ipv6(after.networks)
    removed = set(old) - set(new)
    # Elements of table ip6 go with the table.
    commands = [delete(each for each in old if each in removed and (has6 or each.family != "ip6"))]
    if had6 and not has6:
        commands.append(_remove("ip6", owned=owned))
    if has6 and not had6:
        commands.append(tables(after, owned=owned)["ip6"])
    present = _varying(before)
    for (family, chain), rules in _varying(after).items():
        if (family, chain) in present and present[family, chain] != rules:  # a new table ip6 has its rules already
            commands.append(f"flush chain {family} {TABLE} {chain}")
            commands += [f"add rule {family} {TABLE} {chain} {rule}" for rule in rules]
    added = set(new) - set(old)
    return "\n".join([*commands, add(each for each in new if each in added)]).strip()


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
    """Return the transaction that deletes these elements; all of it fails if one is missing."""
    return "\n".join(command for element in elements for command in element.deleted())
