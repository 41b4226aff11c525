"""Who holds what, by value."""

from dataclasses import replace
from ipaddress import IPv4Interface

from tests.fakes.tasks import LEASE, PORTS

from solo5_systemd.names import DeviceName, NetworkName, TaskName
from solo5_systemd.network.allocations import Book
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


def content(book: Book) -> tuple[object, ...]:
    ports = [dict(book.published(protocol, port)) for protocol, port in ((Protocol.TCP, 8080), (Protocol.UDP, 53))]
    return dict(book.addresses), dict(book.macs), dict(book.taps), +book._leases, ports


def test_what_is_entered_is_found_by_its_value() -> None:
    book = Book([A, B])
    assert book.addresses == {LEASE.ipv4.ip: "a", OTHER.ipv4.ip: "b"}
    assert book.macs == {LEASE.mac: "a", OTHER.mac: "b"}
    assert book.taps == {LEASE.tap: "a", OTHER.tap: "b"}
    assert (book.leases[NetworkName("default")], book.leases[NetworkName("backend")]) == (1, 1)
    assert dict(book.published(Protocol.TCP, 8080)) == {PORTS[0]: "a", B.ports[0]: "b"}
    assert dict(book.published(Protocol.UDP, 8080)) == {}


def test_what_is_struck_leaves_the_rest_as_it_was() -> None:
    book = Book([B])
    book.enter(A)
    book.strike(A)
    assert content(book) == content(Book([B]))
    book.strike(B)
    assert content(book) == content(Book())


def test_what_two_claim_is_left_to_the_last_when_the_first_goes() -> None:
    book = Book([A, replace(A, task=TaskName("later"))])
    book.strike(A)
    assert (set(book.addresses.values()), book.leases[NetworkName("default")]) == ({"later"}, 1)
