"""Figures beside their floor, as a table and as JSON."""

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Figure:
    """What was measured of ours, and of the least that the machine takes for the same.

    Attributes:
        name: what.
        unit: of all the numbers.
        ours: the median, or the only value.
        p95: of ours; None for an only value.
        floor: its median, None where there is none.
    """

    name: str
    unit: str
    ours: float
    p95: float | None = None
    floor: float | None = None

    @property
    def ratio(self) -> float | None:
        return self.ours / self.floor if self.floor else None


def times(name: str, ours: Sequence[float], floor: Sequence[float] = ()) -> Figure:
    """The figure of many times, in milliseconds."""
    return Figure(
        name=name,
        unit="ms",
        ours=statistics.median(ours),
        p95=sorted(ours)[int(len(ours) * 0.95)],
        floor=statistics.median(floor) if floor else None,
    )


class Report:
    """Prints each figure as it comes, and keeps them all."""

    def __init__(self) -> None:
        self._figures: list[Figure] = []
        print(_row("", "", "ours", "p95", "floor", "ratio"), flush=True)

    def add(self, figure: Figure) -> None:
        self._figures.append(figure)
        ours, p95, floor = map(_number, (figure.ours, figure.p95, figure.floor))
        ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
        print(_row(figure.name, figure.unit, ours, p95, floor, ratio), flush=True)

    def write(self, path: Path) -> None:
        rows = [asdict(each) | {"ratio": each.ratio} for each in self._figures]
        path.write_text(json.dumps({"machine": machine(), "figures": rows}, indent=2) + "\n")


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
