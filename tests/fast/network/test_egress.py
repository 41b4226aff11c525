"""Egress lists: their texts, their intersection, and the rules that they become."""

from dataclasses import replace
from ipaddress import ip_address
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fast.network.test_nft_rules import network

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import DeviceName
from solo5_systemd.network.model import NO_LIMITS, Limits, NicRequest, Request
from solo5_systemd.network.request_checks import check_limits
from solo5_systemd.settings.egress import Destination, Egress, destination, egress, intersection
from solo5_systemd.settings.network import NO_NETWORK
from solo5_systemd.settings.network_policy import Join, NetworkPolicy
from solo5_systemd.settings.rate import UNLIMITED, Rate, rate
from solo5_systemd.settings.records import document
from solo5_systemd.settings.solo5_toml import parse_settings

SERVICE = DeviceName("service")
USUAL = (
    "10.0.0.0/8:5432/tcp 192.0.2.7 192.0.2.7:53 192.0.2.7:53/udp 10.1.0.0/16:8000-8100/tcp 10.2.0.0/16/icmp 0.0.0.0/0 "
    "[2001:db8::/32]:443/tcp [2001:db8::1] [::/0]:1-65535"
)
OTHER_FORMS = {
    "192.0.2.7/32": "192.0.2.7",
    "2001:db8::1": "[2001:db8::1]",
    "2001:db8::/32/tcp": "[2001:db8::/32]/tcp",
    "192.0.2.7:53-53/udp": "192.0.2.7:53/udp",
}


@pytest.mark.parametrize(("text", "usual"), [*((each, each) for each in USUAL.split()), *OTHER_FORMS.items()])
def test_an_entry_has_one_usual_form(text: str, usual: str) -> None:
    assert str(destination(text)) == usual


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("example.org", "'example.org' is not a destination: expected .* no name, which the guest alone resolves"),
        ("db:5432/tcp", "is not a destination"),
        ("10.0.0.0/8:0/tcp", "has ports that do not exist: expected 1 to 65535"),
        ("10.0.0.0/8:1-65536/tcp", "has ports that do not exist"),
        ("10.0.0.0/8:20-10/tcp", "expected 1 to 65535 of TCP or UDP, the lower one first"),
        ("10.0.0.1/8", "bits beyond its prefix: expected 10.0.0.0/8 for the range, or 10.0.0.1 for the address alone"),
        ("10.0.0.0/8:53/sctp", "is not a destination"),
        ("10.0.0.0/8:53/icmp", "has ports that do not exist"),
        ("10.0.0.0/33", "is not a destination: expected ADDRESS"),
        ("10.0.0", "is not a destination"),
        ("", "is not a destination"),
        ("10.0.0.1 10.0.0.2", "is not a destination"),
        ("10.0.0.1\n", "is not a destination"),
    ],
)
def test_an_entry_that_is_refused(text: str, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words) as refused:
        destination(text)
    assert str(refused.value).isprintable()


def test_a_list_is_bounded_and_none_is_alone() -> None:
    assert egress([]) == egress(["none"]) == ()
    assert egress(["192.0.2.7", "192.0.2.7/32"]) == (destination("192.0.2.7"),)
    assert len(egress([f"192.0.2.{number}" for number in range(64)])) == 64
    with pytest.raises(InvalidRequestError, match="egress has 65 entries: expected 64 or fewer"):
        egress([f"192.0.2.{number}" for number in range(65)])
    with pytest.raises(InvalidRequestError, match="'none' and other entries: expected 'none' alone"):
        egress(["none", "192.0.2.7"])


PROTOCOLS = st.sampled_from([None, "tcp", "udp", "icmp"])
POINTS = [("192.0.2.7", 7), ("192.0.2.8", 7), ("10.1.0.1", 80), ("2001:db8::1", 80), ("2001:db8::2", 7), ("::7", 79)]
WHERE = (
    "0.0.0.0/0", "192.0.2.0/29", "192.0.2.7", "10.0.0.0/8", "[::/0]", "[2001:db8::1]", "[2001:db8::/127]", "[::/1]",
)  # fmt: skip


@st.composite
def entries(draw: st.DrawFn) -> Destination:
    where = draw(st.sampled_from(WHERE))
    protocol = draw(PROTOCOLS)
    ports = draw(st.sampled_from(["", ":7", ":1-79", ":7-80"])) if protocol != "icmp" else ""
    return destination(f"{where}{ports}" + (f"/{protocol}" if protocol else ""))


def permits(listed: Egress, address: str, protocol: str, port: int) -> bool:
    def fits(entry: Destination) -> bool:
        if ip_address(address) not in entry.network:
            return False
        if entry.ports is not None:
            first, last = entry.ports
            return protocol in ("tcp", "udp") and entry.protocol in (None, protocol) and first <= port <= last
        return entry.protocol in (None, protocol)

    return listed is None or any(map(fits, listed))


LISTS = st.none() | st.lists(entries(), max_size=3).map(lambda listed: tuple(dict.fromkeys(listed)))


@given(LISTS, LISTS)
def test_what_two_lists_permit_is_what_each_permits(one: Egress, other: Egress) -> None:
    both = intersection(one, other)
    for (address, port), protocol in product(POINTS, ("tcp", "udp", "icmp", "gre")):
        expected = permits(one, address, protocol, port) and permits(other, address, protocol, port)
        assert permits(both, address, protocol, port) == expected, (address, port, protocol)
    assert both is None or egress(list(map(str, both))[:64]) == both[:64]


