"""Which requests are refused: published ports that conflict with tasks and processes, are reserved, or too many."""

from collections.abc import Sequence
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address, IPv6Interface, ip_address

import pytest
from tests.support.fakes.refusal import refusal
from tests.support.fakes.tasks import LEASE

from solo5_systemd.base.errors import InvalidRequestError, TakenError
from solo5_systemd.base.names import DeviceName, NetworkName, TaskName
from solo5_systemd.network.ipam import Allocations
from solo5_systemd.network.model import EVERY_IPV6, PortRequest, Protocol, Reservation
from solo5_systemd.network.request_checks import (
    PORTS_MAX,
    absent,
    check_families,
    check_ports,
    check_reserved,
    host_ports,
    port_range,
    show_port,
)
from solo5_systemd.settings.network_policy import Network, NetworkPolicy
from solo5_systemd.settings.solo5_toml import Settings

SERVICE = DeviceName("service")
HOST, HOST6 = IPv4Address("192.0.2.1"), IPv6Address("2001:db8::1")


def port(
    number: int, protocol: Protocol = Protocol.TCP, host_ip: str | None = None, nic: str = "service"
) -> PortRequest:
    address = ip_address(host_ip) if host_ip else None
    return PortRequest(nic=DeviceName(nic), host_ip=address, host_port=number, port=1, protocol=protocol)


def check(*ports: PortRequest, held: Sequence[PortRequest] = ()) -> None:
    others = [Reservation(task=TaskName("other"), leases=(), ports=tuple(held))]
    check_ports(ports, [SERVICE], Allocations(others))


def test_what_can_stand_together() -> None:
    apart = [port(80), port(80, Protocol.UDP), port(81, host_ip="192.0.2.1"), port(81, host_ip="127.0.0.1")]
    held = [port(83), port(82, host_ip="192.0.2.1"), port(84)]
    assert refusal(check, *apart, port(82, host_ip="127.0.0.53"), held=held) == ""
    assert refusal(check, *MOST) == ""
    # ports of two families
    assert refusal(check, port(80, host_ip="::"), port(80, host_ip="192.0.2.1"), held=[port(81, host_ip="::")]) == ""
    assert refusal(check, port(81, host_ip="192.0.2.1"), held=[port(81, host_ip="2001:db8::1")]) == ""


MOST = [port(1024 + number) for number in range(PORTS_MAX)]


@pytest.mark.parametrize(
    "ports, words",
    [
        ([port(80), port(80)], "80/tcp is published twice"),
        ([port(80), port(80, host_ip="192.0.2.1")], "80/tcp is published twice"),
        ([*MOST, port(80)], "257 ports are requested"),
        ([port(80, nic="web")], "to NIC web: expected a requested one"),
    ],
)
def test_ports_that_no_task_has(ports: list[PortRequest], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        check(*ports)


def test_an_address_that_the_host_gets_later() -> None:
    """Such as that of keepalived, on the node that has not got it."""
    later = [port(80, host_ip="198.51.100.1"), port(80, host_ip="2001:db8::2")]
    assert refusal(check, *later) == ""
    present = [port(81), port(82, host_ip="::"), port(83, host_ip="127.0.0.2"), port(84, host_ip=str(HOST))]
    assert absent([*present, *later], [HOST, HOST6]) == later


V4, V6 = "192.0.2.1", "2001:db8::1"


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        *((None, None), (None, V4), (V4, None), (V4, V4)),
        *(("::", None), (None, "::"), ("::", V6), (V6, "::"), (V6, None), ("::", "::")),
    ],
)
def test_a_port_of_another_task(mine: str | None, theirs: str | None) -> None:
    with pytest.raises(TakenError, match="80/tcp is taken by task other"):
        check(port(80, host_ip=mine), held=[port(80, host_ip=theirs)])


@pytest.mark.parametrize("host_ip", ["224.0.0.18", "ff02::12", "::1", "fe80::1"])
def test_an_address_that_leads_to_no_guest(host_ip: str) -> None:
    assert f"no reply of a guest leaves from {host_ip}: expected 127.0.0.1" in refusal(check, port(80, host_ip=host_ip))


def test_a_port_at_the_loopback_leads_to_a_guest_in_a_namespace() -> None:
    at_loopback = [port(80, host_ip="::1")]
    assert refusal(check_ports, at_loopback, [SERVICE], Allocations()) != ""
    check_ports(at_loopback, [SERVICE], Allocations(), loopback6=True)


def test_a_nic_without_ipv6_has_no_port_at_an_ipv6_address() -> None:
    ports = (port(80), port(81, host_ip="::"), port(82, host_ip="192.0.2.1"))
    held = Reservation(task=TaskName("a"), leases=(LEASE,), ports=ports)
    assert "[::]:81/tcp cannot be published to NIC service: it has no IPv6 address" in refusal(check_families, held)
    six = replace(LEASE, ipv6=IPv6Interface("fd00::7/64"), gateway6=IPv6Address("fd00::1"))
    both = replace(held, leases=(six,))
    assert refusal(check_families, both) == ""
    alone = replace(held, leases=(replace(six, ipv4=None),))
    assert "192.0.2.1:82/tcp cannot be published to NIC service: it has no IPv4" in refusal(check_families, alone)
    assert list(map(show_port, host_ports(both))) == ["80/tcp", "[::]:80/tcp", "[::]:81/tcp", "192.0.2.1:82/tcp"]
    assert host_ports(both)[1].host_ip == EVERY_IPV6
    assert host_ports(replace(held, ports=ports[:1])) == ports[:1]


def test_a_port_that_the_operator_reserves() -> None:
    settings = Settings(reserved_ports=((22, 22), (4646, 4648)))
    for number in (22, 4646, 4647, 4648):
        with pytest.raises(InvalidRequestError, match=f"port {number}/tcp cannot be published: it is reserved"):
            check_reserved([port(number)], settings)
    assert refusal(check_reserved, [port(23), port(4645), port(4649, Protocol.UDP)], settings) == ""


def test_the_port_of_dhcp_servers() -> None:
    network = Network(name=NetworkName("default"), bridge="b", policy=NetworkPolicy(dhcp=True))
    settings = Settings(networks=(network,))
    with pytest.raises(InvalidRequestError, match="port 67/udp cannot be published: it is that of the DHCP server"):
        check_reserved([port(67, Protocol.UDP)], settings)
    assert refusal(check_reserved, [port(67), port(68, Protocol.UDP)], settings) == ""
    assert refusal(check_reserved, [port(67, Protocol.UDP)], Settings()) == ""


def test_a_range_has_its_first_and_last_port() -> None:
    assert port_range("8000-8010") == range(8000, 8011)
    assert port_range("80") == port_range("80-80") == range(80, 81)
    assert len(port_range(f"1-{PORTS_MAX}")) == PORTS_MAX


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("8010-8000", "range 8010-8000 is reversed: expected 8000-8010"),
        (f"1-{PORTS_MAX + 1}", f"has {PORTS_MAX + 1} ports: expected {PORTS_MAX} or fewer"),
        ("0-1", "port 0 does not exist"),
        ("65535-65536", "port 65536 does not exist"),
        ("1-2-3", "is not a port"),
        ("\u0661", "is not a port"),
    ],
)
def test_a_wrong_range_is_refused(text: str, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        port_range(text)
