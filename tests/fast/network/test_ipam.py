"""Ranges, addresses of both families, MACs and tap names."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fast.network.conftest import network
from tests.support.fakes.tasks import LEASE, PORTS

from solo5_systemd.base.errors import HostError, InvalidRequestError, TakenError
from solo5_systemd.base.names import DeviceName, NetworkName, TaskName
from solo5_systemd.network import ipam
from solo5_systemd.network.derived_addresses import ASKER, bridge_mac, link_local, slaac_address, unique_local_prefix
from solo5_systemd.network.ipam import (
    SEGMENTS,
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
from solo5_systemd.network.model import IpAddress, Lease, MacAddress, NicRequest, Protocol, Reservation, mac_address
from solo5_systemd.network.network_ranges import CANDIDATES, choose_network
from solo5_systemd.network.tap_counters import TAP_PREFIX
from solo5_systemd.settings.addresses import AddressRange, address_range
from solo5_systemd.settings.network import NO_NETWORK
from solo5_systemd.settings.network_policy import Join, Network, NetworkPolicy
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
    return dict(allocations.owners), +allocations.leases, ports


def test_added_values_are_found() -> None:
    allocations = Allocations([A, B])
    own = {value: task for each, task in ((LEASE, "a"), (OTHER, "b")) for value in (each.address, each.mac, each.tap)}
    assert allocations.owners == own
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
    assert (set(allocations.owners.values()), allocations.leases[NetworkName("default")]) == ({"later"}, 1)


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


LOCAL = IPv6Network("fd12:3456:789a::/48")
PREFIX = IPv6Network("2001:db8:1::/64")


def six(prefix: IPv6Network = PREFIX, name: str = "default", ipv4: str = "10.77.0.0/29") -> Network:
    return replace(network(ipv4, name), ipv6=prefix, gateway6=prefix[1])


def settings(name: str = "default", **changes: Any) -> Network:
    return replace(Network(name=NetworkName(name), bridge=f"solo5-{name}", has_ipv6=True), **changes)


def choose(wanted: Network, used: Sequence[Network] = (), routed: str = "", had: Collection[IpAddress] = ()) -> Network:
    return choose_network(wanted, used, [*map(ip_network, routed.split())], lambda: LOCAL, had)


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


FEW = IPv6Network("2001:db8::/125")
SIX_ALONE = replace(network(), ipv4=None, gateway4=None, ipv6=FEW, gateway6=FEW[1])


@pytest.mark.parametrize(
    ("on", "guests"),
    [
        (network(), [IPv4Address(f"10.77.0.{number}") for number in range(2, 7)]),
        (SIX_ALONE, [FEW[number] for number in range(2, 8)]),
    ],
)
def test_a_full_range_is_all_used_and_nothing_twice(on: Network, guests: list[IpAddress]) -> None:
    held = fill(len(guests), on)
    assert sorted(address for each in held for address in each.leases[0].addresses) == guests
    with pytest.raises(TakenError, match=f"no free address for NIC service: all of {on.ipv4 or FEW} are taken"):
        leases("more", networks=(on,), held=held)
    assert free_addresses(network(), 5) == 0


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
    macs = iter((ASKER, LEASE.mac))
    monkeypatch.setattr(ipam, "mac_of", lambda _: next(macs))
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
        ("10.77.0.0", "the network's own in"),
        ("10.77.0.7", "its broadcast address in"),
        ("10.77.0.1", "its gateway's in"),
        ("10.77.0.8", "outside"),
        ("2001:db8:1::", "the network's own in"),
        ("2001:db8:1::1", "its gateway's in"),
        ("2001:db8:2::7", "outside"),
    ],
)
def test_an_address_that_no_guest_can_have(ip: str, words: str) -> None:
    wanted, inside = (nic(ip=ip), "10.77.0.0/29") if "." in ip else (replace(nic(), ipv6=IPv6Address(ip)), PREFIX)
    with pytest.raises(InvalidRequestError, match=f"is {words} network default: expected one in {inside}"):
        leases("a", wanted, networks=(six(),))


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


def test_ranges_are_chosen_once_for_all() -> None:
    default, back = choose(settings()), choose(settings("back"))
    assert (default.ipv4, default.gateway4) == (CANDIDATES[0], CANDIDATES[0][1])
    assert (str(default.ipv6), str(default.gateway6)) == ("fd12:3456:789a::/64", "fd12:3456:789a::1")
    assert back == choose(settings("back"))
    assert not {back.ipv4, back.ipv6} & {default.ipv4, default.ipv6, None}
    assert str(back.ipv6).startswith("fd12:3456:789a:")


@pytest.mark.parametrize(
    ("used", "routed", "ipv4", "ipv6"),
    [
        ((), "0.0.0.0/0 ::/0 fc00::/7", "10.153.0.0/24", "fd12:3456:789a::/64"),  # default routes
        ((six(IPv6Network((LOCAL[0], 64)), "back", "10.153.0.0/24"),), "", "10.153.1.0/24", "fd12:3456:789a:1::/64"),
        ((), "10.0.0.0/8 fd12:3456:789a::/63", "172.29.0.0/24", "fd12:3456:789a:2::/64"),
    ],
)
def test_ranges_in_use_are_passed_over(used: Sequence[Network], routed: str, ipv4: str, ipv6: str) -> None:
    made = choose(settings(), used, routed)
    assert (str(made.ipv4), str(made.ipv6)) == (ipv4, ipv6)


@pytest.mark.parametrize(
    ("routed", "words"),
    [
        ("0.0.0.0/1 128.0.0.0/1", "network default has no range"),
        ("fd12:3456:789a::/48", "network default has no IPv6 prefix: the host's routes cover all of fd12"),
    ],
)
def test_a_host_without_a_free_range(routed: str, words: str) -> None:
    with pytest.raises(HostError, match=words):
        choose(settings(), (), routed)


CONFIGURED = settings(
    ipv4=IPv4Network("10.9.0.0/24"),
    gateway4=IPv4Address("10.9.0.254"),
    ipv6=PREFIX,
    gateway6=PREFIX[9],
    nat66=True,
)


def test_configured_ranges_are_taken_as_they_are_or_refused() -> None:
    made = choose(CONFIGURED)
    assert (str(made.ipv4), str(made.gateway4)) == ("10.9.0.0/24", "10.9.0.254")
    assert (made.ipv6, made.gateway6, made.nat66) == (PREFIX, PREFIX[9], True)
    for routed, words in (
        ("10.9.0.0/16", r"cannot use 10\.9\.0\.0/24: it overlaps 10\.9\.0\.0/16 of the host's own"),
        ("2001:db8::/32", "cannot use 2001:db8:1::/64: it overlaps 2001:db8::/32 of the host's own routes"),
    ):
        with pytest.raises(HostError, match=words):
            choose(CONFIGURED, (), routed)
    for other in (network("10.9.0.0/28", "back"), six(name="back")):
        with pytest.raises(HostError, match="of network back"):
            choose(CONFIGURED, (other,))


def test_ranges_that_declared_tasks_had_are_chosen_again_if_they_are_free() -> None:
    had = {*map(ip_address, ("172.29.7.9", "192.0.2.1", "fd12:3456:789a:77::5", "2001:db8::1"))}
    again = choose(settings("back"), had=had)
    assert (str(again.ipv4), str(again.ipv6)) == ("172.29.7.0/24", "fd12:3456:789a:77::/64")
    other = choose(settings("back"), (), "172.29.7.0/28 fd12:3456:789a:77::/64", had)
    assert not {other.ipv4, other.ipv6} & {again.ipv4, again.ipv6, None}
    assert choose(CONFIGURED, had=had) == choose(CONFIGURED)


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
    with pytest.raises(InvalidRequestError, match="in network none, which leases no IPv4 addresses") as raised:
        leases("a", replace(nic(ip="10.77.0.3"), network=NO_NETWORK), networks=(nowhere,))
    assert raised.value.hint == "Connect the NIC to another network."


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


# -- IPv6 prefixes and addresses -------------------------------------------------------------------------------------


def test_a_host_has_one_unique_local_prefix_that_does_not_show_its_machine_id() -> None:
    one, other = "0123456789abcdef" * 2, "0123456789abcdee" * 2
    assert unique_local_prefix(one) == unique_local_prefix(one) != unique_local_prefix(other)
    assert unique_local_prefix(one).subnet_of(IPv6Network("fd00::/8"))
    assert unique_local_prefix(one).prefixlen == 48
    assert one[:10] not in unique_local_prefix(one).network_address.packed.hex()
    for damaged in ("", "uninitialized", "x" * 32):
        with pytest.raises(ValueError, match=r".*"):
            unique_local_prefix(damaged)


def test_a_lease_has_both_addresses_and_those_come_again() -> None:
    (lease,) = leases("a", networks=(six(),))
    assert lease.ipv6 is not None
    assert (lease.ipv6.network, lease.gateway6, lease.addresses) == (PREFIX, PREFIX[1], (lease.address, lease.address6))
    assert leases("a", networks=(six(),)) == (lease,)
    (next_one,) = leases("a", networks=(six(),), held=[Reservation(task=TaskName("b"), leases=(lease,))])
    assert next_one.address6 == lease.address6 + 1 if lease.address6 else None


def test_a_mac_address_does_not_lead_to_the_address_that_a_declared_task_had() -> None:
    on = replace(six(), ra=True)
    (lease,) = leases("a", networks=(on,))
    assert lease.address6 is not None
    (moved,) = leases("a", networks=(on,), remembered={lease.address6: TaskName("web")})
    assert (moved.mac != lease.mac, moved.address6) == (True, slaac_address(PREFIX, moved.mac))


def test_a_requested_address_is_leased_or_refused() -> None:
    wanted = replace(nic(), ipv6=PREFIX[7])
    (lease,) = leases("a", wanted, networks=(six(),))
    assert lease.address6 == PREFIX[7]
    with pytest.raises(TakenError, match="address 2001:db8:1::7 for NIC service is taken by task b"):
        leases("b", wanted, networks=(six(),), held=[Reservation(task=TaskName("b"), leases=(lease,))])
    for of, hint in (
        (network(), "Set network.default.ipv6 below"),
        (replace(network(), join=Join()), "Set network.default.ipv6 below /etc/solo5: the range of the LAN"),
    ):
        with pytest.raises(InvalidRequestError, match="leases no IPv6 addresses") as caught:
            leases("b", wanted, networks=(of,))
        assert hint in str(caught.value)


def test_a_pool_is_the_limit_of_addresses_on_a_bridge_of_others() -> None:
    whole = replace(six(), ipv4=None, gateway4=None, gateway6=None, join=Join(ipv6=True))
    (lease,) = leases("a", nic(), networks=(whole,))
    assert lease.address6 in PREFIX
    for address in (PREFIX[0], IPv6Address("2001:db8:2::7")):
        with pytest.raises(InvalidRequestError, match=r"network default: expected .* 2001:db8:1::/64"):
            leases("b", replace(nic(), ipv6=address), networks=(whole,))
    pool = AddressRange(PREFIX[5], PREFIX[6])
    pooled = replace(whole, gateway6=IPv6Address("fe80::1"), join=Join(ipv6=True, pool6=pool))
    (one,), held = leases("a", nic(), networks=(pooled,)), []
    assert one.gateway6 == IPv6Address("fe80::1")
    held.append(Reservation(task=TaskName("a"), leases=(one,)))
    (other,) = leases("b", nic(), networks=(pooled,), held=held)
    assert {one.address6, other.address6} == {PREFIX[5], PREFIX[6]}
    held.append(Reservation(task=TaskName("b"), leases=(other,)))
    with pytest.raises(TakenError, match=r"all of 2001:db8:1::5-2001:db8:1::6 are taken.\s+.*network.default.pool6"):
        leases("c", nic(), networks=(pooled,), held=held)
    with pytest.raises(InvalidRequestError, match=r"outside network default: expected one in 2001:db8:1::5-"):
        leases("c", replace(nic(), ipv6=PREFIX[7]), networks=(pooled,))


@pytest.mark.parametrize(
    ("mac", "address"), [("02:00:5e:10:00:01", "fe80::5eff:fe10:1"), ("52:54:00:12:34:56", "fe80::5054:ff:fe12:3456")]
)
def test_a_link_local_address_is_that_of_the_mac(mac: str, address: str) -> None:
    assert link_local(mac) == IPv6Address(address)


MAC = MacAddress("02:00:5e:10:00:01")


def test_with_router_advertisements_an_address_is_that_of_the_mac() -> None:
    network = replace(six(), ra=True)
    (lease,) = leases("a", networks=(network,))
    assert lease.address6 == slaac_address(PREFIX, lease.mac)
    assert leases("a", networks=(network,)) == (lease,)
    wanted = replace(nic(), mac=MAC)
    address = IPv6Address("2001:db8:1::5eff:fe10:1")
    for request in (wanted, replace(wanted, ipv6=address)):
        assert leases("a", request, networks=(network,))[0].address6 == address
    for request in (replace(wanted, ipv6=PREFIX[7]), replace(nic(), ipv6=PREFIX[7])):
        with pytest.raises(InvalidRequestError, match="2001:db8:1::7 for NIC service is not that of its MAC address"):
            leases("a", request, networks=(network,))


def test_a_mac_whose_address_is_the_gateways_is_not_chosen_and_refused() -> None:
    network = replace(six(), ra=True)
    (lease,) = leases("a", networks=(network,))
    gateway = replace(network, gateway6=lease.address6)
    (other,) = leases("a", networks=(gateway,))
    assert other.mac != lease.mac
    assert other.address6 == slaac_address(PREFIX, other.mac)
    with pytest.raises(TakenError, match="is taken by network default, as its gateway's"):
        leases("a", replace(nic(), mac=lease.mac), networks=(gateway,))


def test_a_network_with_ipv6_alone_has_no_range_and_leases_no_address_of_ipv4() -> None:
    wanted = settings(without_ipv4=True)
    alone = choose(wanted, (), "0.0.0.0/1")
    assert (alone.ipv4, alone.gateway4) == (None, None)
    [lease] = leases("a", networks=[alone])
    assert (lease.ipv4, lease.gateway4, lease.addresses) == (None, None, (lease.address6,))
    assert lease.first_address == lease.address6
    assert (addresses_of(wanted), free_addresses(alone, 1)) == (10000, 9999)
    with pytest.raises(InvalidRequestError, match="in network default, which leases no IPv4 addresses"):
        leases("a", nic(ip="10.153.0.7"), networks=[alone])


@pytest.mark.parametrize("ra", [False, True])
def test_a_reserved_address_of_ipv6_is_not_chosen(ra: bool) -> None:
    on = replace(network(), ipv6=PREFIX, gateway6=PREFIX[1], ra=ra)
    [had] = leases("a", networks=[on])
    reserved = replace(on, policy=NetworkPolicy(reserved_addresses=(address_range(str(had.address6)),)))
    [lease] = leases("a", networks=[reserved])
    assert had.address6 != lease.address6
    with pytest.raises(InvalidRequestError, match="is reserved in network default"):
        leases("a", replace(nic(), ipv6=had.address6), networks=[reserved])
