"""`network ls` and `network inspect`."""

import json
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Interface, IPv6Network

import pytest
from tests.fast.cli.conftest import Solo5ctl
from tests.support.fakes.engine import FakeRuntime
from tests.support.fakes.tasks import LEASE, NETWORK, running

from solo5_systemd.base.names import NetworkName, TaskName
from solo5_systemd.network.drops import Dropped
from solo5_systemd.network.model import Reservation
from solo5_systemd.network.overview import NetworkOverview
from solo5_systemd.settings.addresses import AddressRange, address_range
from solo5_systemd.settings.network_policy import Join

UNUSED = NetworkOverview(name=NetworkName("lab"), bridge="solo5-lab", mtu=9000, masquerade=False, up=False, leases=0)


LAN = NetworkOverview(
    name=NetworkName("lan"), bridge="br0", mtu=1500, masquerade=False, up=True, leases=1, join=Join(vlan=20)
)
POOL = Join(pool=address_range("192.168.1.200-192.168.1.230"), ipv6=True)
POOLED = replace(
    LAN, ipv4=IPv4Network("192.168.1.0/24"), gateway4=IPv4Address("192.168.1.1"), free=30, up=False, mtu=0, join=POOL
)

NOTHING = {
    **dict.fromkeys(("routed", "isolated", "metadata", "fragments", "dhcp"), False),
    **{key: list[str]() for key in ("reach", "host", "rate", "reserved_addresses", "routes")},
    "connections": 4096,
    "sleep": True,
    "idle_min": 5,
}
OPENED = NOTHING | {"reach": ["lab"], "host": ["53/udp"], "connections": 64}


@pytest.fixture
def engine() -> FakeRuntime:
    engine = FakeRuntime(running("web", networked=True), running("api"))
    engine.machine.networks.overview = (NETWORK, UNUSED)
    return engine


def test_ls(solo5ctl: Solo5ctl) -> None:
    assert solo5ctl("network", "ls").out == (
        "NAME     BRIDGE         RANGE         GATEWAY    IN USE  FREE\n"
        "default  solo5-default  10.89.0.0/24  10.89.0.1  1       252\n"
        "lab      solo5-lab      -             -          0       -\n"
    )
    assert solo5ctl("network", "ls", "-q").out == "default\nlab\n"


def test_ls_json_has_no_keys_for_unknown_values(solo5ctl: Solo5ctl) -> None:
    used, unused = json.loads(solo5ctl("network", "ls", "--json").out)
    default = {"name": "default", "bridge": "solo5-default", "mtu": 1500, "masquerade": True, "up": True, "in_use": 1}
    assert used == {**default, **OPENED, "ipv4": "10.89.0.0/24", "free": 252, "gateway4": "10.89.0.1"}
    lab = {"name": "lab", "bridge": "solo5-lab", "mtu": 9000, "masquerade": False, "up": False, "in_use": 0}
    assert unused == {**lab, **NOTHING}


def test_inspect_shows_the_leases(solo5ctl: Solo5ctl) -> None:
    text = solo5ctl("network", "inspect", "default", "lab").out
    assert f"     Lease: 10.89.0.2 {LEASE.mac} web/service\n" in text
    assert "     Range: assigned on first use\n" in text
    keys = {"Reaches: lab", "Masquerade: yes", "Sleep: yes", "Least idle seconds: 5", "Rate limits: none"}
    assert keys <= {line.strip() for line in text.splitlines()}
    assert "Egress: everything that the other keys permit\n" in text
    assert not {"NAT66", "Advertised"} & {line.partition(":")[0].strip() for line in text.splitlines()}
    assert "    Host: 53/udp\n" in text
    assert "Refused: 10.89.0.2 17 packets over the connection limit\n" in text
    assert "Dropped: 10.89.0.2 5 fragments\n" in text
    (document,) = json.loads(solo5ctl("network", "inspect", "--json", "default").out)
    none = dict.fromkeys(("egress", "sent_rate", "received_rate", "spoofed", "unsafe", "broadcasts"), 0)
    lease = {"task": "web", "nic": "service", "ipv4": "10.89.0.2", "mac": LEASE.mac, "tap": LEASE.tap}
    counts = {"refused": 17, "fragments": 5, "drops": {**none, "connections": 17, "fragments": 5}}
    assert document["leases"] == [{**lease, **counts}]


def test_a_joined_network_is_shown_with_its_bridge_and_the_source_of_addresses(
    solo5ctl: Solo5ctl, engine: FakeRuntime
) -> None:
    engine.machine.networks.overview = (LAN, replace(POOLED, name=NetworkName("pooled")))
    lease = replace(LEASE, network=NetworkName("lan"), ipv4=None, gateway4=None)
    engine.machine.networks.held[TaskName("web")] = Reservation(task=TaskName("web"), leases=(lease,))
    assert solo5ctl("network", "ls").out.splitlines()[1:] == [
        "lan     br0     -               -            1       -",
        "pooled  br0     192.168.1.0/24  192.168.1.1  1       30",
    ]
    text = solo5ctl("network", "inspect", "lan", "pooled").out
    for line in (
        "Joins: br0 (exists)",
        "Joins: br0 (missing)",
        "VLAN: 20",
        "VLAN: of a new port",
        "IPv6 addresses: any",
    ):
        assert f" {line}\n" in text
    assert "Addresses: by DHCP of the LAN, or none\n" in text
    assert "Addresses: leased from 192.168.1.200-192.168.1.230\n" in text
    assert not {"Masquerade", "Routed", "Reaches"} & {line.partition(":")[0].strip() for line in text.splitlines()}
    requested = replace(POOLED, free=None, join=Join())
    engine.machine.networks.overview = (requested,)
    text = solo5ctl("network", "inspect", "lan").out
    assert "Addresses: requested by each NIC\n" in text
    assert "IPv6 addresses: none\n" in text
    lan = json.loads(solo5ctl("network", "ls", "--json").out)[0]
    assert (lan["join"], lan["ipv6"], lan["ipv4"]) == (True, False, "192.168.1.0/24")
    assert not {"vlan", "pool", "free"} & lan.keys()
    engine.machine.networks.overview = (replace(POOLED, join=replace(POOL, vlan=20)),)
    lan = json.loads(solo5ctl("network", "ls", "--json").out)[0]
    assert (lan["vlan"], lan["pool"], lan["free"]) == (20, "192.168.1.200-192.168.1.230", 30)


