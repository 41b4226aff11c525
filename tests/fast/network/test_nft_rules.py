"""The elements of tasks and networks, and the transactions that write them.

What becomes of packets by the rules, a kernel shows in tests/contract.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network, ip_network

import pytest
from tests.fast.network.conftest import network as network_of
from tests.support.fakes.tasks import LEASE

from solo5_systemd.base.names import DeviceName, NetworkName, TaskName
from solo5_systemd.network import nft_elements, nft_rules
from solo5_systemd.network.ipam import segments
from solo5_systemd.network.model import (
    NO_LIMITS,
    LeaseRecord,
    LeaseState,
    Limits,
    MacAddress,
    PortRequest,
    Protocol,
    Reservation,
)
from solo5_systemd.network.nft_elements import Ruleset, elements
from solo5_systemd.network.nft_objects import Element
from solo5_systemd.settings.addresses import routes
from solo5_systemd.settings.egress import egress
from solo5_systemd.settings.network_policy import CLOSED, Join, Network, NetworkPolicy
from solo5_systemd.settings.rate import Rate


def linked_network(name: str, policy: NetworkPolicy = CLOSED) -> Network:
    return replace(network_of("10.77.0.0/24" if name == "front" else "10.78.0.0/24", name), policy=policy)


def in_state(held: Reservation, state: LeaseState = LeaseState.ATTACHED, asleep: int = 0) -> LeaseRecord:
    return LeaseRecord(reservation=held, state=state, expires=0, asleep=asleep)


def with_limits(held: Reservation, limits: Limits) -> Reservation:
    return replace(held, leases=tuple(replace(lease, limits=limits) for lease in held.leases))


def task_elements(held: Reservation, networks: Sequence[Network], *, asleep: int = 0) -> Sequence[Element]:
    """Return the elements of an attached task."""
    return nft_elements.record_elements(in_state(held, asleep=asleep), networks)


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


def network(*, masquerade: bool = True, connections: int = 4096) -> Network:
    policy = NetworkPolicy(connections=connections)
    return replace(network_of("10.77.0.0/24"), bridge="solo5-x.y", masquerade=masquerade, policy=policy)


@pytest.mark.parametrize("masquerade", [True, False])
def test_what_is_behind_a_guest_is_translated_as_its_network_is(masquerade: bool) -> None:
    held = with_limits(RESERVATION, Limits(routes=(ip_network("192.168.2.0/24"),)))
    permitting = replace(network(masquerade=masquerade), policy=NetworkPolicy(routes=(ip_network("192.168.0.0/16"),)))
    made = map(str, task_elements(held, [permitting]))
    assert ("element ip solo5 masqueraded { 192.168.2.0/24 }" in made) is masquerade


@pytest.mark.parametrize("owned", [True, False])
def test_everything_is_replaced_in_one_transaction(owned: bool) -> None:
    commands = nft_rules.replace(Ruleset(records=[in_state(RESERVATION)]), owned=owned)
    assert commands.startswith(nft_rules.remove(owned=owned))
    assert commands.endswith(f"add {task_elements(RESERVATION, [])[-1]}")
    assert "\ntable ip6 solo5 {" not in commands
    for family in ("ip", "ip6", "bridge"):
        without = f"destroy table {family} solo5" if owned else f"add table {family} solo5\ndelete table {family} solo5"
        assert without in nft_rules.remove(owned=owned)
        assert (f"\ntable {family} solo5 {{" in commands) is (family != "ip6")
    assert commands.count("flags owner, persist;") == (2 if owned else 0)


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
LEASED = replace(RESERVATION, ports=())
UNLEASED = replace(LEASED, leases=(replace(RESERVATION.leases[0], ipv4=None, gateway4=None),))


BRIDGED = 'element ip solo5 bridged { "br0" . "br0" }'


def test_frames_within_a_joined_bridge_are_forwarded_with_br_netfilter() -> None:
    """Also where several networks join it."""
    joining = Ruleset(networks=(network(), JOINED, replace(JOINED, name=NetworkName("second"))))
    assert [str(each) for each in nft_elements.elements(joining)].count(BRIDGED) == 1


def test_a_network_on_a_bridge_of_others_is_neither_reached_nor_limited() -> None:
    front = replace(network(), name=NetworkName("front"), policy=NetworkPolicy(reach=(JOINED.name,)))
    made = map(str, nft_elements.network_elements(front, (front, JOINED)))
    assert [each for each in made if "br0" in each] == []
    assert nft_rules.limited((front, JOINED)) == nft_rules.limited((front,))


(TAP,) = (lease.tap for lease in RESERVATION.leases)
SIX = replace(RESERVATION.leases[0], ipv6=IPv6Interface("fd00:1::7/64"), gateway6=IPv6Address("fd00:1::1"))
HELD = replace(RESERVATION, leases=(SIX,))
DUAL = replace(network(), bridge="solo5-default", ipv6=IPv6Network("fd00:1::/64"), gateway6=IPv6Address("fd00:1::1"))


def test_what_the_filter_refuses_does_not_come_to_where_it_would_be_announced() -> None:
    """Frames to a guest are announced at the last hook of the bridge, after table ip has decided.

    A guest without a process has no tap: its neighbours' questions are announced where their own are accepted.
    """
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


def test_packets_between_links_of_others_are_dropped_unless_the_host_forwards_by_itself() -> None:
    assert nft_rules.foreign(forwards=False, forwarding=["ve"]) == ('iifname { "ve" } accept', "drop")
    assert nft_rules.foreign(forwards=True) == ()


def test_a_task_whose_network_is_not_attached_has_no_elements() -> None:
    for state in (LeaseState.RESERVED, LeaseState.RELEASING):
        assert nft_elements.record_elements(in_state(HELD, state), [DUAL]) == ()


# -- the elements of networks and tasks with IPv6 --------------------------------------------------------------------


(OWN,) = RESERVATION.leases
INTERFACE6 = IPv6Interface("fd00:77::5/64")
HELD6 = replace(RESERVATION, leases=(replace(OWN, ipv6=INTERFACE6, gateway6=INTERFACE6.network[1]),))


def six(front: Network) -> Network:
    prefix = IPv6Network("fd00:77::/64" if front.name == "front" else "fd00:78::/64")
    return replace(front, ipv6=prefix, gateway6=prefix[1])


def plan(front: NetworkPolicy = CLOSED) -> Ruleset:
    networks = (six(linked_network("front", front)), six(linked_network("back")))
    return Ruleset(networks=networks, records=(in_state(HELD6),))


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


# -- the rules and the elements that they look up ----------------------------------------------------------------------


RANGES = routes(["192.168.2.0/24", "2001:db8:2::/64"])
OPEN = NetworkPolicy(
    routed=True, reach=(NetworkName("back"),), host=("53/udp",), metadata=True, dhcp=True,
    routes=RANGES,
)  # fmt: skip
FRONT = replace(six(linked_network("front", OPEN)), shared=True, nat66=True)
LAN = replace(linked_network("lan"), bridge="br0", join=Join(ipv6=True))


def on(
    network: Network,
    task: str,
    limits: Limits = NO_LIMITS,
    *,
    leased: bool = True,
    ports: tuple[PortRequest, ...] = (),
    state: LeaseState = LeaseState.ATTACHED,
    asleep: int = 0,
) -> LeaseRecord:
    """Return the record of an attached task with one NIC."""
    own = replace(HELD6.leases[0], network=network.name, limits=limits)
    lease = own if leased else replace(own, ipv4=None, ipv6=None)
    held = replace(HELD6, task=TaskName(task), leases=(lease,), ports=ports, idle_s=60 * (asleep > 0))
    return in_state(held, state, asleep)


EVERYTHING = Ruleset(
    networks=(FRONT, six(linked_network("back")), LAN, replace(six(linked_network("six")), ipv4=None, gateway4=None)),
    records=(
        on(FRONT, "routes", Limits(routes=RANGES)),
        on(FRONT, "sleeps", Limits(egress=egress(["10.0.0.0/8:53", "[2001:db8::1]"])), asleep=1),
        on(FRONT, "waits", state=LeaseState.WAITING),
        on(LAN, "limited", Limits(rate=Rate(1, 2, 3, 4))),
        on(LAN, "unleased", leased=False, asleep=1),
        on(FRONT, "plain", ports=(*HELD6.ports, replace(HELD6.ports[0], host_ip=IPv6Address("::1"), host_port=81))),
    ),
    segments=[(segments(FRONT.bridge)[0], FRONT.name)],
)


def test_sets_of_a_namespace_with_few_guests_are_small() -> None:
    for network, sizes in ((replace(FRONT, shared=False), {65535, 262144}), (FRONT, {2048, 16384})):
        texts = "".join(nft_rules.tables(Ruleset(networks=(network,)), owned=True).values())
        assert {*map(int, re.findall(r"size (\d+);", texts))} == sizes | {1024, 4096}


def test_each_element_is_of_a_set_that_the_rules_look_up_and_has_its_fields() -> None:
    """And there is one of each set whose elements are not the kernel's; what they open is in tests/contract."""
    fields: dict[tuple[str, str], list[int]] = {}
    for family, text in nft_rules.tables(EVERYTHING, owned=True).items():
        listed = re.findall(r"(?:set|map) (\w+) \{ type(?:of)? ([^:;]+)(?: : ([^;]+))?;", text)
        assert {name for name, *_ in listed} == {*re.findall(r"@(\w+)", text)} - {"nh", "th"}
        fields |= {(family, name): [len(each.split(" . ")) for each in both if each] for name, *both in listed}
    made = elements(EVERYTHING)
    assert {(each.family, each.name) for each in made} == {each for each in fields if each[1] not in nft_rules.DYNAMIC}
    assert {each.key[0] for each in made if each.name in ("shared", "gateways")} == {f'"{FRONT.bridge}"'}
    assert len([each for each in made if each.name == "asleep6"]) == 2, "also its link-local address"
    for each in made:
        parts = [each.key, ("its object",) if each.object else each.value]
        assert [len(part) for part in parts if part] == fields[each.family, each.name], each
    assert nft_rules.add(made).count("add element") == nft_rules.delete(made).count("delete element") == len(made)
