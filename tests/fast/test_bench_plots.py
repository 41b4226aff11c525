"""The plots of the benchmark: which lines each chart has. matplotlib is not needed."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tests.bench.figures import Figure, times
from tests.bench.plots import OURS, Point, charts


def report(**more: object) -> Mapping[str, Any]:
    figure = times("StartTask beside 100", [1.0, 2.0, 3.0], [1.0], plot="start", tasks=100)
    memory = Figure(name="memory of plugin, 0 tasks", unit="MB", ours=31, plot="memory: plugin")
    unplotted = Figure(name="lines through journal and relay", unit="/s", ours=1)
    return {"figures": [asdict(each) for each in (figure, memory, unplotted)], **more}


def test_a_chart_has_ours_and_the_floor_with_their_spread() -> None:
    start, _ = charts(report())
    assert start.name == "start"
    ours, floor = start.lines
    assert ours.points == [Point(tasks=100, median=2, low=1, high=3)]
    assert floor.points == [Point(tasks=100, median=1, low=1, high=1)]


def test_peers_are_in_the_charts_of_their_caller() -> None:
    def row(name: str, caller: str) -> dict[str, object]:
        ends = {"median": 4.0, "low": 3.0, "high": 5.0}
        return {"peer": name, "caller": caller, "tasks": 1, "start": ends, "pairs": ends, "memory": ends}

    rows = [row("raw_exec", "Nomad"), row("by hand", "shell")]
    found = {chart.name: [line.label for line in chart.lines] for chart in charts(report(peers={"rows": rows}))}
    assert found == {
        "start": [OURS, "floor", "raw_exec"],
        "pairs": ["raw_exec"],
        "memory": ["plugin"],
        "shell": ["by hand"],
        "peers-memory": ["raw_exec", "by hand"],
    }


def test_a_figure_with_one_value_has_no_bar() -> None:
    _, memory = charts(report())
    assert [line.label for line in memory.lines] == ["plugin"]
    assert memory.lines[0].points == [Point(tasks=0, median=31, low=31, high=31)]
