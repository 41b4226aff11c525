"""Conversion of the network's values to and from D-Bus."""

from collections.abc import Sequence
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from typing import Any, TypeVar

import pytest
from tests.fast.network.test_nft_rules import RESERVATION
from tests.support.fakes.tasks import LEASE, NETWORK

from solo5_systemd.base.decode import Fields
from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import DeviceName, NetworkName, TaskName
from solo5_systemd.dbus.messages import Message, decode, encode, from_wire, to_wire
from solo5_systemd.network.model import (
    Lease,
    LeaseRecord,
    LeaseState,
    MacAddress,
    NetworkOverview,
    NicRequest,
    PortRequest,
    Protocol,
    Request,
    Reservation,
    mac_address,
)
from solo5_systemd.networkd.namespaces import configured
from solo5_systemd.settings.addresses import address_range
from solo5_systemd.settings.network import Ipv6, Join, NetworkSettings
from solo5_systemd.settings.network_keys import CLOSED
from solo5_systemd.settings.records import document, record
from solo5_systemd.settings.resolver import resolver

T = TypeVar("T")

NIC = NicRequest(
    nic=DeviceName("service"),
    network=NetworkName("back"),
    ipv4=IPv4Address("10.77.0.5"),
    mac=MacAddress("02:00:00:00:00:09"),
)
UNUSED = NetworkOverview(
    name=NetworkName("back"), bridge="solo5-back", mtu=1500, masquerade=True, up=False, leases=0, free=0
)


def crossed(kind: type[T], sent: T, **extra: object) -> T:
    """Return a record as the other side of the bus reads it."""
    message = Message(path="/", interface="a.b", member="C", signature="a{sv}", serial=1)
    message.body = [to_wire("a{sv}", {**document(sent), **extra})]
    (body,) = decode(encode(message)).body
    return record(kind, Fields(from_wire(body)))


POOLED = Join(
    vlan=20, pool=address_range("192.168.1.200-192.168.1.230"), ipv6=True, pool6=address_range("fd00:1::2-fd00:1::9")
)
SIX = replace(NETWORK, ipv6=IPv6Network("fd00:1::/64"), gateway6=IPv6Address("fd00:1::1"), nat66=True, ra=True)
NETWORKS = (
    *(NETWORK, UNUSED, SIX, replace(NETWORK, namespace="/run/a"), replace(UNUSED, join=Join())),
    replace(UNUSED, join=POOLED, resolver=resolver(["9.9.9.9"], ["example.org"])),
)
RECORDS: list[tuple[type[Any], Any]] = [
    (Lease, RESERVATION.leases[0]),
    (Lease, replace(RESERVATION.leases[0], ipv4=None, gateway4=None)),
    (Request, Request(nics=(NIC, NicRequest(nic=DeviceName("b"))), ports=RESERVATION.ports, namespace="/run/a")),
    *((NetworkOverview, each) for each in NETWORKS),
]


@pytest.mark.parametrize(("kind", "sent"), RECORDS)
def test_what_crosses_the_bus_comes_out_the_same_also_with_keys_of_a_later_version(
    kind: type[Any], sent: object
) -> None:
    assert crossed(kind, sent) == sent
    later = {"later": "x", "count": 1, "list": ["x"], "table": {"a": 1}, "tables": [{"a": "b"}], "flag": True}
    assert crossed(kind, sent, **later) == sent


def test_a_key_that_an_earlier_version_lacks_has_its_default() -> None:
    assert "policy" not in document(UNUSED)
    assert crossed(NetworkOverview, UNUSED).policy == CLOSED
    earlier = {"name": "back", "bridge": "b", "mtu": 1500, "masquerade": True, "up": False, "leases": 0, "free": 0}
    assert record(NetworkOverview, Fields(earlier)) == replace(UNUSED, bridge="b")
    assert record(Request, Fields({"nics": [{"nic": "service"}]})) == Request(
        nics=(NicRequest(nic=DeviceName("service")),)
    )
    with pytest.raises(InvalidRequestError, match="lease.nic is missing"):
        record(Lease, Fields({}, "lease"))


@pytest.mark.parametrize("text", ["", "02:00", "01:00:5e:00:00:01", "00:00:00:00:00:00", "02-00-00-00-00-01"])
def test_a_mac_that_no_guest_can_have(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="MAC address"):
        mac_address(text)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nic": "ser-vice"}, "nic: device name"),
        ({"host_ip": "localhost"}, "address 'localhost' is not an IPv4 address"),
        ({"host_port": 0}, "host_port is 0: expected a whole number from 1 to 65535"),
        ({"port": 65536}, "port is 65536"),
        ({"protocol": "sctp"}, 'protocol is .sctp.: expected one of "tcp", "udp"'),
    ],
)
def test_a_port_that_cannot_be_published(change: dict[str, object], words: str) -> None:
    port = {"nic": "service", "host_port": 80, "port": 80, "protocol": "tcp"}
    with pytest.raises(InvalidRequestError, match=words):
        record(PortRequest, Fields(port | change))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ipv4": "10.0.0.0/77"}, "network.ipv4: '"),
        ({"ipv6": "fd00::1/64"}, "network.ipv6: fd00::1/64 has host bits set"),
        ({"policy": {"connections": 1}}, "network.policy.connections is 1: expected a whole number from 16"),
    ],
)
def test_a_range_that_is_none(change: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        record(NetworkOverview, Fields(document(NETWORK) | change, "network"))


def test_an_overview_of_a_network_with_ipv6_has_its_prefix() -> None:
    ipv6 = Ipv6(prefix=IPv6Network("fd00:1::/64"), nat66=True)
    overview = configured(NetworkSettings(name=NetworkName("six"), bridge="solo5-six", ipv6=ipv6), 1400)
    assert overview.mtu == 1400
    assert (overview.ipv6, overview.gateway6, overview.nat66) == (ipv6.prefix, None, True)


def test_a_reservation_serves_its_request_and_one_for_what_it_has() -> None:
    asked = NicRequest(nic=LEASE.nic, network=LEASE.network)
    port = PortRequest(nic=LEASE.nic, host_port=80, port=80, protocol=Protocol.TCP)
    record = LeaseRecord(
        reservation=Reservation(task=TaskName("web"), leases=(LEASE,), ports=(port,)),
        state=LeaseState.ATTACHED, expires=0,
    )  # fmt: skip

    def asking(nics: Sequence[NicRequest], ports: Sequence[PortRequest]) -> Request:
        return Request(nics=tuple(nics), ports=tuple(ports))

    by_value = replace(asked, ipv4=LEASE.address, mac=LEASE.mac, ipv6=LEASE.address6)
    assert record.serves(asking([asked], [port]))
    assert record.serves(asking([by_value], [port]))
    assert not record.serves(asking([replace(asked, ipv4=IPv4Address("192.0.2.9"))], [port]))
    assert not record.serves(asking([replace(asked, network=NetworkName("other"))], [port]))
    assert not record.serves(asking([asked], []))
    assert not record.serves(asking([], [port]))
    assert not record.serves(replace(asking([asked], [port]), idle_s=60))
    assert not record.serves(asking([asked, replace(asked, nic=DeviceName("second"))], [port]))
