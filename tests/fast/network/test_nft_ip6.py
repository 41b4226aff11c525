"""The verdict on IPv6 packets, and the elements of networks and tasks with IPv6.

tests/contract/test_network_ipv6.py sends such packets, and frames, through a kernel.
"""

import re
from dataclasses import replace
from ipaddress import IPv6Interface, IPv6Network

import pytest
from tests.fast.network.packets import GUESTS, GUESTS6, Packet, verdict
from tests.fast.network.test_nft_rules import CELLS, RESERVATION, at_back, in_state, linked_network, task_elements
from tests.fast.network.test_nft_rules import plan as plan4

from solo5_systemd.base.names import NetworkName
from solo5_systemd.network import nft_rules
from solo5_systemd.network.ipam import segments
from solo5_systemd.network.model import Network, Reservation
from solo5_systemd.network.nft_elements import Ruleset, elements
from solo5_systemd.network.nft_ip import ip6
from solo5_systemd.settings.egress import METADATA6
from solo5_systemd.settings.network import Join
from solo5_systemd.settings.network_keys import CLOSED, NetworkPolicy

FRONT, BACK, LAN = "solo5-front", "solo5-back", "eth0"
LINK_LOCAL = "fe80::ff:fe00:9"


def six(network: Network, *, nat66: bool = False) -> Network:
    prefix = IPv6Network("fd00:77::/64" if network.name == "front" else "fd00:78::/64")
    return replace(network, ipv6=prefix, gateway6=prefix[1], nat66=nat66)


def leased(reservation: Reservation, address: str) -> Reservation:
    (lease,) = reservation.leases
    interface = IPv6Interface(f"{address}/64")
    return replace(reservation, leases=(replace(lease, ipv6=interface, gateway6=interface.network[1]),))


HELD = leased(RESERVATION, GUESTS6[FRONT])


def plan(front: NetworkPolicy = CLOSED, *, forwards6: bool = False) -> Ruleset:
    networks = (six(linked_network("front", front)), six(linked_network("back")))
    held = (in_state(HELD), in_state(leased(at_back(RESERVATION), GUESTS6[BACK])))
    return Ruleset(networks=networks, records=held, forwards6=forwards6)


TRANSLATED = {
    "10.77.0.5": GUESTS6[FRONT],
    "10.77.0.6": "fd00:77::6",
    "10.78.0.6": "fd00:78::6",
    "10.77.0.1": "fd00:77::1",
    "10.78.0.5": "fd00:78::5",
    "192.0.2.1": "2001:db8::1",
    "192.0.2.9": "2001:db8::9",
    "169.254.169.254": "fd00:ec2::254",
    "168.63.129.16": "fd20:ce::254",
    "100.100.100.200": "fd00:42::42",
    "100.100.100.201": "fd00:42::43",
    "169.254.0.1": "fd00:c1::a9fe:a9fe",
}


@pytest.mark.parametrize(
    ("packet", "policy", "expected"), [pytest.param(*cell[1:], id=cell[0]) for cell in CELLS if not cell[2].dhcp]
)
def test_a_packet_has_the_verdict_of_its_like_of_ipv4(packet: Packet, policy: NetworkPolicy, expected: str) -> None:
    source = GUESTS6.get(packet.iif, "2001:db8::9")
    ends = tuple(TRANSLATED[end] for end in packet.ends)
    packet = replace(packet, source=source, to=TRANSLATED[packet.to] if packet.to else "", ends=ends)
    assert verdict(plan(policy), packet, "ip6") == expected


@pytest.mark.parametrize(
    ("packet", "expected"),
    [
        (Packet(iif=FRONT, what="nd-neighbor-solicit", source=LINK_LOCAL), "accept"),
        (Packet(iif=FRONT, what="nd-neighbor-advert", source=LINK_LOCAL), "accept"),
        (Packet(iif=FRONT, what="nd-router-solicit", source="::"), "accept"),
        (Packet(iif=FRONT, what="nd-router-advert", source=LINK_LOCAL), "drop"),
        (Packet(iif=FRONT, what="ping", source=LINK_LOCAL), "drop"),
        # with br_netfilter, within a bridge
        (Packet(iif=FRONT, oif=FRONT, what="nd-neighbor-solicit", to="fd00:77::6"), "accept"),
        (Packet(iif=FRONT, oif=FRONT, what="nd-neighbor-solicit", to="fe80::99"), "accept"),
        (Packet(iif=FRONT, oif=FRONT, to="fe80::99", source=LINK_LOCAL), "accept"),
        # routed, back to its link
        (Packet(iif=FRONT, oif=FRONT, what="nd-neighbor-solicit", to="fe80::99", hops=254), "drop"),
        (Packet(iif=FRONT, oif=FRONT, what="nd-neighbor-advert", to="fd00:77::5", hops=254), "drop"),
        (Packet(iif=FRONT, oif=BACK, what="nd-neighbor-advert"), "drop"),
        (Packet(iif=FRONT, oif=BACK, to="fe80::99", source=LINK_LOCAL), "drop"),
        (Packet(iif=LAN, oif=FRONT, what="nd-neighbor-advert", source="2001:db8::9"), "drop"),
    ],
    ids=str,
)
def test_neighbour_discovery_and_link_local_addresses(packet: Packet, expected: str) -> None:
    assert verdict(plan(), packet, "ip6") == expected