def test_the_networks_limits_apply_to_every_guest() -> None:
    policy = NetworkPolicy(egress=egress(["10.0.0.0/8"]), rate=Rate(sent=5000, received=7000))
    assert NO_LIMITS.under(policy) == Limits(egress=policy.egress, rate=policy.rate)
    wanted = Limits(egress=egress(["0.0.0.0/0:53/udp"]), rate=Rate(sent=9000, received=6000))
    assert wanted.under(policy) == Limits(egress=egress(["10.0.0.0/8:53/udp"]), rate=Rate(sent=5000, received=6000))
    assert wanted.under(NetworkPolicy()) == wanted
    assert NO_LIMITS.or_else(wanted) == wanted.or_else(NO_LIMITS) == wanted


def test_limits_are_checked_before_anything_is_made() -> None:
    capped = replace(network(), policy=NetworkPolicy(rate=Rate(sent=5000)))
    nic = NicRequest(nic=SERVICE, limits=Limits(egress=(), rate=Rate(sent=5000)))
    check_limits(Request(nics=(nic,)), [capped])
    with pytest.raises(InvalidRequestError, match="rate sent=6K is above the limit of network default for NIC service"):
        check_limits(Request(nics=(replace(nic, limits=Limits(rate=Rate(sent=6000))),)), [capped])
    with pytest.raises(InvalidRequestError, match="egress of NIC service cannot be enforced in network default"):
        check_limits(Request(nics=(nic,)), [replace(network(), join=Join())])


def test_what_waits_without_a_tap_is_on_a_network_with_packets_of_its_own() -> None:
    nic = NicRequest(nic=SERVICE)
    check_limits(Request(nics=(nic,), idle_s=60, idle_stops=True), [network()])
    for other, why in (
        (replace(network(), join=Join()), "joins bridge"),
        (replace(network(), name=NO_NETWORK), "no packets"),
    ):
        check_limits(Request(nics=(replace(nic, network=other.name),), idle_s=60), [other])
        with pytest.raises(InvalidRequestError, match=f"is to wait for packets without a tap, and network .* {why}"):
            check_limits(Request(nics=(replace(nic, network=other.name),), idle_s=60, idle_stops=True), [other])


def test_two_lists_with_too_much_in_common_are_refused() -> None:
    ports = [f"10.0.0.0/8:{port}/tcp" for port in range(1, 33)]
    addresses = [f"10.{number}.0.0/16" for number in range(9)]
    listed = replace(network(), policy=NetworkPolicy(egress=egress(addresses)))
    nic = NicRequest(nic=SERVICE, limits=Limits(egress=egress(ports)))
    with pytest.raises(InvalidRequestError, match="have 288 destinations in common: expected 256 or fewer"):
        check_limits(Request(nics=(nic,)), [listed])
    check_limits(Request(nics=(replace(nic, limits=Limits(egress=egress(ports[:28]))),)), [listed])


@pytest.mark.parametrize("text", ["[::1]:53/udp", "::", "fe80::/64", "[ff02::1]:53", "[::ffff:192.0.2.7]:53"])
def test_an_ipv6_address_that_no_guest_reaches_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="has an address that no guest reaches: expected a global or unique"):
        destination(text)
    assert destination("[::/0]").network.prefixlen == 0, "a range around them is none of them"


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([], UNLIMITED),
        (["sent=10M"], Rate(sent=10**7)),
        (["received=1500", "sent-packets=20K", "received-packets=10"],
         Rate(received=1500, sent_packets=20000, received_packets=10)),
        (["sent=1T"], Rate(sent=10**12)),
    ],
)  # fmt: skip
def test_a_rate_is_read_and_written(texts: list[str], expected: Rate) -> None:
    assert rate(texts) == expected
    assert rate(str(expected).split()) == expected


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["sent=0"], "rate 'sent=0' is out of range: expected 1K to 1T per second"),
        (["sent-packets=9"], "expected 10 to 1T per second"), (["sent=1001G"], "out of range"),
        (["10M"], "is not a limit: expected each of sent, received, sent-packets, received-packets at most once"),
        (["sent=10Mbit"], "is not a limit"), (["sent=-1"], "is not a limit"), (["sideways=1M"], "is not a limit"),
        (["sent=1M", "sent=2M"], "rate 'sent=2M' is not a limit"),
    ],
)  # fmt: skip
def test_a_rate_that_is_refused(texts: list[str], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        rate(texts)


def test_the_settings_of_a_network_have_both() -> None:
    table = {"egress": ["10.0.0.0/8:5432/tcp"], "rate": ["sent=10M"]}
    [parsed] = parse_settings({"network": {"default": table}}).networks
    assert document(parsed.policy, complete=True).items() >= table.items()
    [empty] = parse_settings({"network": {"default": {"egress": []}}}).networks
    assert empty.policy.egress == ()
    [unset] = parse_settings({}).networks
    assert "egress" not in document(unset.policy, complete=True)
    assert document(unset.policy, complete=True)["rate"] == []


def test_the_operator_permits_idle_times_by_network() -> None:
    request = Request(nics=(NicRequest(nic=SERVICE),), idle_s=60)
    check_limits(request, [replace(network(), policy=NetworkPolicy(idle_min=60))])
    awake = NetworkPolicy(sleep=False)
    for policy, expected in ((NetworkPolicy(idle_min=61), "61 s or more"), (awake, r"none \(sleep = false\)")):
        with pytest.raises(InvalidRequestError, match=f"of 60 s, which .* not permit: expected {expected}"):
            check_limits(request, [replace(network(), policy=policy)])
    check_limits(replace(request, idle_s=0), [replace(network(), policy=awake)])
