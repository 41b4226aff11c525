"""`stats`: samples as rows and as JSON."""

import json
from collections.abc import Iterator, Mapping

import pytest
from tests.fast.cli.conftest import Solo5ctl
from tests.support.fakes.engine import FakeRuntime
from tests.support.fakes.tasks import ended, running

from solo5_systemd.base.names import DeviceName, TaskName
from solo5_systemd.cgroup.usage import Cpu, Io, Memory, Usage
from solo5_systemd.cli.verbs import stats
from solo5_systemd.cli.verbs.stats import HEADER, WIDE_HEADER, row, usage_json
from solo5_systemd.engine.task import Sample
from solo5_systemd.network.tap_counters import Counters, Traffic

STALL = {"avg10": 2.25, "avg60": 1.0, "avg300": 0.5, "total": 9}
USAGE = Usage(
    time=10.0,
    memory=Memory(
        current=9 << 20, peak=12 << 20, limit=64 << 20, rss=8 << 20, cache=0, kernel=1 << 20, swap=0, oom_kills=0
    ),
    cpu=Cpu(total=2_500_000, user=2_000_000, system=500_000, periods=0, throttled_periods=0, throttled=0),
    disks={"vda": Io(read_bytes=4096, written_bytes=0, reads=1, writes=0)},
    processes=3,
    pressure={"cpu": {"some": STALL, "full": STALL}, "memory": {"some": STALL | {"avg10": 0.0}}},
)
NIC = Traffic(
    received=Counters(bytes=1024, packets=2, errors=0, drops=0), sent=Counters(bytes=3072, packets=3, errors=0, drops=1)
)
FULL = Sample(usage=USAGE, nics={DeviceName("service"): NIC, DeviceName("management"): NIC})
BEFORE = FULL._replace(usage=USAGE._replace(time=9.0, cpu=Cpu(total=2_000_000)))
UNKNOWN = Sample(usage=Usage(time=1.0), nics={})
WEB, IDLE = TaskName("web"), TaskName("idle")
ROW = ("web", "50.0%", "8M / 64M", "2K / 6K", "4K / 0", "3")


def rounds(*names: TaskName) -> Iterator[Mapping[TaskName, Sample]]:
    return iter([dict.fromkeys(names, sample) for sample in (BEFORE, FULL, FULL)])


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeRuntime:
    monkeypatch.setattr(stats, "FIRST_INTERVAL_S", 0)
    monkeypatch.setattr(stats, "interval", lambda _: 0.0)
    engine = FakeRuntime(running("web"), ended("old"))
    engine.rounds = rounds(WEB)
    return engine


def test_a_row_has_all_known_values() -> None:
    assert row("web", BEFORE, FULL) == ROW
    assert row("web", BEFORE, FULL, wide=True) == (*ROW, "2.50s", "0.00s", "12M", "0", "2 / 0 / -")


def test_unknown_values_are_empty_and_never_zero() -> None:
    assert row("web", None, UNKNOWN, wide=True) == ("web", *[""] * (len(HEADER) + len(WIDE_HEADER) - 1))
    assert usage_json("web", None, UNKNOWN) == {"name": "web"}
    limited = UNKNOWN._replace(usage=Usage(time=1.0, memory=Memory(limit=64 << 20)))
    assert row("web", None, limited)[2] == "- / 64M"


def test_json_has_bytes_and_microseconds() -> None:
    traffic = {
        "received": {"bytes": 1024, "packets": 2, "errors": 0, "drops": 0},
        "sent": {"bytes": 3072, "packets": 3, "errors": 0, "drops": 1},
    }
    disk = {"read_bytes": 4096, "written_bytes": 0, "reads": 1, "writes": 0}
    periods = {"periods": 0, "throttled_periods": 0, "throttled": 0}
    parts = {"rss": 8 << 20, "cache": 0, "kernel": 1 << 20, "swap": 0, "oom_kills": 0}
    assert usage_json("web", BEFORE, FULL) == {
        "name": "web",
        "cpu_percent": 50.0,
        "cpu": {"total": 2_500_000, "user": 2_000_000, "system": 500_000, **periods},
        "memory": {"current": 9 << 20, "peak": 12 << 20, "limit": 64 << 20, **parts},
        "io": disk,
        "disks": [{"device": "vda"} | disk],
        "nics": [{"nic": "service"} | traffic, {"nic": "management"} | traffic],
        "processes": 3,
        "pressure": {"cpu": {"some": STALL, "full": STALL}, "memory": {"some": STALL | {"avg10": 0.0}}},
    }


def test_a_table_of_nomads_names_fits_a_terminal(solo5ctl: Solo5ctl) -> None:
    solo5ctl.engine.rounds = rounds(TaskName("web-3fa85f64-9c1185a5c5e9"))
    wide = solo5ctl("stats", "--no-stream", "--wide").out
    solo5ctl.engine.rounds = rounds(TaskName("web-3fa85f64-9c1185a5c5e9"))
    assert max(map(len, solo5ctl("stats", "--no-stream").out.splitlines())) <= 80
    assert max(map(len, wide.splitlines())) <= 120


def test_a_stream_of_named_tasks_ends_with_them_and_clears_a_terminal(solo5ctl: Solo5ctl) -> None:
    documents = solo5ctl("stats", "-i", "1", "web").out
    assert documents.count("NAME") == 3
    assert documents.endswith("PIDS\n")
    solo5ctl.engine.rounds = rounds(WEB)
    assert solo5ctl("stats", "-i", "1", "web", terminal=True).out.startswith("\x1b[H\x1b[JNAME")


def test_no_stream_is_one_table_or_list(solo5ctl: Solo5ctl) -> None:
    (web,) = json.loads(solo5ctl("stats", "--no-stream", "--json", "web").out)
    assert (web["name"], web["cpu_percent"]) == ("web", 50.0)
    solo5ctl.engine.rounds = rounds(WEB)
    header, web = solo5ctl("stats", "--no-stream").out.splitlines()
    assert header.split("  ")[0] == "NAME"
    assert tuple(cell.strip() for cell in web.split("  ") if cell) == ROW


def test_no_tasks_is_a_header_or_an_empty_list(solo5ctl: Solo5ctl) -> None:
    solo5ctl.engine.rounds = iter(())
    assert solo5ctl("stats", "--no-stream").out.split("  ")[0] == "NAME"
    assert json.loads(solo5ctl("stats", "--no-stream", "--json").out) == []


def test_an_ended_task_has_no_row_and_an_unknown_one_is_an_error(solo5ctl: Solo5ctl) -> None:
    assert solo5ctl("stats", "old").out.splitlines() == ["  ".join(HEADER)]
    refused = solo5ctl("stats", "nobody")
    assert (refused.status, "nobody" in refused.err) == (125, True)


@pytest.mark.parametrize("order, first", [("name", "a"), ("cpu", "z"), ("memory", "z"), ("net", "z"), ("block", "z")])
def test_rows_are_sorted_by_name_or_in_descending_order(solo5ctl: Solo5ctl, order: str, first: str) -> None:
    a, z = TaskName("a"), TaskName("z")
    solo5ctl.engine.rounds = iter([{a: UNKNOWN, z: BEFORE}, {a: UNKNOWN, z: FULL}])
    assert solo5ctl("stats", "--no-stream", "--sort", order).out.splitlines()[1].split()[0] == first
