"""The files of DHCP servers, and their elements of nftables."""

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface, IPv6Network

from tests.fast.network.conftest import network
from tests.support.fakes.tasks import LEASE as TASK_LEASE

from solo5_systemd.base.names import TaskName
from solo5_systemd.network import dhcp
from solo5_systemd.network.model import UNNAMED, GuestNames
from solo5_systemd.settings.network_policy import Join, NetworkPolicy
from solo5_systemd.settings.resolver import UNSET, ntp_servers, resolver

NETWORK = replace(network("10.9.0.0/20"), mtu=1400, policy=NetworkPolicy(dhcp=True))
LEASE = replace(TASK_LEASE, tap="s5-abc", ipv4=IPv4Interface("10.9.0.7/20"), gateway4=IPv4Address("10.9.0.1"), mtu=1400)
RESOLVER = replace(
    resolver(["9.9.9.9", "192.0.2.53"], ["example.org", "lan"]), ntp=ntp_servers(["192.0.2.123", "2001:db8::123"])
)
NAMES = GuestNames(resolver=RESOLVER, hostname="web.example.org")
WEB = TaskName("web")


def test_a_server_advertises_itself_as_router_with_and_without_dhcp() -> None:
    advertised = replace(
        NETWORK,
        ipv6=IPv6Network("fd00:1::/64"),
        ra=True,
        resolver=resolver(["fd00::53", "192.0.2.53", "2001:db8::53"], []),
    )
    lines = [
        "dhcp-range=fd00:1::,ra-only,64,315360000",
        "ra-param=solo5-default,mtu:1400,60,9000",
        "quiet-ra",
        "dhcp-option=option6:dns-server,[fd00::53],[2001:db8::53]",
    ]
    both = dhcp.server_config(advertised, "/run/x")
    assert both.startswith(dhcp.server_config(NETWORK, "/run/x"))
    assert both.splitlines()[-4:] == lines
    alone = dhcp.server_config(replace(advertised, policy=NetworkPolicy(), resolver=UNSET), "/run/x").splitlines()
    assert alone[-3:] == lines[:3]
    assert not [line for line in alone if line.startswith("dhcp-") and "ra-only" not in line]
    assert dhcp.is_served(replace(advertised, policy=NetworkPolicy()))


def test_the_files_of_a_guest() -> None:
    assert dhcp.entry(LEASE) == "02:00:5e:10:00:01,set:s5-abc,10.9.0.7\n"
    assert dhcp.options(LEASE, WEB, NAMES) == (
        "tag:s5-abc,12,web.example.org\n"
        "tag:s5-abc,option:dns-server,9.9.9.9,192.0.2.53\n"
        "tag:s5-abc,option:ntp-server,192.0.2.123\n"
        "tag:s5-abc,option:domain-name,example.org\n"
        "tag:s5-abc,option:domain-search,example.org,lan\n"
    )
    assert dhcp.options(LEASE, WEB, UNNAMED) == "tag:s5-abc,12,web\n"


def test_a_network_of_others_has_no_server_of_ours() -> None:
    assert dhcp.is_served(NETWORK)
    assert not dhcp.is_served(replace(NETWORK, join=Join()))
    assert not dhcp.is_served(replace(NETWORK, policy=NetworkPolicy()))
