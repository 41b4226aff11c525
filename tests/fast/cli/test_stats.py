"""`stats`: samples as rows and as JSON."""

import json
from dataclasses import replace

import pytest
from tests.fakes.engine import FakeRuntime
from tests.fakes.tasks import ended, running
from tests.fast.cli.conftest import Solo5ctl

from solo5_systemd.cgroup.usage import Cpu, Io, Memory, Usage
from solo5_systemd.cli import stats
from solo5_systemd.cli.usage import row, usage_json

FULL = Usage(
    time=10.0,
    memory=Memory(
        current=9 << 20, peak=12 << 20, limit=64 << 20, rss=8 << 20, cache=0, kernel=1 << 20, swap=0, oom_kills=0
    ),
    cpu=Cpu(total=2_500_000, user=2_000_000, system=500_000, throttled_periods=0, throttled=0),
    io=Io(read_bytes=4096, written_bytes=0, reads=1, writes=0),
    processes=3,
)
BEFORE = replace(FULL, time=9.0, cpu=Cpu(total=2_000_000))


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeRuntime:
    monkeypatch.setattr(stats, "INTERVAL", 0)
    engine = FakeRuntime(running("web"), ended("old"))
    engine.samples = {"web": iter([BEFORE, FULL, FULL]), "old": iter([])}
    return engine


def test_a_row_has_what_is_known() -> None:
    assert row("web", BEFORE, FULL) == ("web", "50.0%", "2.50s", "8M", "64M", "12M", "0", "4K", "0")


def test_the_unknown_is_shown_as_such_and_never_as_zero() -> None:
    assert row("web", None, Usage(time=1.0)) == ("web", *[""] * 8)
    assert usage_json("web", None, Usage(time=1.0)) == {"name": "web"}


def test_json_has_bytes_and_microseconds() -> None:
    assert usage_json("web", BEFORE, FULL) == {
        "name": "web",
        "cpu_percent": 50.0,
        "cpu": {"total": 2_500_000, "user": 2_000_000, "system": 500_000, "throttled_periods": 0, "throttled": 0},
        "memory": {
            "current": 9 << 20,
            "peak": 12 << 20,
            "limit": 64 << 20,
            "rss": 8 << 20,
            "cache": 0,
            "kernel": 1 << 20,
            "swap": 0,
            "oom_kills": 0,
        },
        "io": {"read_bytes": 4096, "written_bytes": 0, "reads": 1, "writes": 0},
        "processes": 3,
    }


def test_once_is_one_table_of_what_runs(solo5ctl: Solo5ctl) -> None:
    header, web = solo5ctl("stats", "--no-stream").out.splitlines()
    assert header.split("  ")[0] == "NAME"
    assert web.split() == ["web", "50.0%", "2.50s", "8M", "64M", "12M", "0", "4K", "0"]


def test_a_stream_ends_with_its_tasks(solo5ctl: Solo5ctl) -> None:
    documents = solo5ctl("stats", "web").out
    assert documents.count("NAME") == 3
    assert documents.endswith("WRITTEN\n")


def test_a_terminal_is_drawn_again(solo5ctl: Solo5ctl) -> None:
    assert solo5ctl("stats", terminal=True).out.startswith("\x1b[H\x1b[JNAME")


def test_json(solo5ctl: Solo5ctl) -> None:
    (web,) = json.loads(solo5ctl("stats", "--no-stream", "--json", "web").out)
    assert (web["name"], web["cpu_percent"]) == ("web", 50.0)


def test_nothing_to_see_is_a_header_or_an_empty_list(solo5ctl: Solo5ctl) -> None:
    solo5ctl.engine.known.clear()
    assert solo5ctl("stats", "--no-stream").out.split("  ")[0] == "NAME"
    assert json.loads(solo5ctl("stats", "--no-stream", "--json").out) == []
