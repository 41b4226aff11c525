import pytest
from hypothesis import given
from hypothesis import strategies as st

from solo5_systemd.nomad.config.msgpack_values import seconds


@pytest.mark.parametrize(
    "text, value",
    [("30s", 30), ("1h30m", 5400), ("250ms", 0.25), ("1.5h", 5400), (".5s", 0.5), ("5.s", 5), ("7us", 7e-6),
     ("7µs", 7e-6), ("9ns", 9e-9), ("1m1s1m", 121)],
)  # fmt: skip
def test_durations_are_read_as_go_reads_them(text: str, value: float) -> None:
    assert seconds(text) == pytest.approx(value)


@pytest.mark.parametrize(
    "text", ["", "30", "s", "30 s", "-1s", "+1s", "1d", "1h 30m", "1..5s", ".s", "1e3s", "١s", "30S"]
)
def test_anything_else_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration: expected a number and a unit, such as 30s, 5m or 24h"):
        seconds(text)


@given(st.integers(0, 999), st.integers(0, 59), st.integers(0, 59))
def test_the_parts_of_a_duration_add_up(hours: int, minutes: int, rest: int) -> None:
    assert seconds(f"{hours}h{minutes}m{rest}s") == pytest.approx(hours * 3600 + minutes * 60 + rest)
