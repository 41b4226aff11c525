"""Texts that a job, an image or a caller chose: a value, or a refusal in one sentence, in linear time."""

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.hostile.claim import value_or_refusal
from tests.hostile.values import NUMBERS, TEXTS

from solo5_systemd.errors import InvalidRequestError
from solo5_systemd.names import TaskName, device_name, network_name, task_name
from solo5_systemd.network.model import Lease, NetworkOverview, NicRequest, PortRequest, Wire, ipv4_address, mac_address
from solo5_systemd.networkd.service import _request
from solo5_systemd.nomad.config.schema import seconds
from solo5_systemd.nomad.workload.convert import name_of
from solo5_systemd.settings.hosts import host
from solo5_systemd.settings.resolver import hostname, name_server, search_domain
from solo5_systemd.unit.log_fields import labels
from solo5_systemd.unit.placeholders import expand
from solo5_systemd.unit.properties import SETTABLE, parse_property

LONG = {
    "digits": "1" * 1_000_000,
    "dots": "1." * 500_000,
    "blanks": " " * 1_000_000,
    "parts": "1s" * 500_000,
    "no unit": "1" * 1_000_000 + "x",
    "braces": "{" * 1_000_000,
    "open": "{a" * 500_000,
    "commas": "1," * 100_000,
    "range": "0-99999999999",
    "ranges": "0-9999," * 100_000,
    "colons": "a:" * 500_000,
}
"""Texts of a length and shape with which an expression that backtracks takes hours."""

ONE_TEXT = [
    task_name, device_name, network_name, ipv4_address, mac_address, name_server, search_domain, hostname, host,
]  # fmt: skip


@pytest.mark.parametrize("parse", ONE_TEXT, ids=lambda parse: parse.__name__)
@given(TEXTS)
def test_any_text_is_a_value_or_one_sentence(parse: Callable[[str], object], text: str) -> None:
    value_or_refusal(parse, text, error=InvalidRequestError)


@pytest.mark.parametrize("name", sorted(SETTABLE))
@given(TEXTS | st.sampled_from(["0-99999999999", "/dev/vda 1M", "/dev/vda\t1M", "~@mount", "1:2", "infinity", "5%"]))
def test_any_text_is_a_propertys_value_or_one_sentence(name: str, text: str) -> None:
    value_or_refusal(parse_property, name, text, error=InvalidRequestError)


@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=3))
def test_any_pairs_are_labels_or_one_sentence(pairs: list[tuple[str, str]]) -> None:
    value_or_refusal(labels, pairs, error=InvalidRequestError)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), max_size=3))
def test_any_arguments_are_a_command_line_or_one_sentence(arguments: list[str]) -> None:
    value_or_refusal(expand, arguments, {"name": "web"}, {"mirage": ("a", "b")}, error=InvalidRequestError)


@given(TEXTS)
@example("1h30m")
def test_any_text_of_a_duration_is_seconds_or_an_error_that_its_reader_expects(text: str) -> None:
    try:
        found = seconds(text)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - what passes is told from what refuses
    else:
        assert 0 <= found < 1e100


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_task_id_has_a_name(text: str) -> None:
    assert task_name(name_of(text)) == name_of(text)


NICS = st.lists(st.tuples(TEXTS, TEXTS, TEXTS, TEXTS), max_size=2)
PORT_NUMBERS = st.integers(0, 65535)
PORTS = st.lists(st.tuples(TEXTS, TEXTS, PORT_NUMBERS, PORT_NUMBERS, TEXTS), max_size=2)
LIMITS = st.lists(st.tuples(TEXTS, TEXTS, TEXTS), max_size=2)


@given(TEXTS, NICS, PORTS, LIMITS)
def test_the_body_of_a_reservation_is_read_or_refused(
    name: str,
    nics: list[tuple[str, str, str, str]],
    ports: list[tuple[str, str, int, int, str]],
    limits: list[tuple[str, str, str]],
) -> None:
    read = value_or_refusal(_request, name, nics, ports, limits, error=InvalidRequestError)
    assert read is None or read[0] == TaskName(name)


@given(NICS, PORTS)
def test_a_request_that_was_read_is_written_as_the_same_request(
    nics: list[tuple[str, str, str, str]], ports: list[tuple[str, str, int, int, str]]
) -> None:
    for nic in nics:
        request = value_or_refusal(NicRequest.from_wire, nic, error=InvalidRequestError)
        assert request is None or NicRequest.from_wire(request.to_wire()) == request
    for port in ports:
        published = value_or_refusal(PortRequest.from_wire, port, error=InvalidRequestError)
        assert published is None or PortRequest.from_wire(published.to_wire()) == published


@given(st.tuples(*[TEXTS] * 7, PORT_NUMBERS, TEXTS, TEXTS))
def test_the_body_of_a_lease_is_read_or_refused(wire: tuple[str | int, ...]) -> None:
    lease = value_or_refusal(Lease.from_wire, wire, error=InvalidRequestError)
    assert lease is None or Lease.from_wire(lease.to_wire()) == lease


NETWORK = (*[TEXTS] * 4, NUMBERS, st.booleans(), st.booleans(), NUMBERS, NUMBERS)
POLICY = (
    st.booleans(),
    st.lists(TEXTS),
    st.booleans(),
    st.lists(TEXTS),
    st.booleans(),
    NUMBERS,
    st.booleans(),
    st.booleans(),
)
COUNTS = st.lists(st.tuples(TEXTS, NUMBERS), max_size=2)
JOIN = st.just((False, 0, "", False))
OTHERS = st.tuples(TEXTS, TEXTS, *(st.lists(TEXTS, max_size=2) for _ in ("servers", "search", "reserved")))
DROPS = st.tuples(COUNTS, COUNTS, COUNTS, st.lists(st.tuples(TEXTS, TEXTS, NUMBERS), max_size=2))


IPV6 = st.tuples(TEXTS, TEXTS, st.booleans(), st.booleans(), st.booleans())


@given(st.tuples(*NETWORK, *POLICY, COUNTS, COUNTS, JOIN, OTHERS, DROPS, IPV6, TEXTS))
def test_the_body_of_a_network_is_read_or_refused(wire: Wire) -> None:
    network = value_or_refusal(NetworkOverview.from_wire, wire, error=InvalidRequestError)
    assert network is None or NetworkOverview.from_wire(network.to_wire()) == network


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_a_long_text_takes_no_longer_than_its_length(text: str) -> None:
    for parse in ONE_TEXT:
        value_or_refusal(parse, text, error=InvalidRequestError)
    for name in SETTABLE:
        value_or_refusal(parse_property, name, text, error=InvalidRequestError)
    value_or_refusal(expand, [text], {"name": "web"}, error=InvalidRequestError)
    with pytest.raises(ValueError, match="is not a duration"):
        seconds(text)
