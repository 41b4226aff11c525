"""Ranges, addresses, MACs and tap names."""

from collections.abc import Sequence
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface, IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fast.network.conftest import network
from tests.support.fakes.tasks import LEASE, PORTS

from solo5_systemd.base.errors import HostError, InvalidRequestError, TakenError
from solo5_systemd.base.names import DeviceName, NetworkName, TaskName
from solo5_systemd.network import ipam
from solo5_systemd.network.derived_addresses import ASKER, bridge_mac
from solo5_systemd.network.ipam import (
    SEGMENTS,
    TAP_PREFIX,
    TAPS_PER_BRIDGE,
    Allocations,
    Remembered,
    addresses_of,
    assign_leases,
    free_addresses,
    segment_link,
    segments,
    tap_name,
)
from solo5_systemd.network.model import Lease, MacAddress, Network, NicRequest, Protocol, Reservation, mac_address
from solo5_systemd.network.network_ranges import CANDIDATES, choose_network
from solo5_systemd.settings.addresses import address_range
from solo5_systemd.settings.network import NO_NETWORK, NetworkSettings
from solo5_systemd.settings.network_keys import NetworkPolicy
from solo5_systemd.settings.solo5_toml import parse_settings

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
    return dict(allocations.addresses), dict(allocations.macs), dict(allocations.taps), +allocations.leases, ports


def test_added_values_are_found() -> None:
    allocations = Allocations([A, B])
    assert allocations.guests == sum(allocations.leases.values())
    assert allocations.addresses == {LEASE.address: "a", OTHER.address: "b"}
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


DEFAULT = NetworkName("default")


def nic(name: str = "service", *, ip: str | None = None, mac: str | None = None, of: str = "default") -> NicRequest:
    return NicRequest(
        nic=DeviceName(name),
        network=NetworkName(of),
        ipv4=IPv4Address(ip) if ip else None,
        mac=MacAddress(mac) if mac else None,
    )


def leases(
    task: str,
    *nics: NicRequest,
    networks: Sequence[Network] = (network(),),
    held: Sequence[Reservation] = (),
    links: Sequence[str] = (),
    remembered: Remembered | None = None,
) -> tuple[Lease, ...]:
    return assign_leases(
        TaskName(task), nics or (nic(),), networks, Allocations(held), lambda link: link in links, remembered=remembered
    )


def fill(count: int, on: Network) -> list[Reservation]:
    held: list[Reservation] = []
    for number in range(count):
        task = f"t{number}"
        held.append(Reservation(task=TaskName(task), leases=leases(task, networks=(on,), held=held)))
    return held


def settings(name: str = "default", ipv4: str | None = None, gateway4: str | None = None) -> NetworkSettings:
    return NetworkSettings(
        name=NetworkName(name),
        bridge=f"solo5-{name}",
        ipv4=IPv4Network(ipv4) if ipv4 else None,
        gateway4=IPv4Address(gateway4) if gateway4 else None,
    )


def test_a_lease_has_all_that_a_guest_needs() -> None:
    (lease,) = leases("a")
    assert (lease.nic, lease.network, lease.bridge, lease.mtu) == ("service", "default", "solo5-default", 1500)
    assert str(lease.gateway4) == "10.77.0.1"
    assert lease.ipv4 is not None
    assert lease.ipv4.network == IPv4Network("10.77.0.0/29")
    assert mac_address(lease.mac) == lease.mac
    assert lease.tap == tap_name(TaskName("a"), DeviceName("service"))


def test_what_is_derived_comes_again() -> None:
    assert leases("a") == leases("a")
    assert leases("a")[0].mac != leases("b")[0].mac
    assert tap_name(TaskName("a"), DeviceName("bc")) != tap_name(TaskName("ab"), DeviceName("c"))


@given(st.text("abc.-_9", min_size=1, max_size=128), st.text("abc9", min_size=1, max_size=67))
def test_a_tap_name_is_a_link_name(task: str, device: str) -> None:
    name = tap_name(TaskName(task), DeviceName(device))
    assert len(name) == 15
    assert name.isascii()
    assert name.startswith("s5-")
    assert name[3:].isalnum()
    assert name == name.lower()


def test_a_full_range_is_all_used_and_nothing_twice() -> None:
    on = network()
    held = fill(5, on)
    addresses = {lease.address for reservation in held for lease in reservation.leases}
    assert addresses == {IPv4Address(f"10.77.0.{n}") for n in range(2, 7)}
    assert free_addresses(on, len(held)) == 0
    with pytest.raises(TakenError, match=r"no free address for NIC service: all of 10\.77\.0\.0/29 are taken"):
        leases("more", networks=(on,), held=held)


WEB = TaskName("web")


