"""Allocations: lookups by value, add, remove."""

from dataclasses import replace
from ipaddress import IPv4Interface

from tests.support.fakes.tasks import LEASE, PORTS

from solo5_systemd.names import DeviceName, NetworkName, TaskName
from solo5_systemd.network.allocations import Allocations
from solo5_systemd.network.model import MacAddress, Protocol, Reservation

A = Reservation(task=TaskName("a"), leases=(LEASE,), ports=PORTS)
OTHER = replace(
    LEASE,
    nic=DeviceName("admin"),
    network=NetworkName("backend"),
    tap="s5-other",
    ipv4=IPv4Interface("10.90.0.2/24"),
    mac=MacAddress("02:00:5e:10:00:02"),
)
B = Reservation(task=TaskName("b"), leases=(OTHER,), ports=(replace(PORTS[0], host_ip=LEASE.gateway4),))


def content(allocations: Allocations) -> tuple[object, ...]:
    ports = [
        dict(allocations.published(protocol, port)) for protocol, port in ((Protocol.TCP, 8080), (Protocol.UDP, 53))
    ]
    return dict(allocations.addresses), dict(allocations.macs), dict(allocations.taps), +allocations._leases, ports


def test_added_values_are_found() -> None:
    allocations = Allocations([A, B])
    assert allocations.addresses == {LEASE.ipv4.ip: "a", OTHER.ipv4.ip: "b"}
    assert allocations.macs == {LEASE.mac: "a", OTHER.mac: "b"}
    assert allocations.taps == {LEASE.tap: "a", OTHER.tap: "b"}
    assert (allocations.leases[NetworkName("default")], allocations.leases[NetworkName("backend")]) == (1, 1)
    assert dict(allocations.published(Protocol.TCP, 8080)) == {PORTS[0]: "a", B.ports[0]: "b"}
    assert dict(allocations.published(Protocol.UDP, 8080)) == {}


def test_removing_a_reservation_leaves_the_others() -> None:
    allocations = Allocations([B])
    allocations.add(A)
    allocations.remove(A)
    assert content(allocations) == content(Allocations([B]))
    allocations.remove(B)
    assert content(allocations) == content(Allocations())


def test_a_value_of_two_tasks_stays_the_later_ones() -> None:
    allocations = Allocations([A, replace(A, task=TaskName("later"))])
    allocations.remove(A)
    assert (set(allocations.addresses.values()), allocations.leases[NetworkName("default")]) == ({"later"}, 1)
