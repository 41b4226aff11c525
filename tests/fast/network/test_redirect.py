"""The lease and the rules of a guest that has the interface of its namespace."""

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface

import pytest

from solo5_systemd.base.errors import HostError, InvalidRequestError
from solo5_systemd.base.names import DeviceName, NetworkName, TaskName
from solo5_systemd.network.guest_limits import Limits
from solo5_systemd.network.model import MacAddress, NicRequest, PortRequest, Protocol
from solo5_systemd.network.redirect import Uplink, check_redirected, redirect_rules, redirected_lease
from solo5_systemd.settings.egress import egress

WEB = TaskName("web")
NIC = NicRequest(nic=DeviceName("service"), network=NetworkName("redirect"))
UPLINK = Uplink(
    name="eth0",
    mac=MacAddress("02:00:00:00:00:09"),
    mtu=1500,
    ipv4=IPv4Interface("172.26.64.9/20"),
    gateway4=IPv4Address("172.26.64.1"),
)
SIX = replace(UPLINK, ipv4=None, gateway4=None, ipv6=IPv6Interface("fd00::9/64"), gateway6=IPv6Address("fd00::1"))


def test_a_lease_is_that_of_the_interface() -> None:
    lease = redirected_lease(NIC, "s5-a", UPLINK, "/run/netns/group")
    assert (lease.ipv4, lease.gateway4, lease.mac, lease.bridge) == (UPLINK.ipv4, UPLINK.gateway4, UPLINK.mac, "eth0")


@pytest.mark.parametrize("uplink", [None, replace(UPLINK, ipv4=None)])
def test_an_interface_without_an_address_is_none(uplink: Uplink | None) -> None:
    with pytest.raises(HostError, match="/run/netns/group has no interface with a default route and an address"):
        redirected_lease(NIC, "s5-a", uplink, "/run/netns/group")


def test_frames_of_its_own_addresses_are_forwarded() -> None:
    rules = redirect_rules(redirected_lease(NIC, "s5-a", UPLINK, "n"))
    assert 'hook ingress device "s5-a" priority 0; policy drop;' in rules
    assert "ether saddr != 02:00:00:00:00:09 drop" in rules
    for dropped in ("ether type { 0x8100, 0x88a8, 0x9100 }", "meta protocol ip udp dport 68", "@th,0,8 0x11"):
        assert rules.index(f"{dropped} drop") < rules.index("ip saddr 172.26.64.9 goto packets")
    assert "ip saddr 172.26.64.9 goto packets" in rules
    assert "ip6 saddr" not in rules


def test_frames_of_ipv6_are_forwarded_where_it_has_that() -> None:
    rules = redirect_rules(redirected_lease(NIC, "s5-a", SIX, "n"))
    own = "fe80::ff:fe00:9, fd00::9"
    sent = rules.partition("chain sent {")[2]
    assert f'ip6 saddr {{ {own} }} fwd to "eth0"' in sent
    assert sent.index("nd-router-advert") < sent.index("goto neighbours6") < sent.index("ip6 saddr")
    numbers = f"{0xFD00 << 48} . 9, {0xFE80 << 48} . {0x000000FFFE000009}"
    assert f"set own6 {{ typeof @th,64,64 . @th,128,64; elements = {{ {numbers} }}; }}" in rules
    assert f"icmpv6 type nd-neighbor-advert ip6 saddr {{ {own} }} @th,64,64 . @th,128,64 @own6" in rules
    assert "@th,208,48 0x020000000009" in rules
    assert "arp saddr" not in rules


PORT = PortRequest(nic=NIC.nic, host_port=80, port=80, protocol=Protocol.TCP)


def test_a_request_for_the_interface_alone_passes() -> None:
    check_redirected(WEB, (NIC,), (PORT,))
    assert redirected_lease(NIC, "s5-a", UPLINK, "n").nic == NIC.nic


@pytest.mark.parametrize(
    ("nics", "ports", "words"),
    [
        ((NIC, replace(NIC, nic=DeviceName("other"))), (), "has NICs service, other"),
        ((replace(NIC, ipv4=IPv4Address("10.0.0.1")),), (), "requests 10.0.0.1 on network redirect"),
        ((replace(NIC, limits=Limits(egress=egress([]))),), (), "has egress, a rate limit or an idle time"),
        ((NIC,), (replace(PORT, host_port=8080),), "port 8080 is published to port 80"),
        ((NIC,), (replace(PORT, host_ip=IPv4Address("10.0.0.1")),), "expected the same port at every address"),
    ],
)
def test_what_the_interface_has_already_is_refused(
    nics: tuple[NicRequest, ...], ports: tuple[PortRequest, ...], words: str
) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        check_redirected(WEB, nics, ports)
