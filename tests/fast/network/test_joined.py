"""The rules for a network that joins an existing bridge."""

import re
from dataclasses import replace
from functools import partial
from ipaddress import IPv4Address, IPv4Network

import pytest
from tests.fast.network.test_ipam import choose
from tests.fast.network.test_ipam import nic as any_nic

from solo5_systemd.base.errors import HostError, InvalidRequestError, TakenError
from solo5_systemd.base.names import DeviceName, NetworkName, TaskName
from solo5_systemd.network.ipam import Allocations, assign_leases, free_addresses
from solo5_systemd.network.joined import Link, usable_bridge
from solo5_systemd.network.model import Lease, NicRequest, PortRequest, Protocol, Request, Reservation
from solo5_systemd.network.request_checks import check_limits
from solo5_systemd.settings.addresses import AddressRange
from solo5_systemd.settings.network_policy import Join, Network

RANGE = IPv4Network("192.168.1.0/24")
POOL = Join(pool=AddressRange(RANGE[200], RANGE[201]))
SERVICE = DeviceName("service")
LAN = Network(name=NetworkName("lan"), bridge="br0", masquerade=False, join=Join())
BRIDGE = Link(kind="bridge")


def network(join: Join, ipv4: IPv4Network | None = RANGE, gateway4: IPv4Address | None = None) -> Network:
    return choose(replace(LAN, join=join, ipv4=ipv4, gateway4=gateway4), (), str(RANGE))


nic = partial(any_nic, of="lan")


def lease(on: Network, request: NicRequest | None = None, *held: Reservation, task: str = "a") -> Lease:
    request = request or nic()
    local = (RANGE[9], RANGE[200])
    (made,) = assign_leases(TaskName(task), (request,), (on,), Allocations(held), lambda _: False, local)
    return made


def test_the_range_of_a_lan_is_one_of_the_hosts_routes_and_none_of_a_network() -> None:
    assert network(Join(), None).ipv4 is None
    assert network(POOL).ipv4 == RANGE
    with pytest.raises(HostError, match=r"network lan cannot use 192.168.1.0/24: it overlaps .* of network lan"):
        choose(replace(LAN, ipv4=RANGE), (network(POOL),))
    own = Network(name=NetworkName("default"), bridge="solo5-default")
    assert choose(own, (network(POOL), network(Join(), None))).ipv4 is not None


def test_a_pool_is_used_up_but_for_the_hosts_own_addresses() -> None:
    on = network(POOL)
    only = lease(on)
    assert (only.address, only.gateway4, only.bridge) == (RANGE[201], None, "br0")
    held = Reservation(task=TaskName("a"), leases=(only,))
    with pytest.raises(
        TakenError, match=r"no free address for NIC service: all of 192.168.1.200-192.168.1.201"
    ) as full:
        lease(on, None, held, task="b")
    assert "network.lan.pool" in full.value.hint
    assert [free_addresses(each, 1) for each in (on, network(Join()), network(Join(), None))] == [1, None, None]


@pytest.mark.parametrize(
    ("join", "ip", "words"),
    [
        (POOL, "192.168.1.77", "outside network lan: expected one in 192.168.1.200-192.168.1.201"),
        (POOL, "192.168.1.200", "taken by this host"),
        (Join(), "192.168.1.9", "taken by this host"),
        (Join(), "192.168.1.1", "its gateway's"),
        (Join(), "192.168.1.255", "its broadcast address"),
        (Join(), "192.168.2.1", "outside network lan: expected one in 192.168.1.0/24"),
        (Join(), None, "requests no address in network lan, which has no pool"),
    ],
)
def test_an_address_that_a_guest_cannot_have_on_the_lan(join: Join, ip: str | None, words: str) -> None:
    with pytest.raises((InvalidRequestError, TakenError), match=words):
        lease(network(join, gateway4=RANGE[1]), nic(ip=ip))


def test_a_lan_with_dhcp_leases_no_address() -> None:
    made = lease(network(Join(), None))
    assert (made.ipv4, made.gateway4, made.address) == (None, None, None)
    with pytest.raises(InvalidRequestError, match="in network lan, which leases no IPv4 addresses"):
        lease(network(Join(), None), nic(ip="192.168.1.7"))
    allocations = Allocations([held := Reservation(task=TaskName("a"), leases=(made,))])
    assert ({*allocations.owners}, allocations.leases[LAN.name]) == ({made.mac, made.tap}, 1)
    allocations.remove(held)
    assert not allocations.owners


@pytest.mark.parametrize(
    ("facts", "vlan", "words"),
    [
        (None, 0, "bridge br0 of network lan does not exist"),
        (Link(kind="openvswitch"), 0, "is of kind openvswitch: expected a Linux bridge"),
        (Link(kind=""), 0, "is a physical device: .* make one with br0 as its port and the host's addresses"),
        (replace(BRIDGE, up=False), 0, "bridge br0 of network lan is down"),
        (BRIDGE, 20, r"does not filter VLANs \(vlan_filtering 0\): expected 1, for VLAN 20"),
        (replace(BRIDGE, vlan_filtering=True, default_pvid=0), 0, r"no VLAN for new ports \(vlan_default_pvid 0\)"),
    ],
)
def test_a_link_of_which_taps_cannot_be_ports(facts: Link | None, vlan: int, words: str) -> None:
    with pytest.raises(HostError) as error:
        usable_bridge(network(Join(vlan=vlan), None), facts)
    assert re.search(words, str(error.value))


def test_a_bridge_of_vlans_is_usable_with_one_and_with_its_own() -> None:
    facts = replace(BRIDGE, vlan_filtering=True)
    assert usable_bridge(network(Join(vlan=20), None), facts) is usable_bridge(network(Join(), None), facts) is facts


def test_ports_are_published_to_nics_of_other_networks_only() -> None:
    own = replace(network(POOL), name=NetworkName("default"), join=None)
    nics = (replace(nic(), network=own.name), nic("lan"))
    port = PortRequest(nic=SERVICE, host_port=8080, port=80, protocol=Protocol.TCP)
    check_limits(Request(nics=nics, ports=(port,)), (own, network(POOL)))
    words = "port 8080/tcp cannot be published to NIC lan: network lan joins bridge br0, where clients reach the guest"
    with pytest.raises(InvalidRequestError, match=words):
        check_limits(Request(nics=nics, ports=(port, replace(port, nic=DeviceName("lan")))), (own, network(POOL)))
