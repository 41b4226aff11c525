"""Recovery of a damaged lease record from the kernel's state."""

from dataclasses import replace
from ipaddress import IPv6Address, IPv6Interface, IPv6Network

from tests.fast.network.test_lease_json import NETWORK
from tests.fast.network.test_nft_rules import RESERVATION, SERVICE

from solo5_systemd.base.names import TaskName
from solo5_systemd.network.lease_recovery import recover_lease_record, tap_alias, tap_network, tap_owner
from solo5_systemd.network.model import EVERY_IPV6, LeaseState
from solo5_systemd.network.nft_elements import network_elements, task_elements
from solo5_systemd.settings.network import Join

(LEASE,) = RESERVATION.leases
ELEMENTS = [
    replace(e, key=tuple(w.strip('"') for w in e.key))
    for e in (*network_elements(NETWORK, [NETWORK]), *task_elements(RESERVATION, [NETWORK]))
]


def test_all_of_it_is_found() -> None:
    taps = {
        LEASE.tap: (tap_alias(RESERVATION.task, SERVICE), NETWORK),
        "s5-other": ("solo5 task b NIC service", NETWORK),
    }
    record = recover_lease_record(RESERVATION.task, taps, ELEMENTS)
    assert record is not None
    assert record.reservation.leases == (replace(LEASE, mtu=NETWORK.mtu),)
    assert set(record.reservation.ports) == set(RESERVATION.ports)
    assert record.state is LeaseState.ATTACHED


def test_both_addresses_and_a_port_at_both_are_found() -> None:
    network = replace(NETWORK, ipv6=IPv6Network("fd00:1::/64"), gateway6=IPv6Address("fd00:1::1"))
    lease = replace(LEASE, mtu=NETWORK.mtu, ipv6=IPv6Interface("fd00:1::7/64"), gateway6=IPv6Address("fd00:1::1"))
    every = replace(RESERVATION.ports[0], host_ip=EVERY_IPV6, host_port=81)
    one = replace(every, host_ip=IPv6Address("2001:db8::1"), host_port=82)
    held = replace(RESERVATION, leases=(lease,), ports=(*RESERVATION.ports, every, one))
    elements = [
        replace(each, key=tuple(word.strip('"') for word in each.key)) for each in task_elements(held, [network])
    ]
    record = recover_lease_record(held.task, {LEASE.tap: (tap_alias(held.task, SERVICE), network)}, elements)
    assert record is not None
    assert record.reservation.leases == (lease,)
    assert set(record.reservation.ports) == set(held.ports)


def test_what_is_not_there_is_not_invented() -> None:
    ours = {LEASE.tap: (tap_alias(RESERVATION.task, SERVICE), NETWORK)}
    assert recover_lease_record(TaskName("b"), ours, ELEMENTS) is None
    assert recover_lease_record(RESERVATION.task, {LEASE.tap: ("somebody's", NETWORK)}, ELEMENTS) is None
    assert recover_lease_record(RESERVATION.task, ours, network_elements(NETWORK, [NETWORK])) is None


def test_a_tap_on_a_bridge_of_others_names_its_network() -> None:
    for ipv4, inside in ((LEASE.ipv4, NETWORK.ipv4), (None, None)):
        network = replace(NETWORK, ipv4=inside, join=Join(vlan=20))
        lease = replace(LEASE, network=network.name, bridge=network.bridge, mtu=network.mtu, ipv4=ipv4)
        held = replace(RESERVATION, leases=(lease,), ports=())
        elements = [
            replace(each, key=tuple(word.strip('"') for word in each.key)) for each in task_elements(held, [network])
        ]
        alias = tap_alias(held.task, SERVICE, network.name)
        assert (tap_owner(alias), tap_network(alias)) == ((held.task, SERVICE), network.name)
        record = recover_lease_record(held.task, {LEASE.tap: (alias, network)}, elements)
        assert record is not None
        assert record.reservation == held
    assert tap_network(tap_alias(RESERVATION.task, SERVICE)) is tap_network("another's") is None


def test_a_guest_with_ipv6_alone_is_found() -> None:
    prefix, gateway = IPv6Network("fd00:1::/64"), IPv6Address("fd00:1::1")
    network = replace(NETWORK, ipv4=None, gateway4=None, ipv6=prefix, gateway6=gateway)
    lease = replace(LEASE, mtu=NETWORK.mtu, ipv4=None, gateway4=None)
    lease = replace(lease, ipv6=IPv6Interface("fd00:1::7/64"), gateway6=gateway)
    held = replace(RESERVATION, leases=(lease,), ports=(replace(RESERVATION.ports[0], host_ip=None),))
    elements = [
        replace(each, key=tuple(word.strip('"') for word in each.key)) for each in task_elements(held, [network])
    ]
    assert not {each.name for each in elements} & {"guests", "plain", "fragments"}
    record = recover_lease_record(held.task, {LEASE.tap: (tap_alias(held.task, SERVICE), network)}, elements)
    assert record is not None
    assert (record.reservation.leases, record.reservation.ports) == (held.leases, held.ports)
