"""Figures beside their floor, as a table and as JSON."""

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Many values: their median, and their 5th and 95th percentile; of fewer than 20 the least and the greatest."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    ascending = sorted(values)
    low, high = int(len(ascending) * 0.05), int(len(ascending) * 0.95)
    return Spread(median=statistics.median(ascending), low=ascending[low], high=ascending[high])


@dataclass(frozen=True, kw_only=True)
class Figure:
    """What was measured of ours, and of the least that the machine takes for the same.

    Attributes:
        ours: the median, or the only value.
        floor: its median, None where there is none.
        spread: of ours; None for an only value.
        plot: what is plotted against `tasks`; empty for what is not.
        tasks: how many run beside.
    """

    name: str
    unit: str
    ours: float
    floor: float | None = None
    spread: Spread | None = None
    floor_spread: Spread | None = None
    plot: str = ""
    tasks: int = 0

    @property
    def ratio(self) -> float | None:
        return self.ours / self.floor if self.floor else None

    @property
    def p95(self) -> float | None:
        return self.spread.high if self.spread else None


def times(
    name: str,
    ours: Sequence[float],
    floor: Sequence[float] = (),
    *,
    unit: str = "ms",
    plot: str = "",
    tasks: int = 0,
    middle: Callable[[Sequence[float]], float] = statistics.median,
) -> Figure:
    """The figure of many values: their median, or another one of them."""
    return Figure(
        name=name,
        unit=unit,
        ours=middle(ours),
        floor=middle(floor) if floor else None,
        spread=spread(ours),
        floor_spread=spread(floor) if floor else None,
        plot=plot,
        tasks=tasks,
    )


class Report:
    """Prints each figure as it comes, and keeps them all: in a file as well, which a run that is interrupted leaves."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._machine = machine() if path else {}
        self._figures: list[Figure] = []
        print(_row("", "", "ours", "p95", "floor", "ratio"), flush=True)

    def add(self, figure: Figure) -> None:
        self._figures.append(figure)
        ours, p95, floor = map(_number, (figure.ours, figure.p95, figure.floor))
        ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
        print(_row(figure.name, figure.unit, ours, p95, floor, ratio), flush=True)
        if self.path:
            rows = [asdict(each) | {"p95": each.p95, "ratio": each.ratio} for each in self._figures]
            document = {"machine": self._machine, "figures": rows}
            self.path.write_text(json.dumps(document, indent=2) + "\n")


def machine() -> dict[str, str | int]:
    """What the figures depend on."""
    systemd = subprocess.run(["systemctl", "--version"], check=True, capture_output=True, text=True).stdout
    return {
        "cores": os.cpu_count() or 0,
        "kernel": platform.release(),
        "systemd": systemd.split("(")[1].split(")")[0],
        "python": platform.python_version(),
    }


def _row(name: str, unit: str, ours: str, p95: str, floor: str, ratio: str) -> str:
    return f"{name:52} {unit:>7} {ours:>9} {p95:>9} {floor:>9} {ratio:>6}"


def _number(number: float | None) -> str:
    return "" if number is None else f"{number:.2f}" if abs(number) < 10 else f"{number:.0f}"