def test_a_host_that_forwards_ipv6_by_itself_goes_on() -> None:
    packet = Packet(iif=LAN, oif="eth1", source="2001:db8::9")
    assert [verdict(plan(forwards6=forwards), packet, "ip6") for forwards in (False, True)] == ["drop", "accept"]
    assert verdict(plan(forwards6=True), packet) == "drop", "and IPv4 by its own setting"


def test_no_word_of_ipv4_is_left() -> None:
    text = nft_rules.tables(plan(), owned=True)["ip6"]
    rules = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    assert [line for line in rules if re.search(r"\bip\b|ipv4|icmp\b|127\.|METADATA|FOREIGN|LIMITED", line)] == []
    assert ip6("ip daddr { METADATA } drop") == f"ip6 daddr {{ {', '.join(METADATA6)} }} drop"


def test_table_ip6_is_there_for_networks_with_ipv6_alone() -> None:
    both = plan()
    front, back = both.networks
    without = replace(
        both, networks=(replace(front, ipv6=None, gateway6=None), replace(back, ipv6=None, gateway6=None))
    )
    assert [*nft_rules.tables(without, owned=True)] == ["ip", "bridge"]
    for owned in (True, False):
        made = nft_rules.change(without, both, owned=owned)
        assert made.count("table ip6 solo5 {") == 1
        assert "table ip solo5" not in made
        assert "add element ip6 solo5 leased { fd00:77::5 . fd00:77::5 }" in made
        gone = nft_rules.change(both, without, owned=owned)
        assert "element ip6" not in gone
        assert ("destroy table ip6 solo5" if owned else "delete table ip6 solo5") in gone
    assert "limited" not in nft_rules.change(both, replace(both, records=()))


def test_a_changed_limit_is_changed_in_both_tables() -> None:
    commands = nft_rules.change(plan(), plan(NetworkPolicy(connections=16)))
    assert re.findall(r"flush chain (\w+) solo5 limited", commands) == ["ip", "ip6"]
    assert (
        'add rule ip6 solo5 limited iifname { "solo5-front" } add @flows { ip6 saddr ct count over 16 } goto refuse'
        in (commands)
    )


@pytest.mark.parametrize(("shared", "expected"), [(True, "accept"), (False, "drop")])
def test_a_guest_calls_any_port_of_programs_that_share_its_namespace(shared: bool, expected: str) -> None:
    own = replace(plan(), networks=(replace(six(linked_network("front")), shared=shared), six(linked_network("back"))))
    for family, guests in (("ip", GUESTS), ("ip6", GUESTS6)):
        assert verdict(own, Packet(iif=FRONT, what="tcp 9191", source=guests[FRONT]), family) == expected
        assert verdict(own, Packet(iif=BACK, what="tcp 9191", source=guests[BACK]), family) == "drop"
    found = [each.key for each in elements(own) if each.name in ("gateways", "looped")]
    ours = [('"solo5-front"', "10.77.0.1"), ('"solo5-front"', "fd00:77::1"), ("::1",)]
    assert found == (ours if shared else [])


def test_a_guest_with_ipv6_alone_has_no_element_of_an_ipv4_address() -> None:
    (lease,) = HELD.leases
    alone = replace(HELD, leases=(replace(lease, ipv4=None, gateway4=None),))
    both, made = set(map(str, task_elements(HELD, []))), set(map(str, task_elements(alone, [])))
    assert made < both
    assert {each for each in both - made if "10.77.0.5" not in each} == set()


def test_segments_and_bridges_of_others_have_elements_in_both_tables() -> None:
    network = six(linked_network("front"))
    [segment, *_] = segments(network.bridge)
    joined = replace(linked_network("back"), bridge="br0", join=Join())
    made = {
        str(each) for each in elements(Ruleset(networks=(network, joined), segments=[(segment, NetworkName("front"))]))
    }
    for family in ("ip", "ip6"):
        assert f'element {family} solo5 bridges {{ "{segment}" }}' in made
        assert f'element {family} solo5 segments {{ "{segment}" }}' in made
        assert f'element {family} solo5 bridged {{ "br0" . "br0" }}' in made
    assert not any(each.family == "ip6" for each in elements(replace(plan4(), networks=(joined,), records=())))
