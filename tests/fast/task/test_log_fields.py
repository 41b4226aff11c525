"""LogExtraFields=, each value one word of the unit file; and labels, which a job's author may choose."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solo5_systemd.base.errors import InvalidRequestError
from solo5_systemd.task.log_fields import MAX_LABELS, MAX_VALUE_BYTES, assignment, labels, log_fields


def test_a_value_is_one_word() -> None:
    assert assignment("A", r"my x SOLO5_TASK=other\x20") == rb"A=my\x20x\x20SOLO5_TASK=other\x5cx20"


@given(st.dictionaries(st.from_regex(r"[A-Z]{1,5}", fullmatch=True), st.text()))
def test_fields_are_read_as_they_were_given(fields: dict[str, str]) -> None:
    written = [assignment(name, value) for name, value in fields.items()]
    assert log_fields(written) == fields
    assert not any(b" " in each for each in written)


def test_labels_are_taken_as_they_are() -> None:
    pairs = (("TEAM", "web=1"), ("A9_", ""), ("PRIORITIES", "ä"), ("UNITS", "x"), ("B" * 64, "x" * MAX_VALUE_BYTES))
    assert labels(pairs) == pairs


@pytest.mark.parametrize(
    "name",
    [
        *"team _TEAM __CURSOR 1A A-B A.B Ä MESSAGE MESSAGE_ID PRIORITY SYSLOG_FACILITY CODE_FILE UNIT TID".split(),
        *"COREDUMP_UNIT INVOCATION_ID USER_UNIT ERRNO OBJECT_PID JOB_ID SOLO5_AGENT NOMAD_ALLOC_ID".split(),
        *("", "A" * 65, "A\n", "A=B", "A B"),
    ],
)
def test_name_that_is_reserved_or_no_journal_field_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="is not a free journal field: expected at most 64 capital letters"):
        labels([(name, "x")])


@pytest.mark.parametrize("value", ["a\nMESSAGE=b", "\x1b[31m", "\0", "\udcff", "\u202e", "x" * 257, "ä" * 129])
def test_value_that_is_long_or_not_printable_is_refused(value: str) -> None:
    with pytest.raises(InvalidRequestError, match="label A is .*: expected printable text of at most 256 bytes"):
        labels([("A", value)])


def test_all_labels_fit_into_an_extended_attribute() -> None:
    most = [(f"{'A' * 62}{number:02}", "𝄞" * (MAX_VALUE_BYTES // 4)) for number in range(MAX_LABELS)]
    assert len(json.dumps(dict(labels(most)))) < 1 << 15
    with pytest.raises(InvalidRequestError, match="the task has 33 labels: expected at most 32"):
        labels([*most, ("B", "")])
