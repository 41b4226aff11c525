"""Packet filters of other programs, recognised by what they install, as libnftables lists it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from solo5_systemd.base.names import NetworkName
from solo5_systemd.host.other_firewalls import (
    DroppingChain,
    dropping,
    drops_foreign,
    is_translation,
    may_drop,
    saved_listing,
    translating,
)
from solo5_systemd.settings.network_policy import Join, Network, NetworkPolicy

NETWORK = Network(name=NetworkName("default"), bridge="solo5-default")
RESOLVER = replace(NETWORK, policy=NetworkPolicy(host=("53/udp",)))
ROUTED = replace(NETWORK, policy=NetworkPolicy(routed=True))
SIX = replace(NETWORK, has_ipv6=True)
IIF, OIF = {"meta": {"key": "iifname"}}, {"meta": {"key": "oifname"}}
ACCEPT, DROP = {"accept": None}, {"drop": None}
Listing = Sequence[Mapping[str, Any]]


def chain(name: str, policy: str | None = "drop", hook: str = "forward", **more: str) -> dict[str, Any]:
    base = {"type": "filter", "hook": hook, "prio": 0, "policy": policy} if policy else {}
    return {"chain": {"family": "ip", "table": "filter", "name": name, **base, **more}}


def rule(name: str, *statements: object, **more: str) -> dict[str, Any]:
    return {"rule": {"family": "ip", "table": "filter", "chain": name, "expr": list(statements), **more}}


def match(left: object, right: object, op: str = "==") -> dict[str, Any]:
    return {"match": {"left": left, "right": right, "op": op}}


def to(target: str, kind: str = "jump") -> dict[str, Any]:
    return {kind: {"target": target}}


def of(listing: Listing, **more: str) -> Listing:
    """The same items in another table."""
    return [{kind: {**body, **more} for kind, body in item.items()} for item in listing]


def drops(*listing: Mapping[str, Any], network: Network = NETWORK) -> bool:
    return dropping(listing, [network]) != []


INTO, OUT_OF = (rule("FORWARD", match(way, "solo5-default"), ACCEPT) for way in (IIF, OIF))
FIREWALLD = {"family": "inet", "table": "firewalld"}


@pytest.mark.parametrize(
    "rules",
    [
        [],
        [rule("FORWARD", match(IIF, "docker0"), ACCEPT)],
        [OUT_OF],
        [rule("FORWARD", match(IIF, "solo5-default"), DROP)],
        [rule("own", match(IIF, "solo5-default"), ACCEPT)],  # no packet gets there
        [rule("FORWARD", match(IIF, "@set"), ACCEPT)],
        of([INTO], family="ip6"),
    ],
)
def test_a_policy_drops_what_no_rule_opens(rules: Listing) -> None:
    assert drops(chain("FORWARD"), *rules)
    assert not drops(chain("FORWARD", "accept"), *rules)


@pytest.mark.parametrize(
    "rules",
    [
        [INTO],
        [rule("FORWARD", match(IIF, "solo5-*"), ACCEPT)],
        [rule("FORWARD", match(IIF, {"set": ["docker0", "solo5-default"]}), ACCEPT)],
        [rule("FORWARD", to("a")), rule("a", to("b", "goto")), rule("b", match(IIF, "solo5-default"), ACCEPT)],
        [rule("FORWARD", "notrack", {"vmap": {"key": IIF, "data": {"set": [["solo5-default", ACCEPT]]}}})],
        [
            rule("FORWARD", match(IIF, "@inside"), ACCEPT),
            {"set": {"family": "ip", "table": "filter", "name": "inside", "elem": ["solo5-default"]}},
        ],
    ],
)
def test_a_rule_that_names_the_bridge_opens_a_chain(rules: Listing) -> None:
    assert not drops(chain("FORWARD"), chain("a", None), *rules)


def test_a_routed_network_needs_both_ways() -> None:
    assert drops(chain("FORWARD"), INTO, network=ROUTED)
    beyond = rule("FORWARD", match(IIF, "solo5-*"), match(OIF, "docker0", "!="), ACCEPT)
    assert drops(chain("FORWARD"), beyond, network=ROUTED)
    assert not drops(chain("FORWARD"), beyond)
    assert not drops(chain("FORWARD"), INTO, OUT_OF, network=ROUTED)
    assert not drops(chain("FORWARD"), network=replace(NETWORK, join=Join())), "a bridge of others is their affair"


def test_chains_of_this_service_of_bridges_and_of_other_hooks_are_left_out() -> None:
    for more in ({"table": "solo5"}, {"family": "bridge"}, {"hook": "output"}):
        assert not may_drop(chain("FORWARD", **more)["chain"])
    assert may_drop(chain("filter_FORWARD", "accept", **FIREWALLD)["chain"])
    assert not may_drop(chain("filter_FWD", None, **FIREWALLD)["chain"])


@pytest.mark.parametrize(
    ("network", "families"),
    [(NETWORK, {"ip", "inet"}), (SIX, {"ip", "inet", "ip6"}), (replace(SIX, without_ipv4=True), {"inet", "ip6"})],
)
def test_a_network_has_to_pass_the_chains_of_its_families(network: Network, families: set[str]) -> None:
    assert {family for family in ("ip", "ip6", "inet") if drops(chain("f", family=family), network=network)} == families


def test_only_a_service_of_the_host_has_to_pass_input() -> None:
    listing = [chain("INPUT", hook="input")]
    assert not drops(*listing)
    assert drops(*listing, network=RESOLVER)
    assert not drops(*listing, rule("INPUT", match(IIF, "solo5-default"), ACCEPT), network=RESOLVER)


@pytest.mark.parametrize(
    "accepted",
    [
        [match({"payload": {"protocol": "icmpv6", "field": "type"}}, {"set": ["nd-neighbor-solicit"]}), ACCEPT],
        [match({"meta": {"key": "l4proto"}}, "ipv6-icmp"), ACCEPT],
    ],
)
def test_neighbours_of_ipv6_have_to_pass_input(accepted: list[Any]) -> None:
    listing = [chain("INPUT", hook="input", family="ip6")]
    assert drops(*listing, network=SIX)
    assert not drops(*listing)
    assert not drops(*listing, rule("INPUT", *accepted, family="ip6"), network=SIX)


UFW = [f"ufw route allow {way} on solo5-default" for way in ("in", "out")]
LEGACY = "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD DROP [0:0]\nCOMMIT\n"


def both(program: str, at: str) -> list[str]:
    return [f"{program} -I {at} {way} solo5-default -j ACCEPT" for way in ("-i", "-o")]


@pytest.mark.parametrize(
    ("listing", "name", "remedy"),
    [
        (
            *([chain("FORWARD"), rule("FORWARD", to("DOCKER-USER"))], "ip filter FORWARD"),
            both("iptables", "DOCKER-USER"),
        ),
        ([chain("FORWARD"), rule("FORWARD", to("ufw-before-forward"))], "ip filter FORWARD", UFW),
        (
            *([chain("INPUT", hook="input"), rule("INPUT", to("ufw-before-input"))], "ip filter INPUT"),
            ["ufw allow in on solo5-default"],
        ),
        (of([chain("FORWARD"), rule("FORWARD", to("ufw6-before-forward"))], family="ip6"), "ip6 filter FORWARD", UFW),
        ([chain("FORWARD", family="ip6")], "ip6 filter FORWARD", both("ip6tables", "FORWARD")),
        ([chain("INPUT", hook="input")], "ip filter INPUT", both("iptables", "INPUT")[:1]),
        (
            *([chain("filter_FORWARD", "accept", **FIREWALLD)], "inet firewalld filter_FORWARD"),
            ["firewall-cmd --permanent --zone=trusted --add-interface=solo5-default", "firewall-cmd --reload"],
        ),
        (
            *([chain("own", family="inet", table="fw")], "inet fw own"),
            [f"nft insert rule inet fw own {way} solo5-default accept" for way in ("iifname", "oifname")],
        ),
        (
            *(list(saved_listing(LEGACY, "ip")), "ip filter (iptables-legacy) FORWARD"),
            both("iptables-legacy", "FORWARD"),
        ),
    ],
)
def test_the_remedy_is_in_the_words_of_the_program(listing: Listing, name: str, remedy: list[str]) -> None:
    network = replace(RESOLVER, has_ipv6=True)
    assert dropping(listing, [network]) == [DroppingChain(name=name, bridges=["solo5-default"], remedy=remedy)]


def test_each_network_has_commands_of_its_own() -> None:
    lab = replace(NETWORK, name=NetworkName("lab"), bridge="solo5-lab")
    [found] = dropping([chain("filter_FORWARD", **FIREWALLD)], [NETWORK, lab])
    assert found.bridges == ["solo5-default", "solo5-lab"]
    assert [each for each in found.remedy if "lab" in each] == [
        "firewall-cmd --permanent --zone=trusted --add-interface=solo5-lab"
    ]


def test_a_routed_network_has_a_zone_and_a_policy_of_firewalld_of_its_own() -> None:
    """Its policy opens no other link of the zone trusted to everybody. No name there is longer than 17 characters."""
    network = replace(ROUTED, bridge="solo5-a-long-na")
    listing = [chain("filter_FORWARD", **FIREWALLD)]
    [found] = dropping(listing, [network])
    assert "firewall-cmd --permanent --policy=solo5-a-long-n-in --set-target=ACCEPT" in found.remedy
    assert not [each for each in found.remedy if "trusted" in each]
    jump = rule("filter_FORWARD", to("filter_FWD_solo5-a-long-n-in"), **FIREWALLD)
    assert not drops(*listing, jump, network=network)
    served = replace(network, policy=replace(RESOLVER.policy, routed=True))
    zone = rule("filter_INPUT", match(IIF, "solo5-a-long-na"), to("filter_IN_own"), **FIREWALLD)
    assert not drops(chain("filter_INPUT", hook="input", **FIREWALLD), zone, network=served)


@pytest.mark.parametrize(
    ("rules", "dropped"),
    [
        (["-A FORWARD -j own", "-A own -i solo5-+ -j ACCEPT"], False),
        (["-A FORWARD -g own", "-A own -i solo5-default -j ACCEPT"], False),
        (["-A FORWARD -i solo5-default -j REJECT"], True),
        (['-A FORWARD -i docker0 -m comment --comment "not solo5-default" -j ACCEPT'], True),
    ],
)
def test_rules_of_iptables_legacy_count_alike(rules: list[str], dropped: bool) -> None:
    saved = ":INPUT ACCEPT [0:0]\n:FORWARD DROP [0:0]\n:own - [0:0]\n" + "\n".join(rules)
    assert drops(*saved_listing(saved, "ip")) is dropped


def test_neighbours_of_ipv6_pass_a_rule_of_iptables_legacy() -> None:
    listing = list(saved_listing(":INPUT DROP [0:0]\n-A INPUT -p ipv6-icmp -j ACCEPT\n", "ip6"))
    assert drops(listing[0], network=SIX)
    assert not drops(*listing, network=SIX)


def test_tables_that_translate_sources_forward_for_others() -> None:
    masquerade = rule("POSTROUTING", match(IIF, "docker0"), {"counter": None}, {"masquerade": None}, table="nat")
    assert translating([chain("x"), rule("x", "notrack", ACCEPT), masquerade, masquerade]) == ["ip nat"]
    assert translating([rule("POSTROUTING", {"xt": {"type": "target", "name": "MASQUERADE"}})]) == ["ip filter"]
    assert translating([rule("POSTROUTING", {"xt": None})]) == []
    nat = chain("POSTROUTING", "accept", "postrouting", type="nat")["chain"]
    assert is_translation(nat)
    for other in ({"table": "solo5"}, {"family": "ip6"}, {"type": "filter"}, {"hook": "output"}):
        assert not is_translation(nat | other)


def test_a_table_of_both_families_forwards_for_those_that_its_rules_match() -> None:
    either = rule("p", {"masquerade": None}, family="inet", table="own")
    for left, right, version in (
        ({"payload": {"protocol": "ip", "field": "saddr"}}, "10.0.0.0", 4),
        ({"payload": {"protocol": "ip6", "field": "saddr"}}, "fd00::", 6),
        ({"meta": {"key": "nfproto"}}, "ipv6", 6),
        ({"meta": {"key": "protocol"}}, "ip", 4),
    ):
        one = rule("p", match(left, right), {"masquerade": None}, family="inet", table="own")
        assert translating([one], version) == ["inet own"]
        assert translating([one], 10 - version) == []
        assert translating([one, either], 10 - version) == ["inet own"]
    assert is_translation(chain("p", "accept", "postrouting", type="nat", family="inet")["chain"], 6)
    assert not is_translation(chain("p", "accept", "postrouting", type="nat")["chain"], 6)


def test_packets_between_other_links_are_dropped_by_the_last_rule_of_forward() -> None:
    assert drops_foreign([chain("forward"), rule("forward", ACCEPT), rule("forward", {"counter": None}, DROP)])
    assert not drops_foreign([rule("forward", DROP), rule("forward", ACCEPT)])
    assert not drops_foreign([])
