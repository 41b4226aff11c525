"""Time spans of systemd.time(7)."""

import pytest

from solo5_systemd.task.quantities import parse_time_span

S = 10**6


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        *[("2 h", 7200 * S), ("2hours", 7200 * S), ("48hr", 172800 * S), ("1y 12month", 63115200 * S)],
        *[("55s500ms", 55_500_000), ("300ms20s 5day", 432020_300_000), ("90", 90 * S), ("1.5s", 1_500_000)],
        *[("0", 0), ("1us", 1), ("1µs", 1), ("1 m", 60 * S), ("1M", 2629800 * S), ("  1min 30s ", 90 * S)],
    ],
)
def test_a_time_span_is_read_as_by_systemd(text: str, microseconds: int) -> None:
    assert parse_time_span(text) == microseconds


@pytest.mark.parametrize(
    "text", ["", " ", "s", "-1s", "1 fortnight", "1,5s", "infinity", "1s" * 60, "9" * 15 + "y", "1S"]
)
def test_a_malformed_time_span_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a time span such as"):
        parse_time_span(text)