@given(st.sets(st.integers(2, 6)), st.integers(0, 2**16))
def test_an_address_that_a_declared_task_had_is_given_away_last(had: set[int], seed: int) -> None:
    remembered: Remembered = {IPv4Address(f"10.77.0.{number}"): WEB for number in had}
    held: list[Reservation] = []
    for number in range(5):
        task = TaskName(f"x{seed}-{number}")
        held.append(Reservation(task=task, leases=leases(task, held=held, remembered=remembered)))
    given_away = [reservation.leases[0].address in remembered for reservation in held]
    assert given_away == sorted(given_away), "none before the last other one"
    assert sum(given_away) == len(had)
    with pytest.raises(TakenError, match="all of"):
        leases("more", held=held, remembered=remembered)


def test_a_declared_task_has_the_addresses_that_are_remembered_of_it() -> None:
    (lease,) = leases("web")
    remembered: Remembered = {value: WEB for value in (lease.address, lease.mac) if value is not None}
    assert leases("web", remembered=remembered) == (lease,)
    assert leases("other", nic(ip=str(lease.address)), remembered=remembered)[0].address == lease.address, "by value"


def test_a_taken_mac_is_followed_by_the_next() -> None:
    def number(mac: MacAddress) -> int:
        return int(mac.replace(":", ""), 16)

    (lease,) = leases("other")
    (moved,) = leases("other", remembered={lease.mac: WEB})
    held = [Reservation(task=TaskName("b"), leases=leases("b", nic(mac=lease.mac)))]
    (beside,) = leases("other", held=held)
    assert number(moved.mac) == number(beside.mac) == number(lease.mac) + 1


def test_no_mac_is_derived_that_the_service_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ipam, "guest_macs", lambda *_: iter((ASKER, LEASE.mac)))
    assert leases("a")[0].mac == LEASE.mac


@given(st.text("abc9", min_size=1, max_size=67))
def test_a_mac_is_locally_administered_and_unicast(device: str) -> None:
    mac = leases("a", nic(device))[0].mac
    assert int(mac[:2], 16) & 0b11 == 0b10
    assert mac_address(mac) == mac


def test_a_link_name_in_use_is_not_taken() -> None:
    names = [tap_name(TaskName("a"), DeviceName("service"), number) for number in range(3)]
    assert leases("a", links=names[:1])[0].tap == names[1]
    held = [Reservation(task=TaskName("b"), leases=leases("a"))]
    assert leases("a", held=held, links=names[1:2])[0].tap == names[2]


def test_what_is_requested_is_given_before_anything_is_derived() -> None:
    wanted = str(leases("a")[0].address)
    first, second = leases("a", nic(), nic("management", ip=wanted))
    assert str(second.address) == wanted
    assert first.ipv4 != second.ipv4


def test_nics_of_two_networks() -> None:
    networks = (network(), network("10.78.0.0/24", "back"))
    one, two = leases("a", nic("one"), nic("two", of="back"), networks=networks)
    assert (one.bridge, two.bridge) == ("solo5-default", "solo5-back")
    assert two.address in IPv4Network("10.78.0.0/24")


@pytest.mark.parametrize(
    ("ip", "words"),
    [
        ("10.77.0.0", "the network's own"),
        ("10.77.0.7", "its broadcast address"),
        ("10.77.0.1", "its gateway's"),
        ("10.77.0.8", "outside network default: expected one in 10.77.0.0/29"),
    ],
)
def test_an_address_that_no_guest_can_have(ip: str, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        leases("a", nic(ip=ip))


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (nic(ip="10.77.0.5"), "address 10.77.0.5 for NIC service is taken by task b"),
        (nic(mac="02:00:00:00:00:09"), "MAC address 02:00:00:00:00:09 for NIC service is taken by task b"),
        (nic(mac=bridge_mac(DEFAULT)), "taken by network default, as its bridge's"),
        (nic(mac=ASKER), "taken by solo5-networkd"),
    ],
)
def test_a_value_in_use_is_taken(asked: NicRequest, words: str) -> None:
    held = Reservation(task=TaskName("b"), leases=leases("b", nic(ip="10.77.0.5", mac="02:00:00:00:00:09")))
    with pytest.raises(TakenError, match=words):
        leases("a", asked, held=[held])


def test_a_request_that_contradicts_itself() -> None:
    with pytest.raises(InvalidRequestError, match="NIC service is requested twice"):
        leases("a", nic(), nic())
    with pytest.raises(TakenError, match="taken by task a"):
        leases("a", nic("one", ip="10.77.0.5"), nic("two", ip="10.77.0.5"))


def test_a_full_bridge_is_extended_by_segments() -> None:
    wide = network("10.80.0.0/16")
    [one] = fill(1, wide)
    full = [replace(one, leases=one.leases * (TAPS_PER_BRIDGE - 1))]
    assert [lease.bridge for lease in leases("pair", nic("two"), nic("three"), networks=(wide,), held=full)] == [
        "solo5-default",
        "solo5-default.1",
    ]
    each = [replace(one.leases[0], bridge=bridge) for bridge in ("solo5-default", *segments("solo5-default"))]
    held = [replace(one, leases=tuple(each) * TAPS_PER_BRIDGE)]
    with pytest.raises(TakenError, match="has no free port: each of its 10 bridges has 1000 taps"):
        leases("a", networks=(wide,), held=held)
    assert free_addresses(wide, 9990) == 10


