"""Lease records and network files as JSON documents."""

import json
from dataclasses import replace
from ipaddress import IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from typing import Any

import pytest
from tests.fast.network.conftest import network as network_of
from tests.fast.network.test_nft_rules import RESERVATION, with_limits

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import NetworkName
from solo5_systemd.network.lease_files import of_document, to_document
from solo5_systemd.network.model import LeaseRecord, LeaseState, Limits, Network
from solo5_systemd.settings.addresses import AddressRange
from solo5_systemd.settings.network import Join
from solo5_systemd.settings.network_keys import CLOSED, HostPort, NetworkPolicy
from solo5_systemd.settings.rate import Rate
from solo5_systemd.settings.records import document

RECORD = LeaseRecord(reservation=RESERVATION, state=LeaseState.ATTACHED, expires=77)
POLICY = NetworkPolicy(
    routed=True, reach=(NetworkName("back"),), isolated=True, host=(HostPort(port=53, protocol="udp"),), metadata=True,
    connections=77, fragments=True,
)  # fmt: skip
NETWORK = replace(network_of("10.77.0.0/24"), mtu=1400, masquerade=False, policy=POLICY)
JOINED = replace(NETWORK, bridge="br0", ipv4=None, gateway4=None, join=Join(vlan=20, pool=None, ipv6=True))
RANGE = IPv4Network("10.77.0.0/24")
POOLED = replace(NETWORK, gateway4=None, join=Join(pool=AddressRange(RANGE[2], RANGE[9])))
OF_LAN = IPv6Network("2001:db8:1::/64")
JOINED6 = replace(JOINED, ipv6=OF_LAN, join=Join(ipv6=True, pool6=AddressRange(OF_LAN[2], OF_LAN[9])))


def written(document: object) -> Any:
    return json.loads(json.dumps(document))


SIX = replace(NETWORK, ipv6=IPv6Network("fd00:1::/64"), gateway6=IPv6Address("fd00:1::1"), nat66=True)
ADVERTISED = replace(SIX, ra=True, dns6=(IPv6Address("fd00::53"),))


(OF_TASK,) = RESERVATION.leases
LEASES = (
    replace(OF_TASK, ipv6=IPv6Interface("fd00:1::7/64"), gateway6=IPv6Address("fd00:1::1")),
    replace(OF_TASK, ipv4=None, gateway4=None),
)
RECORDS = (
    RECORD,
    *(replace(RECORD, reservation=replace(RESERVATION, leases=(each,), ports=())) for each in LEASES),
    replace(RECORD, namespace="/run/netns/group"),
    replace(RECORD, moves=7, lender="old"),
)
NETWORKS = (
    *(NETWORK, JOINED, POOLED, JOINED6, SIX, ADVERTISED),
    replace(NETWORK, shared=True),
    replace(SIX, ipv4=None, gateway4=None, nat66=False),
)


def test_what_is_written_is_read() -> None:
    for record in RECORDS:
        assert of_document(LeaseRecord, written(to_document(record))) == record
    for network in NETWORKS:
        assert of_document(Network, written(to_document(network))) == network
    assert not {"namespace", "moves"} & to_document(RECORD).keys()
    assert not {"shared", "join"} & to_document(NETWORK).keys()


HELD = {**document(RESERVATION.leases[0])}
PORT = {"nic": "service", "host_port": 80, "port": 80, "protocol": "tcp"}


def reserved(**change: object) -> dict[str, object]:
    return {"reservation": document(RESERVATION) | change}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 2}, "version is 2"),
        (reserved(task="../x"), "reservation.task: task name"),
        ({"state": "lost"}, "state"),
        ({"expires": -1}, "expires is -1"),
        ({"asleep": -1}, "asleep is -1"),
        (reserved(leases=None), "leases is None: expected a list"),
        (reserved(leases=[{**HELD, "nic": "a/b"}]), "leases.0..nic: device name"),
        ({"reservation": {}}, "reservation.task is missing"),
        (reserved(leases=[{}]), "leases.0..nic is missing"),
        (reserved(leases=["service"]), "expected a table"),
        (reserved(leases=[{**HELD, "ipv4": "10.0.0.1/99"}]), "leases.0..ipv4: "),
        (reserved(leases=[{**HELD, "ipv6": "fd00::1/129"}]), "leases.0..ipv6: "),
        (reserved(leases=[{**HELD, "mtu": "1500"}]), "mtu is '1500'"),
        (reserved(ports=[{**PORT, "host_port": "80"}]), "host_port is '80'"),
    ],
)
def test_a_damaged_lease_file(change: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        of_document(LeaseRecord, written(to_document(RECORD)) | change)


@pytest.mark.parametrize("document", [None, [], "x", 7, {}])
def test_something_else_altogether(document: object) -> None:
    for kind in (LeaseRecord, Network):
        with pytest.raises(InvalidRequestError):
            of_document(kind, document)


def test_limits_are_in_a_record_with_their_leases() -> None:
    limits = Limits(egress=(), rate=Rate(sent=5000))
    record = replace(RECORD, reservation=with_limits(RECORD.reservation, limits))
    written_one = written(to_document(record))
    assert written_one["reservation"]["leases"][0]["limits"] == {"egress": [], "rate": ["sent=5K"]}
    assert of_document(LeaseRecord, written_one) == record
    wrong: object
    for wrong in ([], {"egress": "none"}, {"egress": ["example.org"]}, {"rate": ["sent=1"]}):
        with pytest.raises(InvalidRequestError):
            of_document(LeaseRecord, written(to_document(RECORD)) | reserved(leases=[{**HELD, "limits": wrong}]))


def test_a_record_has_since_when_its_task_sleeps_and_after_which_time_it_does() -> None:
    record = replace(RECORD, reservation=replace(RESERVATION, idle_s=60), asleep=1_700_000_000)
    assert "asleep" not in written(to_document(RECORD))
    assert written(to_document(record))["reservation"]["idle_s"] == 60
    assert of_document(LeaseRecord, written(to_document(record))) == record
    assert (record.reservation.idle_s, RECORD.reservation.idle_s) == (60, 0)
    assert not record.reservation.idle_stops
    held = replace(RESERVATION, idle_s=60, idle_stops=True)
    waits = replace(record, reservation=held, state=LeaseState.WAITING)
    content = written(to_document(waits))
    assert (content["state"], content["reservation"]["idle_stops"]) == ("waiting", True)
    assert of_document(LeaseRecord, content) == waits
    assert waits.reservation.idle_stops


def test_a_damaged_network_file() -> None:
    for change in (
        {"ipv4": "10.0.0.0/77"},
        {"gateway4": "x"},
        {"mtu": 0},
        {"masquerade": "yes"},
        {"policy": {"host": ["x"]}},
    ):
        with pytest.raises(InvalidRequestError):
            of_document(Network, written(to_document(NETWORK)) | change)


def test_a_network_file_without_a_policy_is_closed() -> None:
    content = written(to_document(NETWORK))
    del content["policy"]
    assert of_document(Network, content).policy == CLOSED
