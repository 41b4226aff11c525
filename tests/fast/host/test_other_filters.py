"""Packets of networks in the rules of other programs, as libnftables lists them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from solo5_systemd.host.other_filters import (
    LEGACY,
    DroppingChain,
    Filters,
    drops_foreign,
    has_extensions,
    is_filter,
    is_translation,
    packets,
    saved_listing,
    translating,
)
from solo5_systemd.names import NetworkName
from solo5_systemd.settings.ipv6 import Ipv6
from solo5_systemd.settings.model import HostPort, Join, NetworkPolicy, NetworkSettings

NETWORK = NetworkSettings(name=NetworkName("default"), bridge="solo5-default")
RESOLVER = replace(NETWORK, policy=NetworkPolicy(host=(HostPort(port=53, protocol="udp"),)))
IIF, OIF, STATE, STATUS = ({"meta": {"key": "iifname"}}, {"meta": {"key": "oifname"}}, {"ct": {"key": "state"}},
    {"ct": {"key": "status"}})  # fmt: skip
ACCEPT, DROP = {"accept": None}, {"drop": None}


def chain(name: str, policy: str | None = None, hook: str = "forward", **more: str) -> dict[str, Any]:
    base = {"type": "filter", "hook": hook, "prio": 0, "policy": policy} if policy else {}
    return {"chain": {"family": "ip", "table": "filter", "name": name, **base, **more}}


def rule(name: str, *statements: object, **more: str) -> dict[str, Any]:
    return {"rule": {"family": "ip", "table": "filter", "chain": name, "expr": list(statements), **more}}


def match(left: object, right: object, op: str = "==") -> dict[str, Any]:
    return {"match": {"left": left, "right": right, "op": op}}


def to(target: str, kind: str = "jump") -> dict[str, Any]:
    return {kind: {"target": target}}


def drops(*listing: Mapping[str, Any], network: NetworkSettings = NETWORK) -> bool:
    return bool(Filters(listing).dropping([network], "eth0"))


BOTH = (match(IIF, "solo5-default"), match(OIF, "solo5-default"))


@pytest.mark.parametrize(
    "rules",
    [
        [],
        [rule("FORWARD", match(IIF, "docker0"), ACCEPT)],
        [rule("FORWARD", BOTH[0], ACCEPT)],  # and none for what comes back
        [rule("FORWARD", match(STATE, ["established", "related"], "in"), ACCEPT)],
        [rule("FORWARD", match({"payload": {"protocol": "ip", "field": "saddr"}}, "10.0.0.1"), ACCEPT)],
        [rule("FORWARD", {"xt": {"type": "match", "name": "mark"}}, ACCEPT)],
        [rule("FORWARD", {"xt": None}, ACCEPT)],
        [rule("FORWARD", match(IIF, "solo5-default", "<"), ACCEPT)],
        [rule("FORWARD", {"counter": None}, to("none")), rule("FORWARD", {"return": None}), rule("FORWARD", ACCEPT)],
        [rule("FORWARD", to("user", "goto")), rule("FORWARD", ACCEPT)],
        [rule("FORWARD", {"vmap": {"key": STATE, "data": "@states"}})],
        [rule("FORWARD", {"vmap": {"key": STATE, "data": {"set": [["established", ACCEPT]]}}})],
        [rule("FORWARD", {"vmap": {"key": {"meta": {"key": "mark"}}, "data": {"set": [[1, ACCEPT]]}}})],
    ],
)
def test_a_policy_drops_what_no_rule_accepts(rules: list[dict[str, Any]]) -> None:
    assert drops(chain("FORWARD", "drop"), *rules)


@pytest.mark.parametrize(
    "rules",
    [
        [rule("FORWARD", ACCEPT)],
        [rule("FORWARD", "notrack", {"counter": {"packets": 1}}, each, ACCEPT) for each in BOTH],
        [rule("FORWARD", match(left, "solo5-*"), ACCEPT) for left in (IIF, OIF)],
        [rule("FORWARD", match(left, {"set": ["a", "solo5-default"]}), ACCEPT) for left in (IIF, OIF)],
        [rule("FORWARD", match(left, "eth1", "!="), ACCEPT) for left in (IIF, OIF)],
        [rule("FORWARD", to("user")), *(rule("user", each, ACCEPT) for each in BOTH)],
        [rule("FORWARD", BOTH[0], ACCEPT), rule("FORWARD", match(STATE, "established"), ACCEPT),
         rule("FORWARD", match(STATUS, "dnat", "in"), ACCEPT)],
        [rule("FORWARD", {"vmap": {"key": IIF, "data": {"set": [["solo5-default", to("user")], ["eth0", ACCEPT]]}}}),
         rule("user", {"queue": {"num": 1}})],
        [{"set": {"family": "ip", "table": "filter", "name": "inside", "elem": ["solo5-default"]}},
         *(rule("FORWARD", match(left, "@inside"), ACCEPT) for left in (IIF, OIF))],
        [rule("FORWARD", match({"meta": {"key": "nfproto"}}, "ipv4"), ACCEPT)],
    ],
)  # fmt: skip
def test_a_policy_does_not_apply_to_what_rules_accept(rules: list[dict[str, Any]]) -> None:
    assert not drops(chain("FORWARD", "drop"), *rules)


def test_a_last_rule_drops_like_a_policy() -> None:
    assert drops(chain("FORWARD", "accept"), rule("FORWARD", {"reject": {"type": "icmpx"}}))
    assert drops(chain("FORWARD", "accept"), rule("FORWARD", {"xt": {"type": "target", "name": "REJECT"}}))
    assert not drops(chain("FORWARD", "accept"), rule("FORWARD", {"xt": {"type": "target", "name": "LOG"}}))
    assert not drops(chain("FORWARD", "accept"))


def test_a_drop_is_final_in_each_chain() -> None:
    assert drops(chain("FORWARD", "accept"), rule("FORWARD", to("user")), rule("user", DROP), rule("FORWARD", ACCEPT))
    assert drops(chain("first", "accept"), chain("second", "drop"), rule("first", ACCEPT))


def test_chains_of_this_service_of_bridges_and_of_ipv6_are_left_out() -> None:
    for family, table in (("ip", "solo5"), ("bridge", "filter"), ("ip6", "filter")):
        assert not drops(chain("forward", "drop", family=family, table=table))
    assert not drops(chain("forward", "drop", "output"))
    assert not drops(chain("forward", "drop", family="ip6", table="solo5"), network=SIX)
    assert not is_filter(chain("forward", "drop", family="ip6", table="solo5")["chain"])


SIX = replace(NETWORK, ipv6=Ipv6())
SOLICIT = {"payload": {"protocol": "icmpv6", "field": "type"}}
HOPS, NEXT = {"payload": {"protocol": "ip6", "field": "hoplimit"}}, {"payload": {"protocol": "ip6", "field": "nexthdr"}}
L4, NFPROTO, PROTOCOL = ({"meta": {"key": key}} for key in ("l4proto", "nfproto", "protocol"))


@pytest.mark.parametrize(
    ("listing", "expected"),
    [
        ([chain("FORWARD", "drop", family="ip6")], True),
        ([chain("FORWARD", "drop", family="inet"),
          rule("FORWARD", match(NFPROTO, "ipv4"), ACCEPT, family="inet")], True),
        ([chain("FORWARD", "drop", family="inet"), rule("FORWARD", match(PROTOCOL, "ip"), ACCEPT, family="inet"),
          rule("FORWARD", match(PROTOCOL, "ip6"), ACCEPT, family="inet")], False),
        ([chain("FORWARD", "accept", family="inet"),
          rule("FORWARD", match(NFPROTO, "ipv6"), DROP, family="inet")], True),
        ([chain("FORWARD", "drop", family="ip6"),
          *(rule("FORWARD", each, ACCEPT, family="ip6") for each in BOTH)], False),
        ([chain("INPUT", "drop", "input", family="ip6")], True),
        ([chain("INPUT", "drop", "input", family="ip6"),
          rule("INPUT", match(SOLICIT, {"set": ["nd-router-advert", "nd-neighbor-solicit"]}), ACCEPT, family="ip6")],
         False),
        ([chain("INPUT", "drop", "input", family="ip6"), rule("INPUT", match(L4, 58), match(HOPS, 255), ACCEPT,
                                                              family="ip6")], False),
        ([chain("INPUT", "drop", "input", family="ip6"), rule("INPUT", match(NEXT, "icmpv6"), ACCEPT, family="ip6")],
         False),
        ([chain("INPUT", "drop", "input", family="ip6"), rule("INPUT", match(L4, "icmp"), ACCEPT, family="ip6")], True),
        ([chain("INPUT", "drop", "input", family="inet"), rule("INPUT", match(STATE, "untracked"), ACCEPT,
                                                               family="inet")], False),
        (list(saved_listing(":INPUT DROP [0:0]\n-A INPUT -p ipv6-icmp -m icmp6 --icmpv6-type 135 -m hl --hl-eq 255 "
                            "-j ACCEPT\n", "filter", "ip6")), False),
        (list(saved_listing(":INPUT DROP [0:0]\n-A INPUT -p ipv6-icmp -m icmp6 --icmpv6-type 134 -j ACCEPT\n", "filter",
                            "ip6")), True),
    ],
)  # fmt: skip
def test_a_network_with_ipv6_has_to_pass_chains_of_ipv6(listing: list[Any], expected: bool) -> None:
    assert drops(*listing, network=SIX) is expected
    if listing[0]["chain"]["family"] == "ip6":
        assert not drops(*listing)


def test_a_service_of_the_host_has_to_pass_input_of_ipv6() -> None:
    both = replace(RESOLVER, ipv6=Ipv6())
    listing = [chain("INPUT", "drop", "input", family="ip6"), rule("INPUT", match(SOLICIT, "nd-neighbor-solicit"),
                                                                    ACCEPT, family="ip6")]  # fmt: skip
    assert drops(*listing, network=both)
    dport = {"payload": {"protocol": "udp", "field": "dport"}}
    assert not drops(*listing, rule("INPUT", match(dport, 53), ACCEPT, family="ip6"), network=both)


@pytest.mark.parametrize(
    ("listing", "remedy"),
    [
        ([chain("FORWARD", "drop", family="ip6")],
         [f"ip6tables -I FORWARD {way} solo5-default -j ACCEPT" for way in ("-i", "-o")]),
        ([chain("FORWARD", "drop", family="ip6"), rule("DOCKER-USER", {"return": None}, family="ip6")],
         [f"ip6tables -I DOCKER-USER {way} solo5-default -j ACCEPT" for way in ("-i", "-o")]),
        ([chain("FORWARD", "drop", family="ip6"), rule("ufw6-before-forward", {"log": None}, family="ip6")],
         ["ufw route allow in on solo5-default", "ufw route allow out on solo5-default"]),
        ([chain("INPUT", "drop", "input", family="ip6"), rule("ufw6-before-input", {"log": None}, family="ip6")],
         ["ufw allow in on solo5-default"]),
        ([chain("i", "drop", "input", family="ip6", table="own")],
         ["nft insert rule ip6 own i iifname solo5-default accept"]),
    ],
)  # fmt: skip
def test_the_remedy_of_ipv6_is_in_the_words_of_the_program(listing: list[Any], remedy: list[str]) -> None:
    [found] = Filters(listing).dropping([SIX], "eth0")
    assert found.remedy == remedy


def test_a_service_of_the_host_has_to_pass_input() -> None:
    dport = {"payload": {"protocol": "udp", "field": "dport"}}
    listing = [chain("INPUT", "drop", "input")]
    assert not drops(*listing)
    assert drops(*listing, network=RESOLVER)
    assert drops(*listing, rule("INPUT", match(dport, 5353), ACCEPT), network=RESOLVER)
    assert drops(
        *listing, rule("INPUT", match({"payload": {"protocol": "tcp", "field": "dport"}}, 53), ACCEPT), network=RESOLVER
    )
    udp = [
        match(key, "udp")
        for key in ({"meta": {"key": "l4proto"}}, {"payload": {"protocol": "ip", "field": "protocol"}})
    ]
    assert not drops(*listing, rule("INPUT", *udp, match(dport, {"set": [5353, 53]}), ACCEPT), network=RESOLVER)


def test_a_network_on_a_bridge_of_others_is_the_others_affair() -> None:
    assert not drops(chain("FORWARD", "drop"), network=replace(NETWORK, join=Join()))


@pytest.mark.parametrize(
    ("listing", "name", "remedy"),
    [
        (
            [chain("FORWARD", "drop"), rule("DOCKER-USER", {"return": None})],
            "ip filter FORWARD",
            [f"iptables -I DOCKER-USER {way} solo5-default -j ACCEPT" for way in ("-i", "-o")],
        ),
        (
            [chain("FORWARD", "drop"), rule("ufw-before-forward", {"log": None})],
            "ip filter FORWARD",
            ["ufw route allow in on solo5-default", "ufw route allow out on solo5-default"],
        ),
        (
            [chain("INPUT", "drop", "input"), rule("ufw-before-input", {"log": None})],
            "ip filter INPUT",
            ["ufw allow in on solo5-default to any port 53 proto udp"],
        ),
        (
            [chain("FORWARD", "drop")],
            "ip filter FORWARD",
            ["iptables -I FORWARD -i solo5-default -j ACCEPT", "iptables -I FORWARD -o solo5-default -j ACCEPT"],
        ),
        ([chain("INPUT", "drop", "input")], "ip filter INPUT", ["iptables -I INPUT -i solo5-default -j ACCEPT"]),
        (
            [chain("filter_FORWARD", "drop", family="inet", table="firewalld")],
            "inet firewalld filter_FORWARD",
            ["firewall-cmd --permanent --zone=trusted --add-interface=solo5-default", "firewall-cmd --reload"],
        ),
        (
            [chain("own", "drop", family="inet", table="fw")],
            "inet fw own",
            [
                "nft insert rule inet fw own iifname solo5-default accept",
                "nft insert rule inet fw own oifname solo5-default accept",
            ],
        ),
        (
            list(saved_listing("*filter\n:INPUT ACCEPT [0:0]\n:FORWARD DROP [0:0]\nCOMMIT\n", LEGACY)),
            "ip filter (iptables-legacy) FORWARD",
            [
                "iptables-legacy -I FORWARD -i solo5-default -j ACCEPT",
                "iptables-legacy -I FORWARD -o solo5-default -j ACCEPT",
            ],
        ),
    ],
)  # fmt: skip
def test_the_remedy_is_in_the_words_of_the_program(listing: list[Any], name: str, remedy: list[str]) -> None:
    found = Filters(listing).dropping([RESOLVER], "eth0")
    assert found == [DroppingChain(name=name, bridges=["solo5-default"], remedy=remedy)]


def test_each_network_has_commands_of_its_own() -> None:
    lab = replace(NETWORK, name=NetworkName("lab"), bridge="solo5-lab")
    [found] = Filters([chain("FORWARD", "drop", table="firewalld", family="inet")]).dropping([NETWORK, lab], "")
    assert found.bridges == ["solo5-default", "solo5-lab"]
    assert [each for each in found.remedy if "lab" in each] == [
        "firewall-cmd --permanent --zone=trusted --add-interface=solo5-lab"
    ]


SAVED = """*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:own - [0:0]
{}
COMMIT
"""


@pytest.mark.parametrize(
    ("rules", "dropped"),
    [
        (["-A FORWARD -j own", "-A own -i solo5-+ -j ACCEPT", "-A own -o solo5-+ -j ACCEPT"], False),
        (["-A FORWARD -g own", "-A FORWARD -j ACCEPT"], True),
        (["-A FORWARD ! -i eth1 -j ACCEPT"], False),
        (['-A FORWARD -m comment --comment "all of it" -j ACCEPT'], False),
        (["-A FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT"], True),  # what is not known does not match
        (["-A FORWARD -m addrtype --dst-type LOCAL -j ACCEPT"], True),
        (["-A FORWARD -i solo5-default -j ACCEPT", "-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
          "-A FORWARD -m conntrack --ctstate DNAT -j ACCEPT"], False),
        (["-A FORWARD -i solo5-default -j ACCEPT", "-A FORWARD -m conntrack --ctstate RELATED -j ACCEPT"], True),
        (["-A FORWARD -j REJECT --reject-with icmp-port-unreachable", "-A FORWARD -j ACCEPT"], True),
        (["-A FORWARD -j RETURN", "-A FORWARD -j ACCEPT"], True),
    ],
)  # fmt: skip
def test_rules_of_iptables_are_evaluated_alike(rules: list[str], dropped: bool) -> None:
    assert drops(*saved_listing(SAVED.format("\n".join(rules)), LEGACY)) is dropped


@pytest.mark.parametrize(
    ("rules", "dropped"),
    [
        (["-A INPUT -p udp -m udp --dport 53 -j ACCEPT"], False),
        (["-A INPUT -p udp -m multiport --dports 67,53 -j ACCEPT"], False),
        (["-A INPUT -p tcp -m tcp --dport 53 -j ACCEPT"], True),
        (["-A INPUT -m addrtype --dst-type LOCAL -j RETURN", "-A INPUT -j ACCEPT"], True),
    ],
)
def test_a_service_of_the_host_has_to_pass_iptables_too(rules: list[str], dropped: bool) -> None:
    listing = saved_listing(":INPUT DROP [0:0]\n" + "\n".join(rules), "filter")
    assert drops(*listing, network=RESOLVER) is dropped


def test_a_match_by_an_extension_of_iptables_is_noticed() -> None:
    assert has_extensions(
        [chain("FORWARD"), rule("FORWARD", "notrack", {"xt": {"type": "match", "name": "conntrack"}})]
    )
    assert has_extensions([rule("FORWARD", {"xt": None})])
    assert not has_extensions([chain("FORWARD"), rule("FORWARD", ACCEPT, {"xt": {"type": "target", "name": "LOG"}})])


def test_tables_that_translate_sources_forward_for_others() -> None:
    masquerade = rule("POSTROUTING", match(IIF, "docker0"), {"counter": None}, {"masquerade": None}, table="nat")
    assert translating([chain("x", "accept"), rule("x", "notrack", ACCEPT), masquerade, masquerade]) == ["ip nat"]
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
    for version in (4, 6):
        assert translating([rule("p", match(IIF, "own0"), {"masquerade": None})], version)
        assert is_translation(chain("p", "accept", "postrouting", type="nat", family="inet")["chain"], version)
    assert is_translation(chain("p", "accept", "postrouting", type="nat", family="ip6")["chain"], 6)
    assert not is_translation(chain("p", "accept", "postrouting", type="nat")["chain"], 6)


ROUTED = replace(NETWORK, policy=NetworkPolicy(routed=True))


def test_a_routed_network_has_a_zone_of_firewalld_of_its_own() -> None:
    """Its policy opens no other link of the zone trusted to everybody. No name there is longer than 17 characters."""
    net = replace(ROUTED, bridge="solo5-a-long-na")
    [found] = Filters([chain("filter_FORWARD", "drop", family="inet", table="firewalld")]).dropping([net], "eth0")
    assert "firewall-cmd --permanent --policy=solo5-a-long-n-in --set-target=ACCEPT" in found.remedy
    assert not [each for each in found.remedy if "trusted" in each]


PUBLISHED = (
    chain("forward", "drop"),
    rule("forward", match(IIF, "solo5-default"), ACCEPT),
    rule("forward", match(STATE, "established"), ACCEPT),
    rule("forward", match(STATUS, "dnat"), ACCEPT),
)


def test_a_routed_network_needs_more_than_published_ports() -> None:
    """Packets for a guest's own address are new ones, whose destination no rule has translated."""
    assert not drops(*PUBLISHED)
    assert drops(*PUBLISHED, network=ROUTED)
    assert not drops(*PUBLISHED, rule("forward", match(OIF, "solo5-default"), ACCEPT), network=ROUTED)
    six = [{kind: body | {"family": "ip6"} for kind, body in item.items()} for item in PUBLISHED]
    assert [drops(*six, network=replace(each, ipv6=Ipv6())) for each in (NETWORK, ROUTED)] == [False, True]


def test_packets_between_other_links_are_dropped_by_the_last_rule_of_forward() -> None:
    assert drops_foreign([chain("forward"), rule("forward", ACCEPT), rule("forward", {"counter": None}, DROP)])
    assert not drops_foreign([rule("forward", DROP), rule("forward", ACCEPT)])
    assert not drops_foreign([])


def test_a_network_with_ipv6_alone_has_no_path_by_ipv4() -> None:
    alone = replace(SIX, without_ipv4=True)
    assert {each.version for each in packets(alone, "eth0", "eth0")} == {6}
    assert {each.version for each in packets(SIX, "eth0", "eth0")} == {4, 6}
