"""Draws a report of the benchmark as SVG: `python3 -m tests.bench.plots REPORT DIRECTORY`, with matplotlib.

The same report gives the same bytes: no date, no random names, and text as text.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FLOOR = "floor"
OURS = "solo5"
"""The name of ours among the peers; without them, too."""

STYLE = {"svg.hashsalt": "solo5", "svg.fonttype": "none", "font.size": 9, "font.family": "sans-serif"}


@dataclass(frozen=True, kw_only=True)
class Point:
    """A median and its spread, beside so many tasks; both ends are the median where there was one value only."""

    tasks: int
    median: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Line:
    """One thing that was measured.

    Attributes:
        is_peer: measured in the comparison, not in the run with the floor.
    """

    label: str
    points: Sequence[Point]
    is_peer: bool = False


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One file."""

    name: str
    title: str
    unit: str
    lines: Sequence[Line]


def charts(report: Mapping[str, Any]) -> list[Chart]:
    """Return what a report has of each chart; a chart without lines is left out."""
    figures, rows = report["figures"], report.get("peers", {}).get("rows", [])
    called = [row for row in rows if row["caller"] == "Nomad"]
    typed = [row for row in rows if row["caller"] != "Nomad"]
    memory = [
        line
        for name in dict.fromkeys(each["plot"] for each in figures)
        if name.startswith("memory: ")
        for line in _figures(figures, name, name.removeprefix("memory: "))
    ]
    found = [
        Chart(
            name="start",
            title="Start of a task, called by Nomad's code",
            unit="ms",
            lines=[*_figures(figures, "start", OURS), *_peers(called, "start")],
        ),
        Chart(
            name="pairs",
            title="Starts and stops of tasks, 16 at a time",
            unit="pairs per second",
            lines=[*_figures(figures, "pairs", OURS), *_peers(called, "pairs")],
        ),
        Chart(name="memory", title="Memory of our processes", unit="MB", lines=memory),
        Chart(
            name="shell",
            title="Start of a task from a shell",
            unit="ms",
            lines=[*_peers(typed, "start")],
        ),
        Chart(
            name="peers-memory",
            title="Memory of all processes, with tenders",
            unit="MB",
            lines=[*_peers(rows, "memory")],
        ),
    ]
    return [chart for chart in found if chart.lines]


def _figures(figures: Sequence[Mapping[str, Any]], plot: str, label: str) -> Iterator[Line]:
    """Yield ours, and its floor where it has one."""
    ours = [each for each in figures if each["plot"] == plot]
    for key, spread, name in (("ours", "spread", label), ("floor", "floor_spread", FLOOR)):
        if points := [_point(each["tasks"], each[key], each[spread]) for each in ours if each[key] is not None]:
            yield Line(label=name, points=points)


def _peers(rows: Sequence[Mapping[str, Any]], measure: str) -> Iterator[Line]:
    for name in dict.fromkeys(row["peer"] for row in rows):
        mine = [row for row in rows if row["peer"] == name]
        points = [_point(row["tasks"], row[measure]["median"], row[measure]) for row in mine]
        label = f"{name} (in the comparison)" if name == OURS else name
        yield Line(label=label, points=points, is_peer=True)


def _point(tasks: int, median: float, spread: Mapping[str, float] | None) -> Point:
    ends = spread or {"low": median, "high": median}
    return Point(tasks=tasks, median=median, low=ends["low"], high=ends["high"])


def draw(chart: Chart, path: Path) -> None:
    """Write a chart as SVG."""
    import matplotlib as mpl  # here, since charts() is tested without it

    mpl.use("svg")
    from matplotlib import pyplot as plt

    with mpl.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
        for line in chart.lines:
            tasks = [point.tasks for point in line.points]
            medians = [point.median for point in line.points]
            below = [point.median - point.low for point in line.points]
            above = [point.high - point.median for point in line.points]
            style = "--" if line.is_peer else "-"
            axes.errorbar(tasks, medians, yerr=[below, above], fmt=f"{style}o", ms=3, lw=1, capsize=3, label=line.label)
        axes.set_ylim(bottom=0)
        axes.set(title=chart.title, xlabel="tasks that run beside", ylabel=chart.unit)
        axes.grid(alpha=0.3)
        figure.legend(loc="outside right upper", frameon=False)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
        plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("report", type=Path, help="JSON of the benchmark")
    parser.add_argument("directory", type=Path, help="where to write the files")
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    for chart in charts(json.loads(arguments.report.read_text())):
        draw(chart, arguments.directory / f"{chart.name}.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
