import pytest

from solo5_systemd.relay import task_console


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_console, "clock_times", lambda: (5_000, 70))


@pytest.mark.parametrize(("realtime", "since_boot"), [(4_990, 60), (5_000, 70), (4_900, -30), (6_000, 70)])
def test_a_monotonic_time_is_never_in_the_future(realtime: int, since_boot: int) -> None:
    assert task_console.to_monotonic(realtime) == since_boot


@pytest.mark.parametrize(("clock", "earliest"), [(5_010, 4_990), (1_000, 980), (9_000, 4_990)])
def test_the_start_of_a_search_is_early_enough_after_the_clock_was_set(
    monkeypatch: pytest.MonkeyPatch, clock: int, earliest: int
) -> None:
    since_boot = task_console.to_monotonic(4_990)
    monkeypatch.setattr(task_console, "clock_times", lambda: (clock, 80))
    assert task_console.earliest_realtime(4_990, since_boot) == earliest
