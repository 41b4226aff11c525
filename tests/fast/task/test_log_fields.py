"""LogExtraFields=, each value one word of the unit file."""

from hypothesis import given
from hypothesis import strategies as st

from solo5_systemd.task.log_fields import assignment, log_fields


def test_a_value_is_one_word() -> None:
    assert assignment("A", r"my x SOLO5_TASK=other\x20") == rb"A=my\x20x\x20SOLO5_TASK=other\x5cx20"


@given(st.dictionaries(st.from_regex(r"[A-Z]{1,5}", fullmatch=True), st.text()))
def test_fields_are_read_as_they_were_given(fields: dict[str, str]) -> None:
    written = [assignment(name, value) for name, value in fields.items()]
    assert log_fields(written) == fields
    assert not any(b" " in each for each in written)
