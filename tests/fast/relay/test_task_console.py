"""Names of stored descriptors, and the moments from which a console is read."""

import re
from pathlib import Path

import pytest

from solo5_systemd.dbus import fdstore
from solo5_systemd.relay import fifo_writer, task_console

UNIT = Path(__file__).parents[3] / "units/solo5-relay.service"
MAX_ARG_STRLEN = 128 << 10
"""execve(2): bytes of one environment variable, its name and the final zero among them."""


def test_the_names_of_all_stored_descriptors_fit_into_one_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    monkeypatch.setattr(fdstore, "notify", lambda text, *_: names.extend(re.findall("FDSTORE=1\nFDNAME=(.*)", text)))
    most = int(re.findall("(?m)^FileDescriptorStoreMax=([0-9]+)$", UNIT.read_text())[0])
    monkeypatch.setenv("NOTIFY_SOCKET", "/any")
    for number in range(1, most + 1):
        fdstore.store(fifo_writer.stored_name(number), [0] * 4)
    assert len(names) == len(set(names)) == most
    assert len(f"LISTEN_FDNAMES={':'.join(names)}\0") <= MAX_ARG_STRLEN


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
