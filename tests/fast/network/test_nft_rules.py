"""The verdict on packets, by source, destination and options of the networks.

tests/contract/test_network_policy.py sends such packets through a kernel.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network, ip_network

import pytest
from tests.fast.network.conftest import network as network_of
from tests.fast.network.packets import Frame, Packet, seen, verdict
from tests.support.fakes.tasks import LEASE

from solo5_systemd.base.names import DeviceName, NetworkName, TaskName
from solo5_systemd.network import nft_elements, nft_rules
from solo5_systemd.network.model import (
    NO_LIMITS,
    LeaseRecord,
    LeaseState,
    Limits,
    MacAddress,
    Network,
    PortRequest,
    Protocol,
    Reservation,
)
from solo5_systemd.network.nft_elements import Ruleset
from solo5_systemd.network.nft_objects import Element
from solo5_systemd.settings.egress import egress
from solo5_systemd.settings.network import Join
from solo5_systemd.settings.network_keys import CLOSED, HostPort, NetworkPolicy
from solo5_systemd.settings.rate import Rate

FRONT, BACK, LAN, WAN = "solo5-front", "solo5-back", "eth0", "eth1"
ROUTED = NetworkPolicy(routed=True)
REACHES_BACK = NetworkPolicy(reach=(NetworkName("back"),))
ISOLATED = NetworkPolicy(isolated=True)
SERVING = NetworkPolicy(host=(HostPort(port=53, protocol="udp"), HostPort(port=8080, protocol="tcp")))
METADATA = NetworkPolicy(metadata=True)
DHCP = NetworkPolicy(dhcp=True)
OPEN = NetworkPolicy(
    routed=True, reach=(NetworkName("back"),), host=(HostPort(port=53, protocol="udp"),), metadata=True
)


def linked_network(name: str, policy: NetworkPolicy = CLOSED) -> Network:
    return replace(network_of("10.77.0.0/24" if name == "front" else "10.78.0.0/24", name), policy=policy)


def in_state(held: Reservation, state: LeaseState = LeaseState.ATTACHED, asleep: int = 0) -> LeaseRecord:
    return LeaseRecord(reservation=held, state=state, expires=0, asleep=asleep)


def with_limits(held: Reservation, limits: Limits) -> Reservation:
    return replace(held, leases=tuple(replace(lease, limits=limits) for lease in held.leases))


def task_elements(held: Reservation, networks: Sequence[Network], *, asleep: int = 0) -> Sequence[Element]:
    """Return the elements of an attached task."""
    return nft_elements.record_elements(in_state(held, asleep=asleep), networks)


def plan(front: NetworkPolicy = CLOSED, *, forwards: bool = False) -> Ruleset:
    guests = (in_state(RESERVATION), in_state(at_back(RESERVATION)))
    networks = (linked_network("front", front), linked_network("back"))
    return Ruleset(networks=networks, records=guests, forwards=forwards)


def at_back(reservation: Reservation) -> Reservation:
    (lease,) = reservation.leases
    return Reservation(task=TaskName("b"), leases=(replace(lease, ipv4=IPv4Interface("10.78.0.5/24")),))


def error(ends: tuple[str, str], oif: str = "") -> Packet:
    """Return an ICMP error of the guest that quotes a packet of a connection between two addresses."""
    return Packet(iif=FRONT, oif=oif, what="icmp 3", state="related", ends=ends)


CELLS = [
    # of a guest: the host
    ("a guest pings the gateway", Packet(iif=FRONT, what="ping"), CLOSED, "accept"),
    ("a guest calls a service of the host", Packet(iif=FRONT, what="udp 53"), CLOSED, "drop"),
    ("a guest calls an API of the host", Packet(iif=FRONT, what="tcp 4646"), CLOSED, "drop"),
    ("a guest sends anything else to the host", Packet(iif=FRONT, what="gre 0"), CLOSED, "drop"),
    ("a service is opened", Packet(iif=FRONT, what="udp 53"), SERVING, "accept"),
    ("another one is opened", Packet(iif=FRONT, what="tcp 8080"), SERVING, "accept"),
    ("its other protocol is not", Packet(iif=FRONT, what="tcp 53"), SERVING, "drop"),
    ("another port is not", Packet(iif=FRONT, what="udp 54"), SERVING, "drop"),
    ("a guest sends to a DHCP server", Packet(iif=FRONT, what="udp 67"), CLOSED, "drop"),
    ("there is one", Packet(iif=FRONT, what="udp 67"), DHCP, "accept"),
    ("it is not another network's", Packet(iif=BACK, what="udp 67"), DHCP, "drop"),
    ("for another network it is not", Packet(iif=BACK, what="udp 53"), SERVING, "drop"),
    ("a guest answers the host", Packet(iif=FRONT, what="tcp 40000", state="established"), CLOSED, "accept"),
    ("an error about the host's packet", error(("10.77.0.1", "10.77.0.5")), CLOSED, "accept"),
    ("about the guest's own to the host", error(("10.77.0.5", "10.77.0.1")), SERVING, "accept"),
    ("about a packet of the host to another guest", error(("10.77.0.1", "10.77.0.6")), SERVING, "drop"),
    ("about a packet of the host to others", error(("192.0.2.1", "192.0.2.9")), SERVING, "drop"),
    ("others call the host", Packet(iif=LAN, what="tcp 22"), CLOSED, "accept"),
    ("the host calls itself", Packet(iif="lo", what="tcp 4646"), CLOSED, "accept"),
    ("a guest's packet of no connection", Packet(iif=FRONT, what="ping", state="invalid"), SERVING, "drop"),
    # of a guest: beyond the host
    ("one that would leave with the guest's own address", Packet(iif=FRONT, oif=LAN, state="invalid"), OPEN, "drop"),
    ("a guest's way out", Packet(iif=FRONT, oif=LAN), CLOSED, "accept"),
    ("the metadata service", Packet(iif=FRONT, oif=LAN, to="169.254.169.254"), CLOSED, "drop"),
    ("that of Azure", Packet(iif=FRONT, oif=LAN, to="168.63.129.16"), CLOSED, "drop"),
    ("that of Alibaba Cloud", Packet(iif=FRONT, oif=LAN, to="100.100.100.200"), CLOSED, "drop"),
    ("that of Alibaba Cloud, opened", Packet(iif=FRONT, oif=LAN, to="100.100.100.200"), METADATA, "accept"),
    ("the address beside it", Packet(iif=FRONT, oif=LAN, to="100.100.100.201"), CLOSED, "accept"),
    ("another link-local address", Packet(iif=FRONT, oif=LAN, to="169.254.0.1"), OPEN, "accept"),
    ("the metadata service, opened", Packet(iif=FRONT, oif=LAN, to="169.254.169.254"), METADATA, "accept"),
    ("for another network it is not", Packet(iif=BACK, oif=LAN, to="169.254.169.254"), METADATA, "drop"),
    ("an error about the guest's own packet", error(("10.77.0.5", "192.0.2.9"), oif=LAN), CLOSED, "accept"),
    ("about one of a client of its port", error(("192.0.2.9", "10.77.0.5"), oif=LAN), CLOSED, "accept"),
    ("about one of a client of another guest's", error(("192.0.2.9", "10.77.0.6"), oif=LAN), OPEN, "drop"),
    ("about one of another network's guest", error(("10.78.0.5", "192.0.2.9"), oif=BACK), OPEN, "drop"),
    # between guests
    ("within a network", Packet(iif=FRONT, oif=FRONT), CLOSED, "accept"),
    ("within one that is isolated", Packet(iif=FRONT, oif=FRONT), ISOLATED, "drop"),
    ("a published port there", Packet(iif=FRONT, oif=FRONT, dnat=True), ISOLATED, "accept"),
    ("from network to network", Packet(iif=FRONT, oif=BACK), CLOSED, "drop"),
    ("a published port of another network", Packet(iif=FRONT, oif=BACK, dnat=True), CLOSED, "accept"),
    ("to a network that may be reached", Packet(iif=FRONT, oif=BACK), REACHES_BACK, "accept"),
    ("not the other way", Packet(iif=BACK, oif=FRONT), REACHES_BACK, "drop"),
    ("but its answer", Packet(iif=BACK, oif=FRONT, state="established"), REACHES_BACK, "accept"),
    ("a routed network is routed for the outside", Packet(iif=BACK, oif=FRONT), ROUTED, "drop"),
    ("an address that no guest has", Packet(iif=FRONT, oif=FRONT, to="10.77.0.6"), OPEN, "drop"),
    ("one of another network", Packet(iif=FRONT, oif=BACK, to="10.78.0.6"), OPEN, "drop"),
    # from beyond the host
    ("a client calls an address that no guest has", Packet(iif=LAN, oif=FRONT, to="10.77.0.6"), ROUTED, "drop"),
    ("a client calls a published port", Packet(iif=LAN, oif=FRONT, dnat=True), CLOSED, "accept"),
    ("a client calls a port that is not published", Packet(iif=LAN, oif=FRONT), CLOSED, "drop"),
    ("a client of a routed network does", Packet(iif=LAN, oif=FRONT), ROUTED, "accept"),
    ("and of another one does not", Packet(iif=LAN, oif=BACK), ROUTED, "drop"),
    ("an answer to a guest", Packet(iif=LAN, oif=FRONT, state="established"), CLOSED, "accept"),
    ("an error about a guest's packet", Packet(iif=LAN, oif=FRONT, state="related"), CLOSED, "accept"),
    # none of ours
    ("from link to link of the host", Packet(iif=LAN, oif=WAN), CLOSED, "drop"),
    ("whatever our networks open", Packet(iif=LAN, oif=WAN), OPEN, "drop"),
]


@pytest.mark.parametrize(("packet", "policy", "expected"), [pytest.param(*cell[1:], id=cell[0]) for cell in CELLS])
def test_a_packet_is_accepted_or_dropped(packet: Packet, policy: NetworkPolicy, expected: str) -> None:
    assert verdict(plan(policy), packet) == expected


def test_a_host_that_forwards_by_itself_goes_on() -> None:
    assert verdict(plan(forwards=True), Packet(iif=LAN, oif=WAN)) == "accept"
    assert verdict(plan(forwards=True), Packet(iif=LAN, oif=FRONT)) == "drop"


NEW_ONES = [
    Packet(iif=FRONT, what="ping"),
    Packet(iif=FRONT, what="udp 53"),
    Packet(iif=FRONT, oif=LAN),
    Packet(iif=FRONT, oif=FRONT),
    Packet(iif=FRONT, oif=BACK),
    Packet(iif=FRONT, oif=BACK, dnat=True),
    Packet(iif=FRONT, oif=LAN, to="169.254.169.254"),
]


@pytest.mark.parametrize("packet", NEW_ONES, ids=str)
@pytest.mark.parametrize(
    ("limit", "open_ones", "expected"), [(4096, 4095, "accept"), (4096, 4096, "drop"), (16, 16, "drop")]
)
def test_whatever_a_guest_opens_counts(packet: Packet, limit: int, open_ones: int, expected: str) -> None:
    limited = plan(replace(OPEN, connections=limit))
    assert verdict(limited, replace(packet, open=open_ones)) == expected
    for later in ({"state": "established"}, {"tracked": True}):
        assert verdict(limited, replace(packet, open=open_ones, **later)) == "accept"


OUT, BACK_OUT = Packet(iif=FRONT, oif=LAN), Packet(iif=BACK, oif=LAN)


@pytest.mark.parametrize(
    ("packet", "expected"),
    [
        # connections that are closed by now count by their rate, those of TCP
        (replace(OUT, what="tcp 7", opened=15), "accept"),
        (replace(OUT, what="tcp 7", opened=16), "drop"),
        (replace(OUT, what="udp 7", opened=16), "accept"),
        # neighbours of the host that are called at once
        (replace(OUT, sought=64), "accept"),
        (replace(OUT, sought=65), "drop"),
        (replace(OUT, sought=65, tracked=True), "drop"),
        # each network has its own limit, and clients of a guest are not the guest's own connections
        (replace(OUT, open=100), "drop"),
        (replace(BACK_OUT, open=100), "accept"),
        (replace(BACK_OUT, open=5000), "drop"),
        (Packet(iif=LAN, oif=FRONT, dnat=True, open=99999), "accept"),
    ],
    ids=str,
)
def test_what_a_guest_may_open_at_once_is_limited(packet: Packet, expected: str) -> None:
    assert verdict(plan(NetworkPolicy(connections=16)), packet) == expected


SERVICE = DeviceName("service")
RESERVATION = Reservation(
    task=TaskName("a"),
    leases=(
        replace(
            LEASE,
            tap="s5-abcdefghijkl",
            ipv4=IPv4Interface("10.77.0.5/24"),
            gateway4=IPv4Address("10.77.0.1"),
            mac=MacAddress("02:00:00:00:00:09"),
        ),
    ),
    ports=(
        PortRequest(nic=SERVICE, host_port=8080, port=80, protocol=Protocol.TCP),
        PortRequest(nic=SERVICE, host_ip=IPv4Address("127.0.0.1"), host_port=53, port=5353, protocol=Protocol.UDP),
    ),
)
GUEST = '"s5-abcdefghijkl"'
ELEMENTS = [
    f"element bridge solo5 guests {{ {GUEST} . 02:00:00:00:00:09 . 10.77.0.5 }}",
    f"element bridge solo5 reflected {{ {GUEST} . {GUEST} }}",
    "element bridge solo5 fragments { 10.77.0.5 }",
    "element ip solo5 leased { 10.77.0.5 . 10.77.0.5 }",
    "element ip solo5 refused { 10.77.0.5 }",
    f"element bridge solo5 plain {{ {GUEST} . 02:00:00:00:00:09 . 10.77.0.5 }}",
    "element ip solo5 published { tcp . 8080 : 10.77.0.5 . 80 }",
    "element ip solo5 published_at { 127.0.0.1 . udp . 53 : 10.77.0.5 . 5353 }",
]


def network(*, masquerade: bool = True, connections: int = 4096) -> Network:
    policy = NetworkPolicy(connections=connections)
    return replace(network_of("10.77.0.0/24"), bridge="solo5-x.y", masquerade=masquerade, policy=policy)


def test_a_task_is_elements_alone() -> None:
    elements = task_elements(RESERVATION, [])
    assert list(map(str, elements)) == ELEMENTS
    assert nft_rules.add(elements).splitlines() == [f"add {element}" for element in ELEMENTS]
    assert nft_rules.delete(elements).splitlines() == [f"delete {element}" for element in ELEMENTS]


def test_what_is_behind_a_guest_is_elements_of_its_own() -> None:
    held = with_limits(RESERVATION, Limits(routes=(ip_network("192.168.2.0/24"),)))
    permitting = replace(network(), policy=NetworkPolicy(routes=(ip_network("192.168.0.0/16"),)))
    made = set(map(str, task_elements(held, [permitting])))
    assert {
        "element ip solo5 behind { 192.168.2.0/24 }",
        "element ip solo5 routers { 10.77.0.5 . 192.168.2.0/24 }",
        "element ip solo5 routers { 192.168.2.0/24 . 192.168.2.0/24 }",
        "element ip solo5 within { 192.168.2.0/24 . 10.77.0.0/24 }",
        "element ip solo5 within { 10.77.0.0/24 . 192.168.2.0/24 }",
        "element ip solo5 within { 192.168.2.0/24 . 192.168.2.0/24 }",
        "element ip solo5 masqueraded { 192.168.2.0/24 }",
    } <= made
    untranslated = map(str, task_elements(held, [replace(permitting, masquerade=False)]))
    assert "element ip solo5 masqueraded { 192.168.2.0/24 }" not in set(untranslated), "as the network itself"


def test_a_network_is_elements_alone() -> None:
    elements = [
        'element ip solo5 bridges { "solo5-x.y" }',
        "element ip solo5 within { 10.77.0.0/24 . 10.77.0.0/24 }",
        'element ip solo5 paths { "solo5-x.y" . "solo5-x.y" }',
        "element ip solo5 masqueraded { 10.77.0.0/24 }",
    ]
    for masquerade, expected in ((True, elements), (False, elements[:3])):
        made = network(masquerade=masquerade)
        assert sorted(map(str, nft_elements.network_elements(made, [made]))) == sorted(expected)


@pytest.mark.parametrize("owned", [True, False])
def test_everything_is_replaced_in_one_transaction(owned: bool) -> None:
    commands = nft_rules.replace(Ruleset(records=[in_state(RESERVATION)]), owned=owned)
    assert commands.startswith(nft_rules.remove(owned=owned))
    assert commands.endswith(f"add {ELEMENTS[-1]}")
    assert "\ntable ip6 solo5 {" not in commands
    for family in ("ip", "ip6", "bridge"):
        without = f"destroy table {family} solo5" if owned else f"add table {family} solo5\ndelete table {family} solo5"
        assert without in nft_rules.remove(owned=owned)
        assert (f"\ntable {family} solo5 {{" in commands) is (family != "ip6")
    assert commands.count("flags owner, persist;") == (2 if owned else 0)


def test_a_change_touches_what_differs_alone() -> None:
    first, other = network(), replace(network(connections=16), bridge="solo5-y", ipv4=IPv4Network("10.78.0.0/24"))
    before, after = Ruleset(networks=[first], records=[in_state(RESERVATION)]), Ruleset(networks=[first, other])
    commands = nft_rules.change(before, after).splitlines()
    assert commands[: len(ELEMENTS)] == [f"delete {element}" for element in ELEMENTS]
    assert commands[len(ELEMENTS)] == "flush chain ip solo5 limited"
    elements = [*nft_elements.network_elements(other, [first, other])]
    assert commands[-len(elements) :] == [f"add {element}" for element in elements]
    assert nft_rules.change(before, before) == ""
    assert "limited" not in nft_rules.change(after, replace(after, records=[in_state(RESERVATION)]))


def test_of_tasks_whose_networks_stay_no_element_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each changed link is a reason to compare them, and a thousand tasks have as many elements as take a second."""
    monkeypatch.setattr(nft_elements, "record_elements", lambda *_: pytest.fail("elements of a task"))
    held = Ruleset(networks=(DUAL,), records=(in_state(HELD),))
    assert nft_rules.change(held, replace(held)) == ""
    other = replace(network(), name=NetworkName("other"), bridge="solo5-y", ipv4=IPv4Network("10.78.0.0/24"))
    commands = nft_rules.change(held, replace(held, networks=(DUAL, other)))
    assert [line for line in commands.splitlines() if line.startswith("delete")] == []
    assert commands.endswith(f"add {[*nft_elements.network_elements(other, [DUAL, other])][-1]}")


