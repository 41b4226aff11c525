"""Conflicts of published ports with tasks and processes."""

from collections.abc import Sequence
from ipaddress import IPv4Address

import pytest
from tests.support.fakes.refusal import refusal

from solo5_systemd.errors import InvalidRequestError, TakenError
from solo5_systemd.names import DeviceName, NetworkName, TaskName
from solo5_systemd.network.ipam import Allocations
from solo5_systemd.network.model import PortRequest, Protocol, Reservation
from solo5_systemd.network.port_conflicts import PORTS_MAX, BoundPort, check_ports, check_reserved
from solo5_systemd.settings.model import NetworkPolicy, NetworkSettings, Settings

SERVICE = DeviceName("service")
HOST = IPv4Address("192.0.2.1")


def port(
    number: int, protocol: Protocol = Protocol.TCP, host_ip: str | None = None, nic: str = "service"
) -> PortRequest:
    address = IPv4Address(host_ip) if host_ip else None
    return PortRequest(nic=DeviceName(nic), host_ip=address, host_port=number, port=1, protocol=protocol)


def check(*ports: PortRequest, held: Sequence[PortRequest] = (), bound: Sequence[BoundPort] = ()) -> None:
    others = [Reservation(task=TaskName("other"), leases=(), ports=tuple(held))]
    check_ports(ports, [SERVICE], Allocations(others), bound, [HOST])


def bound(number: int, address: str | None = None, protocol: Protocol = Protocol.TCP) -> BoundPort:
    return BoundPort(protocol=protocol, address=IPv4Address(address) if address else None, port=number)


def test_what_can_stand_together() -> None:
    apart = [port(80), port(80, Protocol.UDP), port(81, host_ip="192.0.2.1"), port(81, host_ip="127.0.0.1")]
    held = [port(83), port(82, host_ip="192.0.2.1"), port(84)]
    assert refusal(check, *apart, port(82, host_ip="127.0.0.53"), held=held) == ""
    others = [bound(80, "192.0.2.1"), bound(80, None, Protocol.UDP), bound(81)]
    assert refusal(check, port(80, host_ip="127.0.0.1"), bound=others) == ""


@pytest.mark.parametrize("other", [port(80), port(80, host_ip="192.0.2.1")])
def test_one_port_twice(other: PortRequest) -> None:
    with pytest.raises(InvalidRequestError, match="80/tcp is published twice"):
        check(port(80), other)


def test_a_task_has_so_many_ports_and_no_more() -> None:
    most = [port(1024 + number) for number in range(PORTS_MAX)]
    assert refusal(check, *most) == ""
    with pytest.raises(InvalidRequestError, match="257 ports are requested"):
        check(*most, port(80))


def test_a_nic_that_is_not_asked_for() -> None:
    with pytest.raises(InvalidRequestError, match="leads to NIC web, which is not requested: expected one of service"):
        check(port(80, nic="web"))
    with pytest.raises(InvalidRequestError, match="of which there are none"):
        check_ports([port(80)], [], Allocations(), [], [])


def test_an_address_that_is_not_the_hosts() -> None:
    with pytest.raises(InvalidRequestError, match=r"198\.51\.100\.1 is not an address of this host"):
        check(port(80, host_ip="198.51.100.1"))


@pytest.mark.parametrize("mine", [port(80), port(80, host_ip="192.0.2.1")])
@pytest.mark.parametrize("theirs", [port(80), port(80, host_ip="192.0.2.1")])
def test_a_port_of_another_task(mine: PortRequest, theirs: PortRequest) -> None:
    with pytest.raises(TakenError, match="80/tcp is taken by task other"):
        check(mine, held=[theirs])


@pytest.mark.parametrize("mine", [port(80), port(80, host_ip="192.0.2.1")])
@pytest.mark.parametrize("theirs", [bound(80), bound(80, "192.0.2.1")])
def test_a_port_of_a_process(mine: PortRequest, theirs: BoundPort) -> None:
    with pytest.raises(TakenError, match="80/tcp is taken by another process of this host"):
        check(mine, bound=[theirs])


def test_a_port_that_the_operator_reserves() -> None:
    settings = Settings(reserved_ports=((22, 22), (4646, 4648)))
    for number in (22, 4646, 4647, 4648):
        with pytest.raises(InvalidRequestError, match=f"port {number}/tcp cannot be published: it is reserved"):
            check_reserved([port(number)], settings)
    assert refusal(check_reserved, [port(23), port(4645), port(4649, Protocol.UDP)], settings) == ""


def test_the_port_of_dhcp_servers() -> None:
    network = NetworkSettings(name=NetworkName("default"), bridge="b", policy=NetworkPolicy(dhcp=True))
    settings = Settings(networks=(network,))
    with pytest.raises(InvalidRequestError, match="port 67/udp cannot be published: it is that of the DHCP server"):
        check_reserved([port(67, Protocol.UDP)], settings)
    assert refusal(check_reserved, [port(67), port(68, Protocol.UDP)], settings) == ""
    assert refusal(check_reserved, [port(67, Protocol.UDP)], Settings()) == ""
