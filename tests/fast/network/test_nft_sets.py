"""The nftables elements and transactions of networks and tasks."""

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface, IPv4Network

import pytest

from solo5_systemd.names import DeviceName, NetworkName, TaskName
from solo5_systemd.network import nft_sets
from solo5_systemd.network.model import Lease, MacAddress, Network, PortRequest, Protocol, Reservation
from solo5_systemd.network.nft_sets import Ruleset
from solo5_systemd.settings.model import NetworkPolicy

SERVICE = DeviceName("service")
RESERVATION = Reservation(
    task=TaskName("a"),
    leases=(
        Lease(
            nic=SERVICE,
            network=NetworkName("default"),
            bridge="solo5-default",
            tap="s5-abcdefghijkl",
            ipv4=IPv4Interface("10.77.0.5/24"),
            gateway4=IPv4Address("10.77.0.1"),
            mac=MacAddress("02:00:00:00:00:09"),
            mtu=1500,
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
    "element ip solo5 leased { 10.77.0.5 }",
    "element ip solo5 refused { 10.77.0.5 }",
    "element ip solo5 published { tcp . 8080 : 10.77.0.5 . 80 }",
    "element ip solo5 published_at { 127.0.0.1 . udp . 53 : 10.77.0.5 . 5353 }",
]


def network(*, masquerade: bool = True, connections: int = 4096) -> Network:
    ipv4 = IPv4Network("10.77.0.0/24")
    return Network(
        name=NetworkName("default"),
        bridge="solo5-x.y",
        ipv4=ipv4,
        gateway4=ipv4[1],
        mtu=1500,
        masquerade=masquerade,
        policy=NetworkPolicy(connections=connections),
    )


def test_a_task_is_elements_alone() -> None:
    elements = nft_sets.task_elements(RESERVATION, [])
    assert list(map(str, elements)) == ELEMENTS
    assert nft_sets.add(elements).splitlines() == [f"add {element}" for element in ELEMENTS]
    assert nft_sets.delete(elements).splitlines() == [f"delete {element}" for element in ELEMENTS]


def test_a_network_is_elements_alone() -> None:
    elements = [
        'element ip solo5 bridges { "solo5-x.y" }',
        "element ip solo5 within { 10.77.0.0/24 . 10.77.0.0/24 }",
        'element ip solo5 paths { "solo5-x.y" . "solo5-x.y" }',
        "element ip solo5 masqueraded { 10.77.0.0/24 }",
    ]
    for masquerade, expected in ((True, elements), (False, elements[:3])):
        made = network(masquerade=masquerade)
        assert sorted(map(str, nft_sets.network_elements(made, [made]))) == sorted(expected)


@pytest.mark.parametrize("owned", [True, False])
def test_everything_is_replaced_in_one_transaction(owned: bool) -> None:
    commands = nft_sets.replace(Ruleset(reservations=[RESERVATION]), owned=owned)
    assert commands.startswith(nft_sets.remove(owned=owned))
    assert commands.endswith(f"add {ELEMENTS[-1]}")
    for family in ("ip", "bridge"):
        without = f"destroy table {family} solo5" if owned else f"add table {family} solo5\ndelete table {family} solo5"
        assert without in nft_sets.remove(owned=owned)
        assert f"\ntable {family} solo5 {{" in commands
    assert commands.count("flags owner, persist;") == (2 if owned else 0)


def test_a_change_touches_what_differs_alone() -> None:
    first, other = network(), replace(network(connections=16), bridge="solo5-y", ipv4=IPv4Network("10.78.0.0/24"))
    before, after = Ruleset(networks=[first], reservations=[RESERVATION]), Ruleset(networks=[first, other])
    commands = nft_sets.change(before, after).splitlines()
    assert commands[: len(ELEMENTS)] == [f"delete {element}" for element in ELEMENTS]
    assert commands[len(ELEMENTS)] == "flush chain ip solo5 limited"
    elements = nft_sets.network_elements(other, [first, other])
    assert commands[-len(elements) :] == [f"add {element}" for element in elements]
    assert nft_sets.change(before, before) == ""
    assert "limited" not in nft_sets.change(after, replace(after, reservations=[RESERVATION]))