JOINED = replace(network(), name=NetworkName("default"), bridge="br0", join=Join())
JOINED6 = replace(JOINED, policy=NetworkPolicy(fragments=True), join=Join(ipv6=True))
LEASED = replace(RESERVATION, ports=())
UNLEASED = replace(LEASED, leases=(replace(RESERVATION.leases[0], ipv4=None, gateway4=None),))
LEASED6 = replace(LEASED, leases=(replace(UNLEASED.leases[0], ipv6=IPv6Interface("fd00:1::7/64")),))


@pytest.mark.parametrize(
    ("changed", "held", "names"),
    [
        (JOINED, LEASED, "guests joined whole"),
        (JOINED, UNLEASED, "joined unleased whole"),
        (JOINED6, UNLEASED, "joined unleased ipv6 linked unleased6"),
        (JOINED6, LEASED6, "joined unleased ipv6 linked guests6 advertised guests6 advertised"),
    ],
)
def test_a_guest_on_a_bridge_of_others_has_elements_of_table_bridge_alone(
    changed: Network, held: Reservation, names: str
) -> None:
    made = nft_elements.elements(Ruleset(networks=(changed,), records=(in_state(held),)))
    assert [each.name for each in made if each.family == "bridge"] == names.split()
    assert [str(each) for each in made if each.family == "ip"] == [BRIDGED]


