from dataclasses import replace
from ipaddress import IPv4Interface

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fakes.tasks import LEASE

from solo5_systemd.errors import InvalidRequestError
from solo5_systemd.names import DeviceName, TaskName
from solo5_systemd.unit.placeholders import COMMAND_LINE_MAX, expand, placeholders

VALUES = placeholders(TaskName("web"), 64, [LEASE])


@pytest.mark.parametrize(
    "argument, expanded",
    [
        ("plain", "plain"),
        ("", ""),
        ("{name}", "web"),
        ("{memory_mib}", "64"),
        ("{net.service.ipv4}", "10.89.0.2"),
        ("{net.service.ipv4_cidr}", "10.89.0.2/24"),
        ("{net.service.prefix4}", "24"),
        ("{net.service.netmask4}", "255.255.255.0"),
        ("{net.service.gateway4}", "10.89.0.1"),
        ("{net.service.mac}", "02:00:5e:10:00:01"),
        ("{net.service.mtu}", "1500"),
        ("{net.service.network}", "default"),
        ("{net.service.tap}", "s5-1f00c0de"),
        ("--a={name}:{name}", "--a=web:web"),
        ("{{name}}", "{name}"),
        ("{{{name}}}", "{web}"),
        ('{{"a": {{}}}}', '{"a": {}}'),
    ],
)
def test_a_placeholder_is_filled_and_a_doubled_brace_stands_for_itself(argument: str, expanded: str) -> None:
    assert expand([argument], VALUES) == (expanded,)


def test_every_nic_has_placeholders_of_its_own() -> None:
    second = replace(LEASE, nic=DeviceName("admin"), ipv4=IPv4Interface("10.9.0.7/16"))
    values = placeholders(TaskName("web"), 64, [LEASE, second])
    assert expand(["{net.admin.ipv4_cidr}", "{net.service.ipv4}"], values) == ("10.9.0.7/16", "10.89.0.2")


def test_a_value_is_never_expanded_again() -> None:
    assert expand(["{a}"], {"a": "{b}", "b": "no"}) == ("{b}",)


@pytest.mark.parametrize("argument", ["{", "}", "{}", "{nam}", "{net.other.ipv4}", "{name", "a}b", "{name }"])
def test_what_is_no_placeholder_is_refused_with_those_that_are(argument: str) -> None:
    with pytest.raises(InvalidRequestError, match="expected one of .*{name}.*Double the braces") as caught:
        expand([argument], VALUES)
    assert repr(argument) in str(caught.value)


def test_a_nul_byte_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="NUL"):
        expand(["a\0b"], VALUES)


def test_the_line_may_be_as_long_as_a_tender_takes_and_no_longer() -> None:
    half = "x" * (COMMAND_LINE_MAX // 2)
    assert expand([half, half], VALUES)  # with the blank in between: the limit itself
    with pytest.raises(InvalidRequestError, match="are 8192 bytes long: expected at most 8191"):
        expand([half, half + "x"], VALUES)


def test_length_is_counted_in_bytes() -> None:
    with pytest.raises(InvalidRequestError, match="are 8192 bytes"):
        expand(["ä" * 4096], VALUES)


@given(st.text(max_size=200).filter(lambda text: "\0" not in text))
def test_any_text_with_its_braces_doubled_reaches_the_guest_as_it_is(text: str) -> None:
    assert expand([text.replace("{", "{{").replace("}", "}}")], VALUES) == (text,)