@pytest.mark.parametrize("bridge", ["br0", "solo5-default", "solo5-default1", "solo5-back6f1ab"])
def test_segments_have_names_of_links_of_their_own(bridge: str) -> None:
    names = segments(bridge)
    assert all(len(name) <= 15 for name in names)
    links = {link for name in names for link in segment_link(name)}
    assert len({*names, *links}) == 3 * SEGMENTS
    assert not any(link.startswith(TAP_PREFIX) for link in links), "frames from these need no check"
    assert not {*names} & {*segments("solo5-default2")}


def test_a_range_is_chosen_once_for_all() -> None:
    assert choose_network(settings(), (), ()).ipv4 == CANDIDATES[0]
    assert choose_network(settings("back"), (), ()) == choose_network(settings("back"), (), ())
    assert choose_network(settings("back"), (), ()).ipv4 != CANDIDATES[0]
    assert choose_network(settings(), (), ()).gateway4 == CANDIDATES[0][1]


def test_a_range_in_use_is_passed_over() -> None:
    default_route, vpn = IPv4Network("0.0.0.0/0"), IPv4Network("10.0.0.0/8")
    assert choose_network(settings(), (), (default_route,)).ipv4 == CANDIDATES[0]
    assert choose_network(settings(), (network(str(CANDIDATES[0]), "back"),), ()).ipv4 == CANDIDATES[1]
    assert choose_network(settings(), (), (vpn,)).ipv4 == IPv4Network("172.29.0.0/24")
    with pytest.raises(HostError, match="network default has no range"):
        choose_network(settings(), (), (IPv4Network("0.0.0.0/1"), IPv4Network("128.0.0.0/1")))


def test_a_configured_range_is_taken_as_it_is_or_refused() -> None:
    chosen = choose_network(settings(ipv4="10.9.0.0/24", gateway4="10.9.0.254"), (), ())
    assert (str(chosen.ipv4), str(chosen.gateway4)) == ("10.9.0.0/24", "10.9.0.254")
    with pytest.raises(HostError, match=r"cannot use 10\.9\.0\.0/24: it overlaps 10\.9\.0\.0/16 of the host's own"):
        choose_network(settings(ipv4="10.9.0.0/24"), (), (IPv4Network("10.9.0.0/16"),))
    with pytest.raises(HostError, match="of network back"):
        choose_network(settings(ipv4="10.9.0.0/24"), (network("10.9.0.0/28", "back"),), ())


def test_a_reserved_address_is_neither_chosen_nor_requested() -> None:
    reserved = (address_range("10.77.0.2-10.77.0.4"), address_range("10.77.0.3"))
    on = replace(network(), policy=NetworkPolicy(reserved_addresses=reserved))
    assert free_addresses(on, 0) == 2
    held = fill(2, on)
    assert {str(each.leases[0].address) for each in held} == {"10.77.0.5", "10.77.0.6"}
    with pytest.raises(TakenError, match=r"all of 10\.77\.0\.0/29 are taken"):
        leases("more", networks=(on,), held=held)
    with pytest.raises(
        InvalidRequestError, match=r"address 10\.77\.0\.3 for NIC service is reserved in network default"
    ):
        leases("a", nic(ip="10.77.0.3"), networks=(on,))


def test_an_address_in_the_network_that_leads_nowhere_is_refused() -> None:
    nowhere = replace(network(), name=NO_NETWORK, ipv4=None, gateway4=None)
    with pytest.raises(InvalidRequestError, match="in network none, which leads nowhere") as raised:
        leases("a", replace(nic(ip="10.77.0.3"), network=NO_NETWORK), networks=(nowhere,))
    assert raised.value.hint == "Connect the NIC to another network."


def test_a_range_that_declared_tasks_had_is_chosen_again_if_it_is_free() -> None:
    had = {IPv4Address("172.29.7.9"), IPv4Address("192.0.2.1")}
    assert choose_network(settings(), (), (), had).ipv4 == IPv4Network("172.29.7.0/24")
    assert choose_network(settings(), (), (IPv4Network("172.29.7.0/28"),), had).ipv4 == CANDIDATES[0]
    assert choose_network(settings(ipv4="10.9.0.0/24"), (), (), had).ipv4 == IPv4Network("10.9.0.0/24")


def test_a_network_has_a_number_of_addresses_before_its_range_is_chosen() -> None:
    parsed = parse_settings(
        {
            "network": {
                "small": {"ipv4": "10.77.0.0/28"},
                "six": {"ipv4": False, "ipv6": "2001:db8:1::/64"},
                "lan": {"join": "br0", "ipv4": "192.168.1.0/24", "pool": "192.168.1.200-192.168.1.209"},
                "unknown": {"join": "br1"},
            }
        }
    )
    found = {each.name: addresses_of(each) for each in parsed.networks}
    assert found == {"default": 253, "small": 13, "six": 10_000, "lan": 10, "unknown": None}