@pytest.mark.parametrize(
    ("limits", "plain"),
    [
        (NO_LIMITS, True),
        (Limits(egress=()), False),
        (Limits(egress=egress(["10.0.0.0/8"])), False),
        (Limits(rate=Rate(received_packets=10)), False),
    ],
)
def test_frames_of_a_guest_with_limits_meet_every_rule(limits: Limits, plain: bool) -> None:
    """The others pass after one lookup, which none of a joined bridge is in."""
    held = with_limits(RESERVATION, limits)
    for on, expected in ((network(), plain), (JOINED, False)):
        made = task_elements(held, [on])
        assert any(each.name == "plain" for each in made) is expected
    limited = replace(network(), policy=NetworkPolicy(egress=()))
    assert not any(each.name == "plain" for each in task_elements(RESERVATION, [limited]))


BRIDGED = 'element ip solo5 bridged { "br0" . "br0" }'


def test_frames_within_a_joined_bridge_are_forwarded_with_br_netfilter() -> None:
    """Also where several networks join it; and none from there to another link."""
    joining = replace(plan(), networks=(*plan().networks, JOINED, replace(JOINED, name=NetworkName("second"))))
    assert [str(each) for each in nft_elements.elements(joining)].count(BRIDGED) == 1
    assert verdict(joining, Packet(iif="br0", oif="br0")) == "accept"
    assert verdict(plan(), Packet(iif="br0", oif="br0")) == "drop"
    assert verdict(joining, Packet(iif="br0", oif=WAN)) == "drop"


