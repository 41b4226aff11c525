"""`ipv6`, `gateway6`, `nat66` and `ra` of a network."""

from ipaddress import IPv6Address, IPv6Network

import pytest
from tests.fast.settings.test_settings_model import parse

from solo5_systemd.base.errors import SettingsError
from solo5_systemd.settings.addresses import AddressRange
from solo5_systemd.settings.network_policy import Join, Network

PREFIX = IPv6Network("2001:db8:1::/64")
LAN = '[network.lan]\njoin = "br0"\n'
PREFIXED = f'{LAN}ipv6 = "{PREFIX}"\n'


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("", (None, None, None)),
        ("ipv6 = false", (False, None, None)),
        ("ipv6 = true", (True, None, None)),
        ("ipv6 = true\nnat66 = true", (True, None, None)),
        ('ipv6 = "2001:db8:1::/64"', (True, PREFIX, None)),
        (
            'ipv6 = "2001:db8:1::/64"\ngateway6 = "2001:db8:1::fe"',
            (True, PREFIX, IPv6Address("2001:db8:1::fe")),
        ),
        ("ipv6 = true\nra = true", (True, None, None)),
        ('ipv6 = "2001:db8:1::/64"\nra = true', (True, PREFIX, None)),
        ('ipv6 = "fd00:1::/120"\nmtu = 1280', (True, IPv6Network("fd00:1::/120"), None)),
    ],
)
def test_ipv6_is_a_word_or_a_prefix(text: str, read: tuple[object, ...]) -> None:
    network = parse(f"[network.default]\n{text}").networks[0]
    assert (network.has_ipv6, network.ipv6, network.gateway6) == read
    assert (network.nat66, network.ra) == ("nat66" in text, "ra = true" in text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ipv6 = 1", "network.default.ipv6 is 1: expected a string"),
        ('ipv6 = "yes"', "network.default.ipv6: "),
        ('ipv6 = "2001:db8::1/64"', "expected the range, 2001:db8::/64"),
        ('ipv6 = "2001:db8::/63"', "expected true, false, or a prefix of 64 to 120 bits"),
        ('ipv6 = "2001:db8::/121"', "a prefix of 64 to 120 bits"),
        ('ipv6 = "fe80::/64"', "global or unique local"),
        ('ipv6 = "ff02::/64"', "global or unique local"),
        ('ipv6 = "::ffff:0:0/96"', "global or unique local"),
        ("ipv6 = true\nmtu = 1279", "network.default.mtu is 1279: expected at least 1280 bytes with ipv6"),
        ('gateway6 = "2001:db8::1"', "network.default.gateway6 is set without ipv6"),
        ("ipv6 = false\nnat66 = true", "network.default.nat66 is set without ipv6"),
        ("ra = true", "network.default.ra is set without ipv6"),
        (
            'ipv6 = "fd00:1::/65"\nra = true',
            "network.default.ipv6 is 'fd00:1::/65': expected a prefix of 64 bits with ra",
        ),
        ('[network.lan]\njoin = "br0"\nra = true', "network.lan.ra is set as well as join"),
        ('ipv6 = true\ngateway6 = "2001:db8::1"', "expected an address inside the ipv6 prefix"),
        ('ipv6 = "2001:db8:1::/64"\ngateway6 = "2001:db8:1::"', "other than its first"),
        ('ipv6 = "2001:db8:1::/64"\ngateway6 = "2001:db8:2::1"', "gateway6 is '2001:db8:2::1'"),
        (
            'ipv6 = "2001:db8:1::/64"\n[network.b]\nipv6 = "2001:db8:1::/80"',
            "network.b.ipv6 is 2001:db8:1::/80, which overlaps network.default's 2001:db8:1::/64",
        ),
        ('[network.lan]\njoin = "br0"\nnat66 = true', "network.lan.nat66 is set as well as join"),
        (f"{LAN}gateway6 = 'fe80::1'", "network.lan.gateway6 is set without a prefix: expected one such as ipv6 ="),
        (f"{LAN}ipv6 = true\npool6 = 'fd00::1-fd00::2'", "network.lan.pool6 is set without a prefix"),
        (
            f"{PREFIXED}gateway6 = '2001:db8:2::1'",
            "network.lan.gateway6 is '2001:db8:2::1': expected the router's link",
        ),
        (f"{PREFIXED}pool6 = '2001:db8:2::1-2001:db8:2::2'", "expected host addresses inside the network's range"),
        (f"{PREFIXED}pool6 = '2001:db8:1::-2001:db8:1::2'", "expected host addresses inside the network's range"),
        (f"{PREFIXED}pool6 = '2001:db8:1::5-2001:db8:1::4'", "is not a range of addresses"),
        (
            f"{PREFIXED}pool6 = '2001:db8:1::1-2001:db8:1::4'\ngateway6 = '2001:db8:1::2'",
            "expected a pool without the gateway, 2001:db8:1::2",
        ),
        ("pool6 = 'fd00::1-fd00::2'", "network.default.pool6 is set without join"),
        (
            'ipv6 = "2001:db8:1::/64"\n' + PREFIXED,
            "network.lan.ipv6 is 2001:db8:1::/64, which overlaps network.default",
        ),
        (
            "[network.a]\nipv4 = false",
            "network.a.ipv4 is false: expected a range, or ipv6 = true in addition to ipv4 = false",
        ),
        ("[network.a]\nipv4 = false\nipv6 = false", "expected a range, or ipv6 = true in addition to ipv4 = false"),
        ("[network.a]\nipv4 = false\nipv6 = true\ngateway4 = '10.0.0.1'", "network.a.gateway4 is '10.0.0.1'"),
        ("[network.a]\nipv4 = false\nipv6 = true\ndhcp = true", "network.a.dhcp is true: expected false, as ipv4 is"),
        ("[network.a]\nipv4 = false\nipv6 = true\nmasquerade = true", "masquerade is true: expected false, as ipv4 is"),
        ("[network.namespace]\nipv4 = false\nipv6 = true", "network.namespace.ipv4 is false: expected a range"),
        ("[network.a]\njoin = 'br0'\nipv4 = false", "network.a.ipv4 is false: expected the LAN's range"),
    ],
)
def test_a_wrong_value_is_refused_in_one_sentence(text: str, words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse(f"[network.default]\n{text}")
    assert words in str(caught.value)


def test_a_bridge_of_others_has_any_address_or_those_of_a_prefix() -> None:
    def read(text: str) -> Network:
        return parse(text).networks[1]

    for text, may_send in (("", False), ("ipv6 = false", False), ("ipv6 = true", True)):
        assert (read(LAN + text).join, read(LAN + text).ipv6) == (Join(ipv6=may_send), None)
    assert (read(PREFIXED).join, read(PREFIXED).ipv6) == (Join(ipv6=True), PREFIX)
    for gateway in (IPv6Address("fe80::1"), PREFIX[1]):
        lan = read(f"{PREFIXED}gateway6 = '{gateway}'\npool6 = '{PREFIX[2]} - {PREFIX[9]}'")
        assert lan.join == Join(ipv6=True, pool6=AddressRange(PREFIX[2], PREFIX[9]))
        assert (lan.has_ipv6, lan.ipv6, lan.gateway6) == (True, PREFIX, gateway)


def test_a_network_can_have_ipv6_alone() -> None:
    alone = parse("[network.default]\nipv4 = false\nipv6 = true").networks[0]
    assert (alone.without_ipv4, alone.ipv4, alone.masquerade, alone.has_ipv6) == (True, None, False, True)
    for text in ("", "ipv4 = true", "ipv4 = true\nipv6 = true"):
        both = parse(f"[network.default]\n{text}").networks[0]
        assert (both.without_ipv4, both.ipv4, both.masquerade) == (False, None, True)
