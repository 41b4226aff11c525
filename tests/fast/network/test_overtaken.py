"""Routes of other programs that take the packets for guests."""

from ipaddress import IPv4Address, IPv4Network, IPv6Network

import pytest

from solo5_systemd.names import NetworkName
from solo5_systemd.network.model import UNREPAIRED
from solo5_systemd.network.overtaken import ForeignRoute, in_main_table, overtakes, remedy, sentence

BRIDGE = "solo5-default"
INSIDE, INSIDE6 = IPv4Network("10.88.0.0/16"), IPv6Network("2001:db8:1::/64")
VPN = ForeignRoute(prefix=IPv4Network("10.88.5.0/24"), link="wg0")

ROUTE = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0
solo5-default\t0000580A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
wg0\t0000000A\t00000000\t0001\t0\t0\t0\t000000FF\t0\t0\t0
wg0\t0005580A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
"""
ROUTE6 = """\
20010db8000100000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 1 0 00000001 solo5-default
fe800000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 1 0 00000001 solo5-default
fe800000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 1 0 00000001 wg0
ff000000000000000000000000000000 08 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 1 0 00000001 solo5-default
ff000000000000000000000000000000 08 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 1 0 00000001 wg0
20010db8000100000000000000000001 80 00000000000000000000000000000000 00 00000000000000000000000000000000 00000000 3 0 80200001 lo
20010db8000100000000000000000700 78 00000000000000000000000000000000 00 00000000000000000000000000000000 00000400 1 0 00000001 wg0
20010db8000000000000000000000000 20 00000000000000000000000000000000 00 00000000000000000000000000000000 00000400 1 0 00000001 wg0
"""  # noqa: E501 - as the kernel writes it


def added(route: str, *prefixes: str) -> str:
    lines = []
    for text in prefixes:
        prefix = IPv4Network(text)
        address, mask = (part.packed[::-1].hex().upper() for part in (prefix.network_address, prefix.netmask))
        lines.append(f"{BRIDGE}\t{address}\t00000000\t0001\t0\t0\t0\t{mask}\t0\t0\t0\n")
    return route + "".join(lines)


def test_doctor_finds_more_specific_routes_of_both_families() -> None:
    found = in_main_table(ROUTE, ROUTE6, [BRIDGE, "missing"])
    assert [(each.bridge, str(each.inside), str(each.route)) for each in found] == [
        (BRIDGE, "10.88.0.0/16", "route 10.88.5.0/24 of link wg0"),
        (BRIDGE, "2001:db8:1::/64", "route 2001:db8:1::700/120 of link wg0"),
    ]
    assert in_main_table("", "", [BRIDGE]) == ()
    remedied = added(ROUTE, "10.88.5.0/25", "10.88.5.128/25")
    assert in_main_table(remedied + "half a line", "", [BRIDGE]) == ()
    assert len(in_main_table(added(ROUTE, "10.88.5.0/25"), "", [BRIDGE])) == 1, "half a remedy"


@pytest.mark.parametrize(
    ("route", "taken"),
    [
        (VPN, True),
        (ForeignRoute(prefix=INSIDE, link="wg0"), True),
        (ForeignRoute(prefix=IPv4Network("10.0.0.0/8"), link="wg0"), False),
        (ForeignRoute(prefix=IPv4Network("0.0.0.0/0"), link="eth0"), False),
        (ForeignRoute(prefix=IPv4Network("0.0.0.0/0"), link="tailscale0", table=52), True),
        (ForeignRoute(prefix=INSIDE6, link="wg0"), False),
        (ForeignRoute(), True),
    ],
)
def test_a_wider_route_of_the_main_table_takes_nothing(route: ForeignRoute, taken: bool) -> None:
    assert overtakes(route, INSIDE) is taken


@pytest.mark.parametrize(
    ("route", "inside", "command"),
    [
        (
            VPN,
            INSIDE,
            "ip -4 route add 10.88.5.0/25 dev solo5-default && ip -4 route add 10.88.5.128/25 dev solo5-default",
        ),
        (
            ForeignRoute(prefix=IPv6Network("2001:db8:1::700/120"), link="wg0"),
            INSIDE6,
            "ip -6 route add 2001:db8:1::700/121 dev solo5-default && "
            "ip -6 route add 2001:db8:1::780/121 dev solo5-default",
        ),
        (ForeignRoute(prefix=IPv4Network("10.88.5.7"), link="wg0"), INSIDE, "ip -4 route delete 10.88.5.7/32 dev wg0"),
        (ForeignRoute(prefix=IPv4Network("10.88.5.7")), INSIDE, "ip -4 route delete 10.88.5.7/32"),
        (
            ForeignRoute(prefix=IPv4Network("0.0.0.0/0"), link="ts0", table=52),
            INSIDE,
            "ip -4 rule add priority 1 to 10.88.0.0/16 lookup main",
        ),
        (ForeignRoute(), INSIDE, "ip -4 route show"),
    ],
)
def test_each_route_has_its_remedy(route: ForeignRoute, inside: IPv4Network | IPv6Network, command: str) -> None:
    assert remedy(route, BRIDGE, inside) == command


def test_the_event_names_route_guests_and_remedy() -> None:
    guests = [IPv4Address(f"10.88.5.{number}") for number in range(7, 12)]
    what = sentence(NetworkName("default"), BRIDGE, INSIDE, VPN, guests)
    assert what.startswith(
        f"{UNREPAIRED}route 10.88.5.0/24 of link wg0 takes the packets for 10.88.5.7, 10.88.5.8, 10.88.5.9 and 2 "
        "others of network default. Until the next boot, this gives them back: ip -4 route add 10.88.5.0/25 dev "
        "solo5-default && "
    )
    assert what.endswith("keep the other program out of 10.88.0.0/16, or set another range as network.default.ipv4")
    shown = str(ForeignRoute(prefix=IPv4Network("0.0.0.0/0"), link="ts0", table=52))
    assert shown == "route 0.0.0.0/0 of link ts0 in table 52"
    assert str(ForeignRoute()) == "a route that drops packets"