def test_a_network_on_a_bridge_of_others_is_neither_reached_nor_limited() -> None:
    front = replace(network(), name=NetworkName("front"), policy=NetworkPolicy(reach=(JOINED.name,)))
    made = map(str, nft_elements.network_elements(front, (front, JOINED)))
    assert [each for each in made if "br0" in each] == []
    assert nft_rules.limited((front, JOINED)) == nft_rules.limited((front,))


def test_a_network_with_ipv6_alone_has_its_bridge_in_table_ip_and_no_range() -> None:
    """So a packet of IPv4 from its bridge is one of a network, and closed."""
    prefix, gateway = IPv6Network("fd00:1::/64"), IPv6Address("fd00:1::1")
    alone = replace(network(), ipv4=None, gateway4=None, ipv6=prefix, gateway6=gateway)
    made = [*nft_elements.network_elements(alone, [alone])]
    assert [str(each) for each in made if each.family == "ip"] == ['element ip solo5 bridges { "solo5-x.y" }']
    assert "element ip6 solo5 within { fd00:1::/64 . fd00:1::/64 }" in map(str, made)


(TAP,) = (lease.tap for lease in RESERVATION.leases)
SIX = replace(RESERVATION.leases[0], ipv6=IPv6Interface("fd00:1::7/64"), gateway6=IPv6Address("fd00:1::1"))
HELD = replace(RESERVATION, leases=(SIX,))
AWAKE = replace(HELD, idle_s=60)
DUAL = replace(network(), bridge="solo5-default", ipv6=IPv6Network("fd00:1::/64"), gateway6=IPv6Address("fd00:1::1"))


