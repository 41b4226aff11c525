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

STYLE = {"svg.hashsalt": "solo5", "svg.fonttype": "none", "font.size": 9, "font.family": "sans-serif"}


@dataclass(frozen=True, kw_only=True)
class Line:
    """One thing that was measured.

    Attributes:
        points: for each number of tasks beside, the median, and the spread below and above it.
    """

    label: str
    points: Sequence[tuple[int, float, float, float]]


def charts(report: Mapping[str, Any]) -> Iterator[tuple[str, str, str, list[Line]]]:
    """Yield name, title, unit and lines of each chart that a report has something of."""
    figures = report["figures"]
    plots = dict.fromkeys(each["plot"] for each in figures if each["plot"].startswith("memory: "))
    memory = [line for plot in plots for line in _figures(figures, plot, plot.removeprefix("memory: "))]
    for name, title, unit, lines in (
        ("start", "Start of a task, called by Nomad's code", "ms", [*_figures(figures, "start", OURS)]),
        ("pairs", "Starts and stops of tasks, 16 at a time", "pairs per second", [*_figures(figures, "pairs", OURS)]),
        ("memory", "Memory of our processes", "MB", memory),
    ):
        if lines:
            yield name, title, unit, lines


def _figures(figures: Sequence[Mapping[str, Any]], plot: str, label: str) -> Iterator[Line]:
    """Yield ours, and its floor where it has one."""
    ours = [each for each in figures if each["plot"] == plot]
    for key, spread, name in (("ours", "spread", label), ("floor", "floor_spread", FLOOR)):
        if points := [_point(each["tasks"], each[key], each[spread]) for each in ours if each[key] is not None]:
            yield Line(label=name, points=points)


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
            axes.errorbar(tasks, medians, yerr=[below, above], fmt="-o", ms=3, lw=1, capsize=3, label=line.label)
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
