"""Routes of guests: what a range is, and what the operator permits."""

from dataclasses import replace
from ipaddress import ip_network

import pytest
from tests.fast.network.test_nft_rules import linked_network

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import DeviceName
from solo5_systemd.network.guest_limits import Limits
from solo5_systemd.network.model import NicRequest
from solo5_systemd.networkd.choice import check_limits
from solo5_systemd.settings.egress import egress
from solo5_systemd.settings.guest_routes import ROUTES_MAX, is_within, overlapping, routes
from solo5_systemd.settings.network_policy import NetworkPolicy

NETWORK = linked_network("default")
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
        check_limits([nic], [replace(NETWORK, policy=policy)])
    assert error in raised.value.sentence
    assert ":" in route or nic.limits.under(policy).routes == (), (
        "nor where it has one from before a change of the settings"
    )
    if policy.routes:
        check_limits([replace(nic, limits=Limits(routes=routes(["192.168.2.0/24"])))],
                     [replace(NETWORK, policy=replace(policy, egress=None))])  # fmt: skip
