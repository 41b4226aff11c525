"""Texts that a job, an image or a caller chose: a value, or a refusal in one sentence, in linear time."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.hostile.claim import value_or_refusal
from tests.hostile.values import TEXTS, changed
from tests.support.fakes.tasks import LEASE, NETWORK, PORTS

from solo5_systemd.base.decode import Fields
from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.base.names import device_name, network_name, task_name
from solo5_systemd.network.model import GuestNames, Lease, Limits, NicRequest, Request, mac_address
from solo5_systemd.network.overview import NetworkOverview
from solo5_systemd.nomad.workload import name_of
from solo5_systemd.settings.addresses import ipv4_address
from solo5_systemd.settings.records import document, record
from solo5_systemd.settings.resolver import host, hostname, resolver
from solo5_systemd.task.log_fields import labels
from solo5_systemd.task.placeholders import expand
from solo5_systemd.task.properties import SETTABLE, parse_property
from solo5_systemd.task.quantities import seconds

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


def name_server(text: str) -> object:
    return resolver([text], [])


ONE_TEXT: list[Callable[[str], object]] = [
    task_name,
    device_name,
    network_name,
    ipv4_address,
    mac_address,
    name_server,
    hostname,
    host,
]


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
    value_or_refusal(expand, arguments, {"name": "web"}, [LEASE], error=InvalidRequestError)


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


SOUND: dict[type[Any], object] = {
    Request: Request(
        nics=(NicRequest(nic=LEASE.nic, ipv4=LEASE.address, mac=LEASE.mac, limits=Limits(egress=())),),
        ports=PORTS,
        names=GuestNames(resolver=resolver(["9.9.9.9"], ["lan"]), hostname="web"),
        namespace="/run/a",
    ),
    Lease: LEASE,
    NetworkOverview: NETWORK,
}
"""Records that arrive by D-Bus."""


@pytest.mark.parametrize("kind", SOUND)
@given(st.data())
def test_a_record_with_any_values_is_read_or_refused(kind: type[Any], data: st.DataObject) -> None:
    content = data.draw(changed(document(SOUND[kind])))
    found = value_or_refusal(lambda: record(kind, Fields(content)), error=InvalidRequestError)
    assert found is None or record(kind, Fields(document(found))) == found


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_a_long_text_takes_no_longer_than_its_length(text: str) -> None:
    for parse in ONE_TEXT:
        value_or_refusal(parse, text, error=InvalidRequestError)
    for name in SETTABLE:
        value_or_refusal(parse_property, name, text, error=InvalidRequestError)
    value_or_refusal(expand, [text], {"name": "web"}, error=InvalidRequestError)
    with pytest.raises(ValueError, match="is not a time"):
        seconds(text)
