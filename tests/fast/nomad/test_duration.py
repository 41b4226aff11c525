import pytest

from solo5_systemd.nomad.option_values import seconds


@pytest.mark.parametrize(
    "text, value",
    [("30s", 30), ("1h30m", 5400), ("250ms", 0.25), ("1.5h", 5400), ("7us", 7e-6), ("7µs", 7e-6),
     ("1m1s1m", 121), ("30", 30), ("1d", 86400), ("1h 30m", 5400)],
)  # fmt: skip
def test_durations_are_read_as_time_spans_of_systemd(text: str, value: float) -> None:
    assert seconds(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "s", "-1s", "+1s", "1..5s", ".s", "1e3s", "١s", "30S"])
def test_anything_else_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration: expected a time span such as 30s"):
        seconds(text)