@pytest.mark.parametrize(
    ("frame", "sent", "expected"),
    [
        # activity: IP for one receiver
        (Frame(), False, "counted announced"),
        (Frame(), True, "counted announced"),
        (Frame(kind="ip6"), False, "counted announced"),
        (Frame(kind="ip6"), True, "counted announced"),
        (Frame(kind="ip6", icmpv6=128), False, "counted announced"),
        (Frame(kind="ip6", icmpv6=128), True, "counted announced"),
        # to all, which would fill its queue, and neighbour discovery: as of every machine that is idle
        (Frame(grouped=True), False, "dropped"),
        (Frame(kind="ip6", grouped=True), True, ""),
        (Frame(kind="ip6", icmpv6=134), False, ""),
        (Frame(kind="ip6", icmpv6=134, grouped=True), False, ""),
        (Frame(kind="ip6", icmpv6=136), True, ""),
        # questions for its addresses wake it, and do not keep it awake
        (Frame(kind="arp", target="10.77.0.5", grouped=True), False, "announced"),
        (Frame(kind="arp", target="10.77.0.6", grouped=True), False, "dropped"),
        (Frame(kind="arp", target="10.77.0.5"), False, "announced"),
        (Frame(kind="arp", target="10.77.0.5"), True, ""),
        (Frame(kind="ip6", icmpv6=135, target="fd00:1::7", grouped=True), False, "announced"),
        (Frame(kind="ip6", icmpv6=135, target="fe80::ff:fe00:9"), False, "announced"),
        (Frame(kind="ip6", icmpv6=135, target="fd00:1::8", grouped=True), False, "dropped"),
    ],
    ids=str,
)
def test_packets_for_a_task_that_sleeps_are_announced(frame: Frame, sent: bool, expected: str) -> None:
    """One that may sleep is counted by the same rules; of any other nothing is."""
    dual = Ruleset(networks=(DUAL,))
    asleep = replace(dual, records=(in_state(HELD, asleep=1),))
    awake = replace(dual, records=(in_state(AWAKE),))
    assert seen(asleep, TAP, frame, sent=sent) == {*expected.split()}
    assert seen(replace(dual, records=(in_state(AWAKE, asleep=1),)), TAP, frame, sent=sent) == {*expected.split()}
    assert seen(awake, TAP, frame, sent=sent) == {*expected.split()} - {"announced", "dropped"}
    assert seen(replace(dual, records=(in_state(HELD),)), TAP, frame, sent=sent) == set()
    assert seen(asleep, "s5-other", frame, sent=sent) == set()


