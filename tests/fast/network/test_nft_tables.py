"""What listings of nftables contain, and what a failed request means."""

import errno
import os
from collections.abc import Iterator
from ipaddress import IPv4Address
from typing import Any

import pytest

from solo5_systemd.network.nft_elements import Ruleset
from solo5_systemd.network.nft_objects import Element, listed_elements, listed_rules, unquoted
from solo5_systemd.network.nft_rules import DYNAMIC, FLOWS, tables
from solo5_systemd.network.nft_tables import Tables


def test_elements_that_the_kernel_adds_are_none_of_the_services() -> None:
    """Also in a listing of nftables 1.0.6, which has no flag `dynamic`."""
    for name in DYNAMIC:
        listed = {"family": "ip", "name": name, "type": "inet_service", "size": 65536, "elem": [53, 5353]}
        assert list(listed_elements([{"set": listed}], DYNAMIC)) == []
    assert FLOWS in DYNAMIC
    assert len(DYNAMIC) == "".join(tables(Ruleset(), owned=False).values()).count("flags dynamic")


def test_a_listing_has_the_rules_and_the_elements_of_a_table() -> None:
    """As nftables lists them: protocols by number without an /etc/protocols, an element with its counter, 64 bits."""
    map_of_ports: dict[str, Any] = {
        "family": "ip",
        "name": "published",
        "handle": 4,
        "type": ["inet_proto", "inet_service"],
    }
    a_set: dict[str, Any] = {"family": "bridge", "name": "guests6", "handle": 5, "type": {"typeof": {"concat": []}}}
    address: dict[str, Any] = {
        "concat": [
            {"elem": {"val": "s5-a", "counter": {}}}, {"prefix": {"addr": "10.0.0.0", "len": 8}},
            {"range": ["10.0.0.2", "10.0.0.9"]}, -1,
        ]
    }  # fmt: skip
    egress: dict[str, Any] = {"family": "ip", "name": "egress", "type": "ipv4_addr"}
    rates: dict[str, Any] = {"family": "bridge", "name": "sent_bytes", "handle": 6, "type": "ifname"}
    table: dict[str, Any] = {"family": "ip", "name": "solo5", "handle": 7}
    rule: dict[str, Any] = {"chain": "limited", "handle": 8, "expr": []}
    listed: list[dict[str, Any]] = [
        {"metainfo": {}},
        {"table": table},
        {"map": map_of_ports | {"elem": [[{"concat": [6, 80]}, {"concat": ["10.89.0.2", 8080]}]]}},
        {"set": a_set | {"elem": [address]}},
        {"limit": {"name": "sent_bytes-s5-a", "rate": 1000, "rate_unit": "kbytes", "burst": 131072}},
        {"map": rates | {"elem": [["s5-a", "sent_bytes-s5-a"], ["s5-b", "none"]]}},
        {"map": egress | {"elem": [["10.0.0.2", "egress-10.0.0.2"]]}},
        {"chain": {"name": "egress-10.0.0.2"}},
        {"rule": {"chain": "egress-10.0.0.2", "expr": [{"match": {}}, {"return": None}], "comment": "10.0.0.0/8"}},
        {"rule": {"chain": "egress-10.0.0.2", "expr": [{"accept": None}]}},
        {"rule": {"chain": "egress-10.0.0.2", "expr": [{"goto": {"target": "unlisted"}}]}},
        {"rule": rule},
    ]
    elements = [
        Element(family="ip", name="published", key=("tcp", "80"), value=("10.89.0.2", "8080")),
        Element(family="bridge", name="guests6", key=("s5-a", "10.0.0.0/8", "10.0.0.2-10.0.0.9", str(2**64 - 1))),
        Element(family="bridge", name="sent_bytes", key=("s5-a",), value=("1024000", "131072")),
        Element(family="bridge", name="sent_bytes", key=("s5-b",), value=("none",)),
        Element(family="ip", name="egress", key=("10.0.0.2",), value=("10.0.0.0/8", "")),
    ]
    assert list(listed_elements(listed, DYNAMIC)) == elements
    assert unquoted(Element(family="ip", name="paths", key=('"s5-a"',))).key == ("s5-a",)
    made_again = [each | ({"table": table | {"handle": 9}} if "table" in each else {}) for each in listed]
    assert listed_rules(listed) != listed_rules(made_again), "without the elements of dynamic sets"
    other = [each | ({"rule": rule | {"handle": 9}} if each.get("rule") is rule else {}) for each in listed]
    assert listed_rules(listed) == listed_rules(other), "the handle of a rule does not count, nor does an element"
    assert len(listed_rules(listed)) == 6, "without what belongs to one guest"


@pytest.mark.parametrize(("code", "may"), [(errno.ENOENT, False), (0, True), (errno.EPERM, True)])
@pytest.mark.parametrize("lost", [False, True])
def test_a_failed_lookup_is_a_flow_that_may_exist(code: int, may: bool, lost: bool) -> None:
    class Netfilter:
        def request(self, *_: object) -> Iterator[tuple[int, bytes]]:
            if lost or code:
                raise OSError(errno.ENOBUFS if lost else code, os.strerror(code))
            yield 0, bytes(4)

    tables = object.__new__(Tables)
    tables._netfilter = Netfilter()  # type: ignore[assignment]
    tables._flows_are_lost = False
    assert tables.may_have_flows(IPv4Address("10.89.0.2")) == (may or lost)
