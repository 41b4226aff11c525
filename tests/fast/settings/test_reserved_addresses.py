"""`reserved_addresses` of a network."""

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fast.settings.test_settings_model import parse

from solo5_systemd.base.errors import SettingsError
from solo5_systemd.settings.addresses import AddressRange, address_range, is_reserved, number_within


def test_an_address_or_a_range_of_either_family_is_read() -> None:
    ranges = '[network.a]\nipv4 = "10.1.0.0/24"\nipv6 = "fd00:1::/64"\n'
    known = parse(f'{ranges}reserved_addresses = ["10.1.0.2-10.1.0.9", "fd00:1::5"]').networks
    found = next(each for each in known if each.name == "a").policy.reserved_addresses
    assert [*map(str, found)] == ["10.1.0.2-10.1.0.9", "fd00:1::5"]
    assert [is_reserved(ip_address(each), found) for each in ("10.1.0.1", "10.1.0.2", "10.1.0.9", "10.1.0.10")] == [
        False,
        True,
        True,
        False,
    ]
    assert is_reserved(IPv6Address("fd00:1::5"), found)
    assert not is_reserved(IPv6Address("::a01:2"), found), "the same number of the other family"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('reserved_addresses = ["10.0.0.2"]', "expected addresses inside a range that is set as ipv4"),
        (
            'ipv4 = "10.1.0.0/24"\nreserved_addresses = ["10.2.0.2"]',
            "reserved_addresses is ['10.2.0.2']: expected addresses inside 10.1.0.0/24",
        ),
        ('ipv4 = "10.1.0.0/24"\nreserved_addresses = ["10.1.0.250-10.1.1.2"]', "expected addresses inside 10.1.0.0/24"),
        ('ipv4 = "10.1.0.0/24"\nreserved_addresses = ["10.1.0.9-10.1.0.2"]', "'10.1.0.9-10.1.0.2' is not a range"),
        ('ipv4 = "10.1.0.0/24"\nreserved_addresses = ["10.1.0.2-fd00::1"]', "is not a range of addresses"),
        ('ipv4 = "10.1.0.0/24"\nreserved_addresses = ["10.1.0.0/28"]', "is not a range of addresses"),
        ("reserved_addresses = 3", "network.a.reserved_addresses is 3: expected a list of strings"),
        ("join = 'br0'\nreserved_addresses = []", "network.a.reserved_addresses is set as well as join"),
    ],
)
def test_a_wrong_value_is_one_sentence(text: str, words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse(f"[network.a]\n{text}")
    assert words in str(caught.value)


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 60)), max_size=6), st.integers(0, 200), st.integers(0, 100)
)
def test_reserved_addresses_are_counted_once(ranges: list[tuple[int, int]], first: int, length: int) -> None:
    reserved = [AddressRange(IPv4Address(low), IPv4Address(low + size)) for low, size in ranges]
    guests = AddressRange(IPv4Address(first), IPv4Address(first + length))
    each = [
        address for address in range(first, first + length + 1) if is_reserved(IPv4Address(address), tuple(reserved))
    ]
    assert number_within(guests, reserved) == len(each)


@pytest.mark.parametrize("text", ["", "-", "-10.0.0.1", "a-b", "10.0.0.1-10.0.0.2-10.0.0.3"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="is not a range of addresses"):
        address_range(text)
    assert str(address_range("10.0.0.1 - 10.0.0.3")) == "10.0.0.1-10.0.0.3"