def test_what_the_filter_refuses_does_not_come_to_where_it_would_be_announced() -> None:
    """Frames to a guest are announced at the last hook of the bridge, after table ip has decided.

    A guest without a process has no tap: its neighbours' questions are announced where their own are accepted.
    """
    assert verdict(plan(), Packet(iif=LAN, oif=FRONT)) == "drop"
    of_bridge = nft_rules.tables(Ruleset(networks=(DUAL,)), owned=True)["bridge"]
    chains = {each.partition(" {")[0]: each for each in of_bridge.split("    chain ")[1:]}
    logging = {name for name, each in chains.items() if " log group " in each.partition("\n    }")[0]}
    assert logging == {"sent", "receiving", "received", "resolving", "seeking6", "telling"}
    callers = {name for name, each in chains.items() if re.search(r"(jump|goto) (receiving|received)\b", each)}
    assert callers == {"postrouting", "receiving"}
    assert "hook postrouting priority filter;" in chains["postrouting"]


def test_without_nfnetlink_log_nothing_is_announced() -> None:
    assert "log group" not in nft_rules.replace(Ruleset(networks=(DUAL,)), owned=True, announced=False)
    assert "ANNOUNCED" not in nft_rules.replace(Ruleset(networks=(DUAL,)), owned=True, announced=True)


