"""A job's unit properties beside the operator's."""

import pytest
from tests.support.fakes.refusal import refusal

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.nomad.plugin_config import TIGHTENING as USUALLY_ALLOWED
from solo5_systemd.nomad.workload import USUAL, merged_properties

TIGHTENING = (*USUALLY_ALLOWED, "IOReadBandwidthMax")
OPERATOR = (("TasksMax", "8"), ("IOReadBandwidthMax", "/dev/sda 10M"), ("SystemCallFilter", "~fork"))


@pytest.mark.parametrize(
    "key, text, operator",
    [
        ("TasksMax", "17", ()),
        ("TasksMax", "infinity", ()),
        ("TasksMax", "9", OPERATOR),
        ("LimitCORE", "1", ()),
        ("LimitCORE", "infinity", ()),
        ("LimitNOFILE", "1000000", ()),
        ("RuntimeMaxSec", "61s", (("RuntimeMaxSec", "1min"),)),
        ("MemoryHigh", "infinity", (("MemoryHigh", "64M"),)),
        ("IOReadBandwidthMax", "/dev/sda 11M", OPERATOR),
    ],
)
def test_a_job_loosens_nothing(key: str, text: str, operator: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        merged_properties([(key, text)], operator, TIGHTENING)
    assert f"config.properties.{key} is {text!r}" in refused.value.sentence
    assert dict((*USUAL.items(), *operator))[key] in refused.value.sentence


@pytest.mark.parametrize(
    "key, text",
    [("TasksMax", "8"), ("TasksMax", "1"), ("LimitCORE", "0"), ("LimitNOFILE", "524288"), ("MemoryHigh", "32M")],
)
def test_a_job_tightens_what_holds(key: str, text: str) -> None:
    assert dict(merged_properties([(key, text)], OPERATOR, TIGHTENING))[key] == text


def test_an_operator_raises_what_a_job_may_have() -> None:
    assert refusal(merged_properties, [("TasksMax", "100")], [("TasksMax", "infinity")], TIGHTENING) == ""


def test_what_the_operator_takes_away_stays_away() -> None:
    """A filter of system calls is added to the operator's, and a limit of one device takes none from another."""
    job = (("SystemCallFilter", "~vfork"), ("IOReadBandwidthMax", "/dev/sdb 1G"), ("TasksMax", "7"))
    assert merged_properties(job, OPERATOR, TIGHTENING) == (*OPERATOR[1:], *job)


def test_a_malformed_value_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="TasksMax=many: expected a whole number"):
        merged_properties([("TasksMax", "many")], (), TIGHTENING)
