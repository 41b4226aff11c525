"""The values of networks as records, in files and on the bus: whole, of another version, damaged."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address, IPv6Interface, IPv6Network
from typing import Any

import pytest
from tests.fast.network.conftest import network as network_of
from tests.fast.network.test_nft_rules import RESERVATION, with_limits
from tests.support.fakes.tasks import LEASE
from tests.support.fakes.tasks import NETWORK as OVERVIEW

from solo5_systemd.base.decode import Fields
from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import DeviceName, NetworkName, TaskName
from solo5_systemd.dbus.messages import Message, decode, encode, from_wire, to_wire
from solo5_systemd.network.model import (
    GuestNames,
    LeaseRecord,
    LeaseState,
    Limits,
    MacAddress,
    NicRequest,
    PortRequest,
    Protocol,
    Request,
    Reservation,
    mac_address,
)
from solo5_systemd.network.overview import NetworkOverview
from solo5_systemd.settings.addresses import address_range
from solo5_systemd.settings.egress import egress
from solo5_systemd.settings.network_policy import CLOSED, Join, NetworkPolicy
from solo5_systemd.settings.rate import Rate
from solo5_systemd.settings.records import document, record
from solo5_systemd.settings.resolver import resolver

NIC = NicRequest(
    nic=DeviceName("service"),
    network=NetworkName("back"),
    ipv4=IPv4Address("10.77.0.5"),
    mac=MacAddress("02:00:00:00:00:09"),
)
(OWN,) = RESERVATION.leases
SIX: dict[str, Any] = {"ipv6": IPv6Network("fd00:1::/64"), "gateway6": IPv6Address("fd00:1::1"), "nat66": True}
POOLED = Join(
    vlan=20, pool=address_range("192.168.1.200-192.168.1.230"), ipv6=True, pool6=address_range("fd00:1::2-fd00:1::9")
)
UNUSED = NetworkOverview(name=NetworkName("back"), bridge="solo5-back", mtu=1500, up=False, leases=0)
POLICY = NetworkPolicy(
    routed=True, reach=(NetworkName("back"),), isolated=True, host=("53/udp",), metadata=True,
    connections=77, fragments=True,
)  # fmt: skip
NETWORK = replace(network_of("10.77.0.0/24"), mtu=1400, masquerade=False, policy=POLICY)
RECORD = LeaseRecord(reservation=RESERVATION, state=LeaseState.ATTACHED, expires=77)
LIMITS = Limits(egress=egress(["192.0.2.7", "[2001:db8::1]:7/udp"]), rate=Rate(sent=5000))
SENT = [
    OWN,
    replace(OWN, ipv4=None, gateway4=None),
    replace(OWN, ipv6=IPv6Interface("fd00:1::7/64"), gateway6=IPv6Address("fd00:1::1")),
    Request(nics=(NIC, NicRequest(nic=DeviceName("b"))), ports=RESERVATION.ports, namespace="/run/a"),
    NicRequest(nic=DeviceName("b"), limits=Limits(egress=())),
    *(OVERVIEW, UNUSED, replace(OVERVIEW, **SIX, ra=True), replace(OVERVIEW, namespace="/run/a")),
    *(replace(UNUSED, join=Join()), replace(UNUSED, join=POOLED, resolver=resolver(["9.9.9.9"], ["example.org"]))),
    *(NETWORK, replace(NETWORK, shared=True), replace(NETWORK, **SIX, ra=True, resolver=resolver(["fd00::53"], []))),
    replace(NETWORK, bridge="br0", ipv4=None, gateway4=None, join=POOLED),
    *(RECORD, replace(RECORD, namespace="/run/netns/group"), replace(RECORD, moves=7, lender="old")),
    replace(RECORD, names=GuestNames(resolver=resolver(["9.9.9.9"], ["lan"]), hostname="web.example.org")),
    replace(RECORD, reservation=with_limits(RESERVATION, LIMITS)),
    replace(
        RECORD, reservation=replace(RESERVATION, idle_s=60, idle_stops=True), state=LeaseState.WAITING, asleep=10**15
    ),
]  # fmt: skip


LATER = {"later": "x", "count": 1, "list": ["x"], "table": {"a": 1}, "tables": [{"a": "b"}], "flag": True}


def of_later(value: Any) -> Any:
    """Return a document with further keys in each of its records."""
    if isinstance(value, dict):
        return {key: each if key == "rules" else of_later(each) for key, each in value.items()} | LATER  # names rules
    return [*map(of_later, value)] if isinstance(value, list) else value


def crossed(sent: Any, written: Callable[[Any], Any] = lambda sent: sent) -> object:
    """Return a record as the other side of the bus reads it."""
    message = Message(path="/", interface="a.b", member="C", signature="a{sv}", serial=1)
    message.body = [to_wire("a{sv}", written(document(sent)))]
    (body,) = decode(encode(message)).body
    return record(type(sent), Fields(from_wire(body)))


def read(kind: Any, written: Any) -> object:
    """Return a record as it is read of its file."""
    return record(kind, Fields(json.loads(json.dumps(written))))


@pytest.mark.parametrize("sent", SENT, ids=lambda sent: type(sent).__name__)
def test_what_is_sent_or_written_is_read_also_with_keys_of_a_later_version(sent: Any) -> None:
    """Of a later solo5-networkd by an earlier plugin; the next test is the other order. Both are of values alone."""
    assert crossed(sent) == crossed(sent, of_later) == sent
    assert read(type(sent), document(sent)) == read(type(sent), of_later(document(sent))) == sent


def test_a_key_that_an_earlier_version_lacks_has_its_default() -> None:
    assert "policy" not in document(UNUSED)
    assert crossed(UNUSED) == replace(UNUSED, policy=CLOSED)
    earlier = {"name": "back", "bridge": "b", "mtu": 1500, "up": False, "leases": 0}
    assert record(NetworkOverview, Fields(earlier)) == replace(UNUSED, bridge="b")
    assert record(Request, Fields({"nics": [{"nic": "service"}]})) == Request(
        nics=(NicRequest(nic=DeviceName("service")),)
    )
    assert not {"namespace", "moves", "asleep", "names"} & document(RECORD).keys()
    assert not {"shared", "join"} & document(NETWORK).keys()


@pytest.mark.parametrize("text", ["", "02:00", "01:00:5e:00:00:01", "00:00:00:00:00:00", "02-00-00-00-00-01"])
def test_a_mac_that_no_guest_can_have(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="MAC address"):
        mac_address(text)


HELD, PORT = document(OWN), document(PortRequest(nic=OWN.nic, host_port=80, port=80, protocol=Protocol.TCP))


def leased(**change: object) -> dict[str, object]:
    return {"reservation": {"task": "a", "leases": [{**HELD, **change}]}}


def published(**change: object) -> dict[str, object]:
    return {"reservation": {"task": "a", "ports": [{**PORT, **change}]}}


@pytest.mark.parametrize(
    ("whole", "change", "words"),
    [
        *((RECORD, change, words) for change, words in (
            ({"state": "lost"}, "state"),
            ({"reservation": {"task": "../x"}}, "reservation.task: task name"),
            ({"reservation": {"task": "a", "leases": [{}]}}, "leases.0..nic is missing"),
            (leased(nic="a/b"), "leases.0..nic: device name"),
            (leased(ipv4="10.0.0.1/99"), "leases.0..ipv4: "),
            (leased(limits={"egress": ["example.org"]}), "is not a destination"),
            (leased(limits={"rate": ["sent=1"]}), "out of range"),
            (published(host_ip="localhost"), "address 'localhost' is not an IPv4 address"),
            (published(host_port=0), "host_port is 0: expected a whole number from 1 to 65535"),
            (published(protocol="sctp"), 'protocol is .sctp.: expected one of "tcp", "udp"'),
            ({"names": {"hostname": "a\nb"}}, "host name"),
            ({"names": {"resolver": {"servers": ["::1"]}}}, "name server"),
        )),
        *((NETWORK, change, words) for change, words in (
            ({"ipv4": "10.0.0.0/77"}, "ipv4: '"),
            ({"ipv6": "fd00::1/64"}, "ipv6: fd00::1/64 has host bits set"),
            ({"policy": {"host": ["x"]}}, "policy.host"),
            ({"policy": {"connections": 1}}, "policy.connections is 1: expected a whole number from 16"),
        )),
    ],
)  # fmt: skip
def test_a_damaged_record_is_refused(whole: Any, change: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        read(type(whole), document(whole) | change)


def test_a_reservation_serves_its_request_and_one_for_what_it_has() -> None:
    asked = NicRequest(nic=LEASE.nic, network=LEASE.network)
    port = PortRequest(nic=LEASE.nic, host_port=80, port=80, protocol=Protocol.TCP)
    held = replace(RECORD, reservation=Reservation(task=TaskName("web"), leases=(LEASE,), ports=(port,)))

    def asking(nics: Sequence[NicRequest], ports: Sequence[PortRequest]) -> Request:
        return Request(nics=tuple(nics), ports=tuple(ports))

    by_value = replace(asked, ipv4=LEASE.address, mac=LEASE.mac, ipv6=LEASE.address6)
    assert held.serves(asking([asked], [port]))
    assert held.serves(asking([by_value], [port]))
    assert not held.serves(asking([replace(asked, ipv4=IPv4Address("192.0.2.9"))], [port]))
    assert not held.serves(asking([replace(asked, network=NetworkName("other"))], [port]))
    assert not held.serves(asking([asked], []))
    assert not held.serves(asking([], [port]))
    assert not held.serves(replace(asking([asked], [port]), idle_s=60))
    assert not held.serves(asking([asked, replace(asked, nic=DeviceName("second"))], [port]))