def test_a_task_that_waits_has_its_elements_of_packets_and_none_of_a_tap() -> None:
    """Its packets, and questions for it: tests/contract/test_network_activation.py."""
    record = in_state(HELD, LeaseState.WAITING)
    found = nft_elements.elements(Ruleset(networks=(DUAL,), records=(record,)))
    assert {*found} > {each for each in task_elements(HELD, [DUAL]) if each.family != "bridge"}
    assert [each for each in found if TAP in str(each)] == []
    without = nft_elements.record_elements(in_state(UNLEASED, LeaseState.WAITING), [JOINED])
    assert not [each for each in without if "waiting" in each.name]


def test_a_task_whose_network_is_not_attached_has_no_elements() -> None:
    for state in (LeaseState.RESERVED, LeaseState.RELEASING):
        assert nft_elements.record_elements(in_state(HELD, state), [DUAL]) == ()


@pytest.mark.parametrize(
    ("what", "of_waiting"),
    [("tcp 80", "accept"), ("tcp-ack 80", "reject"), ("udp 7", "accept"), ("ping", "accept"), ("icmp 3", "drop")],
)
def test_only_what_may_begin_a_connection_reaches_a_task_that_waits(what: str, of_waiting: str) -> None:
    """A guest without a process has no connection; whatever passes starts it."""
    running = plan(replace(ROUTED, reach=(NetworkName("back"),)))
    waits = replace(running, records=[replace(each, state=LeaseState.WAITING) for each in running.records])
    for packet in (Packet(iif=LAN, oif=FRONT, what=what), Packet(iif=BACK, oif=BACK, to="10.78.0.5", what=what)):
        assert verdict(running, packet) == "accept"
        assert verdict(waits, packet) == of_waiting
    assert verdict(waits, Packet(iif=LAN, oif=BACK, what=what)) == "drop", "as without a guest"
    assert verdict(waits, Packet(iif=LAN, oif=FRONT, what=what, state="established")) == "accept"
