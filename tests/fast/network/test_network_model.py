"""Conversion of the network's values to and from D-Bus."""

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

import pytest
from tests.fast.network.test_nft_rules import RESERVATION, network
from tests.support.fakes.tasks import LEASE, NETWORK

from solo5_systemd.errors import InvalidRequestError
from solo5_systemd.names import DeviceName, NetworkName, TaskName
from solo5_systemd.network.drops import Dropped
from solo5_systemd.network.model import (
    Lease,
    LeaseRecord,
    LeaseState,
    MacAddress,
    NetworkOverview,
    NicRequest,
    PortRequest,
    Protocol,
    Reservation,
    mac_address,
)
from solo5_systemd.settings.ipv6 import Ipv6
from solo5_systemd.settings.model import Join, NetworkSettings

NIC = NicRequest(
    nic=DeviceName("service"),
    network=NetworkName("back"),
    ipv4=IPv4Address("10.77.0.5"),
    mac=MacAddress("02:00:00:00:00:09"),
)
NO_JOIN = [False, 0, "", False]
NO_IPV6 = ["", "", False, False, False]
UNUSED = NetworkOverview(
    name=NetworkName("back"), bridge="solo5-back", mtu=1500, masquerade=True, up=False, leases=0, free=0
)


def test_what_crosses_the_bus_comes_out_the_same() -> None:
    (lease,) = RESERVATION.leases
    assert Lease.from_wire(lease.to_wire()) == lease
    unleased = replace(lease, ipv4=None, gateway4=None)
    assert unleased.to_wire()[4:6] == ("", "")
    assert Lease.from_wire(unleased.to_wire()) == unleased
    assert [PortRequest.from_wire(port.to_wire()) for port in RESERVATION.ports] == list(RESERVATION.ports)
    for nic in (NIC, NicRequest(nic=DeviceName("service"))):
        assert NicRequest.from_wire(nic.to_wire()) == nic
    pool = IPv4Address("192.168.1.200"), IPv4Address("192.168.1.230")
    pool6 = IPv6Address("fd00:1::2"), IPv6Address("fd00:1::9")
    joined = replace(UNUSED, join=Join(vlan=20, pool=pool, ipv6=True, pool6=pool6))
    six = replace(NETWORK, ipv6=IPv6Network("fd00:1::/64"), gateway6=IPv6Address("fd00:1::1"), nat66=True)
    six = replace(six, ra=True)
    for overview in (NETWORK, UNUSED, joined, replace(joined, join=Join()), six, replace(NETWORK, namespace="/run/a")):
        assert NetworkOverview.from_wire(overview.to_wire()) == overview


@pytest.mark.parametrize("text", ["", "02:00", "01:00:5e:00:00:01", "00:00:00:00:00:00", "02-00-00-00-00-01"])
def test_a_mac_that_no_guest_can_have(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="MAC address"):
        mac_address(text)


@pytest.mark.parametrize(
    ("wire", "words"),
    [
        (("ser-vice", "", 80, 80, "tcp"), "device name"),
        (("service", "localhost", 80, 80, "tcp"), "address 'localhost' is not an IPv4 address"),
        (("service", "", 0, 80, "tcp"), "port 0 does not exist"),
        (("service", "", 80, 65536, "tcp"), "port 65536 does not exist"),
        (("service", "", 80, 80, "sctp"), "protocol 'sctp' cannot be published"),
    ],
)
def test_a_port_that_cannot_be_published(wire: tuple[str, str, int, int, str], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        PortRequest.from_wire(wire)


def test_a_range_that_is_none() -> None:
    with pytest.raises(InvalidRequestError, match="range '10.0.0.0/77' of network default"):
        NetworkOverview.from_wire(
            (
                "default",
                "b",
                "10.0.0.0/77",
                "",
                1500,
                True,
                True,
                0,
                0,
                False,
                [],
                False,
                [],
                False,
                16,
                False,
                False,
                [],
                [],
                NO_JOIN,
                ["", "", [], [], []],
                [[], [], [], []],
                NO_IPV6,
                "",
            )
        )


def test_a_prefix_that_is_none() -> None:
    wire = (*NETWORK.to_wire()[:-2], ["fd00::1/64", "", False, False, False], "")
    with pytest.raises(InvalidRequestError, match="prefix 'fd00::1/64' of network default is not an IPv6 network"):
        NetworkOverview.from_wire(wire)


def test_an_overview_of_a_network_with_ipv6_has_its_prefix() -> None:
    ipv6 = Ipv6(prefix=IPv6Network("fd00:1::/64"), nat66=True)
    configured = NetworkSettings(name=NetworkName("six"), bridge="solo5-six", ipv6=ipv6)
    overview = NetworkOverview.of(configured)
    assert (overview.ipv6, overview.gateway6, overview.nat66) == (ipv6.prefix, None, True)


def test_dropped_packets_are_counted_per_network() -> None:
    front, back = IPv4Address("10.77.0.2"), IPv4Address("10.78.0.2")
    dropped = Dropped(refused={front: 3, back: 4}, fragments={back: 5})
    assert dropped.within([IPv4Network("10.77.0.0/24")]) == Dropped(refused={front: 3})
    assert dropped.within([None]) == Dropped()
    assert dropped.within([IPv4Network("10.78.0.0/24")]) == replace(dropped, refused={back: 4})


def test_overview_has_the_fields_of_a_network_in_use_and_its_counts() -> None:
    used = network()
    overview = NetworkOverview.of(used, up=True, leases=2, free=3)
    assert (overview.name, overview.bridge, overview.ipv4) == (used.name, used.bridge, used.ipv4)
    assert (overview.gateway4, overview.mtu, overview.policy) == (used.gateway4, used.mtu, used.policy)
    assert (overview.up, overview.leases, overview.free, overview.dropped) == (True, 2, 3, Dropped())


def test_a_reservation_serves_its_request_and_one_for_what_it_has() -> None:
    asked = NicRequest(nic=LEASE.nic, network=LEASE.network)
    port = PortRequest(nic=LEASE.nic, host_port=80, port=80, protocol=Protocol.TCP)
    record = LeaseRecord(
        reservation=Reservation(task=TaskName("web"), leases=(LEASE,), ports=(port,)),
        nics=(asked,), state=LeaseState.ATTACHED, expires=0,
    )  # fmt: skip
    by_value = replace(asked, ipv4=LEASE.address, mac=LEASE.mac, ipv6=LEASE.address6)
    assert record.serves([asked], [port])
    assert record.serves([by_value], [port])
    assert replace(record, nics=(by_value,)).serves([asked], [port])
    assert not record.serves([replace(asked, ipv4=IPv4Address("192.0.2.9"))], [port])
    assert not record.serves([replace(asked, network=NetworkName("other"))], [port])
    assert not record.serves([asked], [])
    assert not record.serves([], [port])
    assert not record.serves([asked, replace(asked, nic=DeviceName("second"))], [port])
