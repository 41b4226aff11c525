"""Routes of guests: what a range is, and what the operator permits."""

from dataclasses import replace
from ipaddress import IPv4Network, IPv6Network, ip_network

import pytest
from tests.fast.network.test_nft_rules import RESERVATION, linked_network, with_limits

from solo5_systemd.base.errors import InvalidRequestError, TakenError
from solo5_systemd.base.names import DeviceName, NetworkName, TaskName
from solo5_systemd.network.model import Limits, NicRequest, Request
from solo5_systemd.network.request_checks import check_limits, check_routes
from solo5_systemd.settings.addresses import ROUTES_MAX, is_within, overlapping, routes
from solo5_systemd.settings.egress import egress
from solo5_systemd.settings.network_policy import Network, NetworkPolicy

NETWORK = linked_network("default")
BEHIND = "192.168.2.0/24"
PERMITTED = routes(["192.168.0.0/16", "2001:db8::/32"])


def test_ranges_of_both_families() -> None:
    assert routes(["192.168.2.0/24", "2001:db8:2::/64", "192.168.2.0/24"]) == (
        ip_network("192.168.2.0/24"),
        ip_network("2001:db8:2::/64"),
    )
    assert routes([]) == ()


@pytest.mark.parametrize(
    ("texts", "error"),
    [
        (["example.org"], "'example.org' is not a range of addresses: expected one such as 192.168.2.0/24"),
        (["192.168.2.1/24"], "with zeros behind its prefix"),
        (["0.0.0.0/0"], "no default route"),
        (["::/0"], "no default route"),
        (["0.0.0.0/1"], "behind no guest"),
        (["128.0.0.0/1"], "behind no guest"),
        (["127.0.0.1"], "addresses of 127.0.0.0/8"),
        (["169.254.169.254"], "addresses of 169.254.0.0/16"),
        (["239.0.0.0/8"], "addresses of 224.0.0.0/3"),
        (["255.255.255.255"], "addresses of 224.0.0.0/3"),
        (["::1"], "addresses of ::/127"),
        (["::ffff:10.0.0.0/104"], "addresses of ::ffff:0"),
        (["fe80::/64"], "addresses of fe80::/10"),
        (["ff02::/16"], "addresses of ff00::/8"),
        (["10.0.0.0/8", "10.1.0.0/16"], "10.0.0.0/8 and 10.1.0.0/16, which overlap"),
        ([f"10.{number}.0.0/16" for number in range(ROUTES_MAX + 1)], f"has 17 ranges: expected {ROUTES_MAX} or fewer"),
    ],
)
def test_what_is_behind_no_guest_is_refused(texts: list[str], error: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        routes(texts)
    assert error in raised.value.sentence


def test_what_has_addresses_in_common() -> None:
    assert overlapping(ip_network("192.168.2.0/24"), PERMITTED) == PERMITTED[0]
    assert overlapping(ip_network("10.0.0.0/8"), PERMITTED) is None
    assert is_within(ip_network("2001:db8:1::/64"), PERMITTED)
    assert not is_within(ip_network("192.0.0.0/8"), PERMITTED)


@pytest.mark.parametrize(
    ("policy", "route", "error"),
    [
        (NetworkPolicy(), "192.168.2.0/24", "is not permitted in network default: expected none of IPv4"),
        (NetworkPolicy(routes=PERMITTED), "10.0.0.0/24", "expected a range within 192.168.0.0/16"),
        (NetworkPolicy(routes=PERMITTED), "192.0.0.0/8", "expected a range within 192.168.0.0/16"),
        (NetworkPolicy(routes=PERMITTED), "2001:db8:2::/64", "expected none of IPv6"),
        (NetworkPolicy(routes=PERMITTED, egress=egress(["none"])), "192.168.2.0/24", "has routes and an egress list"),
    ],
)
def test_a_job_has_what_the_operator_permits(policy: NetworkPolicy, route: str, error: str) -> None:
    nic = NicRequest(nic=DeviceName("service"), limits=Limits(routes=routes([route])))
    with pytest.raises(InvalidRequestError) as raised:
        check_limits(Request(nics=(nic,)), [replace(NETWORK, policy=policy)])
    assert error in raised.value.sentence
    assert ":" in route or nic.limits.under(policy).routes == (), (
        "nor where it has one from before a change of the settings"
    )
    if policy.routes:
        check_limits(Request(nics=(replace(nic, limits=Limits(routes=routes(["192.168.2.0/24"]))),)),
                     [replace(NETWORK, policy=replace(policy, egress=None))])  # fmt: skip


def routing(*ranges: str, name: str = "service") -> NicRequest:
    return NicRequest(nic=DeviceName(name), limits=Limits(routes=routes(ranges)))


@pytest.mark.parametrize(
    ("nics", "error"),
    [
        ([routing("192.168.2.128/25")], "192.168.2.0/24 of task vpn"),
        ([routing("192.168.0.0/16")], "192.168.2.0/24 of task vpn"),
        ([routing("10.0.0.0/8")], "of network default"),
        ([routing("10.154.1.0/24")], "of network back"),
        ([routing("2001:db8:5:1::/64")], "of network back"),
        ([routing("192.0.2.0/28")], "of this host's routes or addresses"),
        ([routing("172.16.0.0/16"), routing("172.16.7.0/24", name="two")], "of another NIC"),
    ],
)
def test_a_range_that_something_else_has_is_refused(nics: list[NicRequest], error: str) -> None:
    other = with_limits(replace(RESERVATION, task=TaskName("vpn")), routing(BEHIND).limits)
    back = Network(
        name=NetworkName("back"),
        bridge="back",
        ipv4=IPv4Network("10.154.0.0/16"),
        ipv6=IPv6Network("2001:db8:5::/48"),
        has_ipv6=True,
    )
    host = [ip_network("192.0.2.0/24")]
    check_routes([routing("192.168.3.0/24", "2001:db8:2::/64")], [other], [NETWORK], [back], host)
    with pytest.raises(TakenError) as raised:
        check_routes(nics, [other], [NETWORK], [back], host)
    assert f"{error}: expected a range that nothing else has" in raised.value.sentence
