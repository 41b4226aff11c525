"""IPv6 prefixes and addresses."""

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

import pytest
from tests.fast.network.conftest import network
from tests.fast.network.test_ipam import leases, nic

from solo5_systemd.base.errors import HostError, InvalidRequestError, TakenError
from solo5_systemd.base.names import TaskName
from solo5_systemd.network.derived_addresses import link_local, slaac_address, unique_local_prefix
from solo5_systemd.network.ipam import free_addresses
from solo5_systemd.network.model import IpAddress, MacAddress, Network, Reservation
from solo5_systemd.network.network_ranges import advertised_servers, choose_network, with_ipv6
from solo5_systemd.settings.addresses import AddressRange, address_range
from solo5_systemd.settings.network import DEFAULT_NETWORK, Ipv6, Join, NetworkSettings
from solo5_systemd.settings.network_keys import NetworkPolicy
from solo5_systemd.settings.resolver import Resolver

LOCAL = IPv6Network("fd12:3456:789a::/48")
PREFIX = IPv6Network("2001:db8:1::/64")


def six(prefix: IPv6Network = PREFIX, name: str = "default") -> Network:
    return replace(network(name=name), ipv6=prefix, gateway6=prefix[1])


def chosen(
    ipv6: Ipv6 | None = None, name: str = "default", used: tuple[Network, ...] = (), routed: tuple[str, ...] = ()
) -> Network:
    return with_ipv6(network(name=name), ipv6 or Ipv6(), used, [IPv6Network(each) for each in routed], lambda: LOCAL)


def test_a_host_has_one_unique_local_prefix_that_does_not_show_its_machine_id() -> None:
    one, other = "0123456789abcdef" * 2, "0123456789abcdee" * 2
    assert unique_local_prefix(one) == unique_local_prefix(one) != unique_local_prefix(other)
    assert unique_local_prefix(one).subnet_of(IPv6Network("fd00::/8"))
    assert unique_local_prefix(one).prefixlen == 48
    assert one[:10] not in unique_local_prefix(one).network_address.packed.hex()
    for damaged in ("", "uninitialized", "x" * 32):
        with pytest.raises(ValueError, match=r".*"):
            unique_local_prefix(damaged)


def test_a_prefix_is_chosen_once_for_all() -> None:
    assert chosen().ipv6 == IPv6Network("fd12:3456:789a::/64")
    assert chosen().gateway6 == IPv6Address("fd12:3456:789a::1")
    back = chosen(name="back")
    assert back == chosen(name="back")
    assert back.ipv6 is not None
    assert back.ipv6 != chosen().ipv6
    assert back.ipv6.subnet_of(LOCAL)


def test_a_prefix_in_use_is_passed_over() -> None:
    assert chosen(routed=("::/0", "fc00::/7")).ipv6 == chosen().ipv6, "a default route is no conflict"
    first = IPv6Network("fd12:3456:789a::/64")
    assert chosen(used=(six(first, "back"),)).ipv6 == IPv6Network("fd12:3456:789a:1::/64")
    assert chosen(routed=("fd12:3456:789a::/63",)).ipv6 == IPv6Network("fd12:3456:789a:2::/64")
    with pytest.raises(HostError, match="network default has no IPv6 prefix: the host's routes cover all of fd12"):
        chosen(routed=("fd12:3456:789a::/48",))


def test_a_configured_prefix_is_taken_as_it_is_or_refused() -> None:
    made = chosen(Ipv6(prefix=PREFIX, gateway=PREFIX[9], nat66=True))
    assert (made.ipv6, made.gateway6, made.nat66) == (PREFIX, PREFIX[9], True)
    with pytest.raises(
        HostError, match="cannot use 2001:db8:1::/64: it overlaps 2001:db8::/32 of the host's own routes"
    ):
        chosen(Ipv6(prefix=PREFIX), routed=("2001:db8::/32",))
    with pytest.raises(HostError, match="of network back"):
        chosen(Ipv6(prefix=PREFIX), used=(six(name="back"),))


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


def test_a_full_prefix_is_used_to_its_last_address() -> None:
    small = replace(network("10.77.0.0/16"), ipv6=IPv6Network("2001:db8::/125"), gateway6=IPv6Address("2001:db8::1"))
    held: list[Reservation] = []
    for number in range(6):
        held.append(Reservation(task=TaskName("b"), leases=leases(f"t{number}", networks=(small,), held=held)))
    assert len({lease.address6 for each in held for lease in each.leases}) == 6
    with pytest.raises(TakenError, match="network default has no free address for NIC service: all of 2001:db8::/125"):
        leases("t7", networks=(small,), held=held)


def test_a_requested_address_is_leased_or_refused() -> None:
    wanted = replace(nic(), ipv6=PREFIX[7])
    (lease,) = leases("a", wanted, networks=(six(),))
    assert lease.address6 == PREFIX[7]
    with pytest.raises(TakenError, match="address 2001:db8:1::7 for NIC service is taken by task b"):
        leases("b", wanted, networks=(six(),), held=[Reservation(task=TaskName("b"), leases=(lease,))])
    for address, why in (
        (PREFIX[0], "the network's own in"),
        (PREFIX[1], "its gateway's in"),
        (IPv6Address("2001:db8:2::7"), "outside"),
    ):
        with pytest.raises(InvalidRequestError, match=f"is {why} network default: expected .* 2001:db8:1::/64"):
            leases("b", replace(nic(), ipv6=address), networks=(six(),))
    for of, hint in (
        (network(), "Set network.default.ipv6 = true"),
        (replace(network(), join=Join()), "Set the LAN's prefix as network.default.ipv6"),
    ):
        with pytest.raises(InvalidRequestError, match="leases no IPv6 address") as caught:
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
    wanted = NetworkSettings(name=DEFAULT_NETWORK, bridge="solo5-default", without_ipv4=True, ipv6=Ipv6())
    alone = with_ipv6(choose_network(wanted, (), (IPv4Network("0.0.0.0/1"),)), Ipv6(), (), (), lambda: LOCAL)
    assert (alone.ipv4, alone.gateway4) == (None, None)
    [lease] = leases("a", networks=[alone])
    assert (lease.ipv4, lease.gateway4, lease.addresses) == (None, None, (lease.address6,))
    assert lease.first_address == lease.address6
    assert (free_addresses(wanted, 0), free_addresses(alone, 1)) == (10000, 9999)
    with pytest.raises(InvalidRequestError, match="in network default, which has IPv6 only"):
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


def test_a_prefix_that_declared_tasks_had_is_chosen_again_if_it_is_free() -> None:
    had: set[IpAddress] = {IPv6Address("fd12:3456:789a:77::5"), IPv6Address("2001:db8::1"), IPv4Address("10.0.0.1")}
    wanted, prefix = network("10.77.0.0/24", "back"), IPv6Network("fd12:3456:789a:77::/64")
    assert with_ipv6(wanted, Ipv6(), (), (), lambda: LOCAL, had).ipv6 == prefix
    assert with_ipv6(wanted, Ipv6(), (), (prefix,), lambda: LOCAL, had).ipv6 not in (None, prefix)


def test_router_advertisements_have_the_name_servers_of_their_family() -> None:
    servers = (IPv4Address("192.0.2.53"), IPv6Address("2001:db8::53"))
    settings = NetworkSettings(name=DEFAULT_NETWORK, bridge="br0", resolver=Resolver(servers=servers))
    assert advertised_servers(settings) == servers[1:]
