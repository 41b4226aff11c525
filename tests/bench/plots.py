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
class Line:
    """One thing that was measured.

    Attributes:
        points: for each number of tasks beside, the median, and the spread below and above it.
        is_peer: measured in the comparison, not in the run with the floor.
    """

    label: str
    points: Sequence[tuple[int, float, float, float]]
    is_peer: bool = False


def charts(report: Mapping[str, Any]) -> Iterator[tuple[str, str, str, list[Line]]]:
    """Yield name, title, unit and lines of each chart that a report has something of."""
    figures, rows = report["figures"], report.get("peers", {}).get("rows", [])
    called = [row for row in rows if row["caller"] == "Nomad"]
    typed = [row for row in rows if row["caller"] != "Nomad"]
    plots = dict.fromkeys(each["plot"] for each in figures if each["plot"].startswith("memory: "))
    memory = [line for plot in plots for line in _figures(figures, plot, plot.removeprefix("memory: "))]
    for name, title, unit, lines in (
        (
            "start", "Start of a task, called by Nomad's code", "ms",
            [*_figures(figures, "start", OURS), *_peers(called, "start")],
        ),
        (
            "pairs", "Starts and stops of tasks, 16 at a time", "pairs per second",
            [*_figures(figures, "pairs", OURS), *_peers(called, "pairs")],
        ),
        ("memory", "Memory of our processes", "MB", memory),
        ("shell", "Start of a task from a shell", "ms", [*_peers(typed, "start")]),
        ("peers-memory", "Memory of all processes, with tenders", "MB", [*_peers(rows, "memory")]),
    ):  # fmt: skip
        if lines:
            yield name, title, unit, lines


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
        yield Line(label=f"{name} (in the comparison)" if name == OURS else name, points=points, is_peer=True)


def _point(tasks: int, median: float, spread: Mapping[str, float] | None) -> tuple[int, float, float, float]:
    return (tasks, median, median - spread["low"], spread["high"] - median) if spread else (tasks, median, 0, 0)


def draw(title: str, unit: str, lines: Sequence[Line], path: Path) -> None:
    """Write a chart as SVG."""
    import matplotlib as mpl  # here, since only the machine of the plots has it

    mpl.use("svg")
    from matplotlib import pyplot as plt

    with mpl.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
        for line in lines:
            tasks, medians, below, above = zip(*line.points, strict=True)
            style = "--" if line.is_peer else "-"
            axes.errorbar(tasks, medians, yerr=[below, above], fmt=f"{style}o", ms=3, lw=1, capsize=3, label=line.label)
        axes.set_ylim(bottom=0)
        axes.set(title=title, xlabel="tasks that run beside", ylabel=unit)
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
    for name, title, unit, lines in charts(json.loads(arguments.report.read_text())):
        draw(title, unit, lines, arguments.directory / f"{name}.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