def test_a_joined_network_with_leased_ipv6_addresses_is_shown_with_their_source(
    solo5ctl: Solo5ctl, engine: FakeRuntime
) -> None:
    prefix = IPv6Network("2001:db8:1::/64")
    six = replace(POOLED, ipv6=prefix, join=replace(POOL, ipv6=True))
    pooled6 = replace(POOL, pool6=AddressRange(prefix[2], prefix[9]))
    for overview, lines, keys in (
        (six, ("IPv6 addresses: leased from 2001:db8:1::/64", "IPv6 gateway: -"), {}),
        (
            replace(six, gateway6=IPv6Address("fe80::1"), join=pooled6),
            ("IPv6 addresses: leased from 2001:db8:1::2-2001:db8:1::9", "IPv6 gateway: fe80::1"),
            {"pool6": "2001:db8:1::2-2001:db8:1::9", "gateway6": "fe80::1"},
        ),
    ):
        engine.machine.networks.overview = (overview,)
        text = solo5ctl("network", "inspect", "lan").out
        for line in ("IPv6 prefix: 2001:db8:1::/64", *lines):
            assert f"{line}\n" in text
        lan = json.loads(solo5ctl("network", "ls", "--json").out)[0]
        assert lan["ipv6"] == "2001:db8:1::/64"
        assert {key: value for key, value in lan.items() if key in ("pool6", "gateway6", "ra", "nat66")} == keys


def test_a_network_with_ipv6_is_shown_with_its_prefix(solo5ctl: Solo5ctl, engine: FakeRuntime) -> None:
    task = running("web", networked=True)
    address, gateway = IPv6Address("fd00:1::7"), IPv6Address("fd00:1::1")
    counts = Dropped(rules={("connections", str(address)): 3, **NETWORK.dropped.rules})
    six = replace(NETWORK, ipv6=IPv6Network("fd00:1::/64"), gateway6=gateway, nat66=True, ra=True, dropped=counts)
    engine.machine.networks.overview = (six,)
    lease = replace(LEASE, ipv6=IPv6Interface("fd00:1::7/64"), gateway6=gateway)
    engine.known[task.name] = task._replace(reservation=Reservation(task=task.name, leases=(lease,)))
    text = solo5ctl("network", "inspect", "default").out
    shown = ("IPv6 prefix: fd00:1::/64", "IPv6 gateway: fd00:1::1", "Advertised: yes", "NAT66: yes")
    assert [line for line in (*shown, "Refused: fd00:1::7 3 packets") if line not in text] == []
    assert f"Lease: 10.89.0.2 fd00:1::7 {LEASE.mac} web/service\n" in text
    (document,) = json.loads(solo5ctl("network", "inspect", "--json", "default").out)
    assert (document["ipv6"], document["gateway6"], document["nat66"]) == ("fd00:1::/64", "fd00:1::1", True)
    assert document["ra"] is True
    assert (document["leases"][0]["ipv6"], document["leases"][0]["refused"]) == ("fd00:1::7", 20)


def test_an_unknown_network_is_one_sentence(solo5ctl: Solo5ctl) -> None:
    result = solo5ctl("network", "inspect", "dmz")
    assert result.status == 125
    assert result.err.startswith("solo5ctl: no network is named 'dmz': expected one of default, lab.\n")


def test_without_a_verb_networks_are_listed_and_a_name_is_inspected(solo5ctl: Solo5ctl) -> None:
    assert solo5ctl("network") == solo5ctl("network", "ls")
    assert solo5ctl("network", "--json") == solo5ctl("network", "ls", "--json")
    assert solo5ctl("network", "default") == solo5ctl("network", "inspect", "default")
    assert solo5ctl("network", "--json", "lab", "default") == solo5ctl("network", "inspect", "--json", "lab", "default")


def test_a_network_with_ipv6_alone_is_shown_as_such(solo5ctl: Solo5ctl, engine: FakeRuntime) -> None:
    prefix, gateway = IPv6Network("fd00:1::/64"), IPv6Address("fd00:1::1")
    alone = replace(NETWORK, ipv4=None, gateway4=None, masquerade=False, without_ipv4=True)
    engine.machine.networks.overview = (alone,)
    assert "Range: none: IPv6 only\n" in solo5ctl("network", "inspect", "default").out
    engine.machine.networks.overview = (replace(alone, ipv6=prefix, gateway6=gateway),)
    assert "\nGateway:" not in solo5ctl("network", "inspect", "default").out
    _, row = solo5ctl("network", "ls").out.splitlines()
    assert row.split()[2:4] == ["fd00:1::/64", "fd00:1::1"]
