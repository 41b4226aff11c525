"""docs/timeouts.md has every constant that bounds time, with its value, and the order that they keep."""

import ast
import operator
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import pytest
from tests.support.doc_tables import DOCS

ROOT = DOCS.parent
SOURCES = ROOT / "src" / "solo5_systemd"
PAGE = (DOCS / "timeouts.md").read_text()

UNITS = {"S": 1.0, "MS": 1e-3, "US": 1e-6}
_BOUND = re.compile(r"_?[A-Z][A-Z0-9_]*_(S|MS|US)")
_SUM: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
_SPANS = {"": 1.0, "s": 1.0, "sec": 1.0, "ms": 1e-3, "min": 60.0, "h": 3600.0}


@cache
def module(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def assigned(path: Path) -> Mapping[str, ast.expr]:
    """Return the values of a module's names that are assigned at its top."""
    plain = (node for node in module(path).body if isinstance(node, ast.Assign))
    return {target.id: node.value for node in plain for target in node.targets if isinstance(target, ast.Name)}


def imported(path: Path, name: str) -> Path | None:
    """Return the module of the project that a module has a name from."""
    for node in ast.walk(module(path)):
        if isinstance(node, ast.ImportFrom) and any((each.asname or each.name) == name for each in node.names):
            return SOURCES.parent / f"{(node.module or '').replace('.', '/')}.py"
    return None


def number(path: Path, value: ast.expr) -> float | None:
    """Return the value of an expression of numbers and of names that stand for such; None: it is none."""
    if isinstance(value, ast.Constant) and isinstance(value.value, int | float):
        return float(value.value)
    if isinstance(value, ast.Name):
        return constant(path, value.id)
    if isinstance(value, ast.BinOp) and type(value.op) in _SUM:
        left, right = number(path, value.left), number(path, value.right)
        return None if left is None or right is None else _SUM[type(value.op)](left, right)
    return None


def constant(path: Path, name: str) -> float | None:
    value, origin = assigned(path).get(name), imported(path, name)
    if value is not None:
        return number(path, value)
    return constant(origin, name) if origin is not None and origin.exists() else None


@cache
def bounds() -> Mapping[str, float]:
    """Return every constant whose name ends with a unit of time, as `module.py:NAME`, in seconds."""
    found = {}
    for path in sorted(SOURCES.rglob("*.py")):
        for name, value in assigned(path).items():
            unit, count = _BOUND.fullmatch(name), number(path, value)
            if unit and count is not None:
                found[f"{path.relative_to(SOURCES).as_posix()}:{name}"] = count * UNITS[unit[1]]
    return found


def setting(reference: str) -> float:
    """Return the seconds of `units/NAME:KEY=`."""
    path, _, key = reference.partition(":")
    line = re.search(rf"^{re.escape(key)}(\d+)([a-z]*)$", (ROOT / path).read_text(), re.MULTILINE)
    assert line, f"no {reference} in seconds"
    return int(line[1]) * _SPANS[line[2]]


def unit_property(reference: str) -> float:
    """Return the seconds of a task's unit property, as `unit/translate.py:KEYUSec`."""
    path, _, key = reference.partition(":")
    written = re.search(rf'unit_property\("{key}", (\d+) \* SECOND\)', (SOURCES / path).read_text())
    assert written, f"no {reference} in whole seconds"
    return float(written[1])


def seconds(reference: str) -> float:
    if reference.startswith("units/"):
        return setting(reference)
    if reference.endswith("USec"):
        return unit_property(reference)
    if re.fullmatch(r"[\d.]+ (?:ms|s|min)", reference):
        count, _, unit = reference.partition(" ")
        return float(count) * _SPANS[unit]
    return bounds()[reference]


LISTED = re.findall(r"^\| `([\w/.]+:\w+)` \| ([\d.]+ (?:ms|s|min|h)) \| \S", PAGE, re.MULTILINE)
ORDER = re.findall(r"^\| ([^|]+) \| (<|≤|=) \| ([^|]+) \| \S", PAGE, re.MULTILINE)


def test_every_constant_is_listed_with_its_value() -> None:
    listed = {name: float(text.split()[0]) * _SPANS[text.split()[1]] for name, text in LISTED}
    assert sorted(bounds().keys() - listed.keys()) == []
    assert [name for name, value in listed.items() if value != pytest.approx(bounds().get(name, 0.0))] == []
    assert len(LISTED) == len(listed)


@pytest.mark.parametrize(("shorter", "relation", "longer"), ORDER, ids=lambda part: part.strip("`"))
def test_the_order_is_kept(shorter: str, relation: str, longer: str) -> None:
    one, other = (seconds(part.partition(" (")[0].strip("`")) for part in (shorter, longer))
    assert {"<": one < other, "≤": one <= other, "=": one == other}[relation], f"{one:g} s, {other:g} s"


def test_there_is_an_order() -> None:
    assert len(ORDER) >= 10
    assert PAGE.partition("\n## Order\n")[2].partition("\n## ")[0].count("\n| ") == len(ORDER) + 1


def test_a_value_is_found_through_a_sum_and_an_import(tmp_path: Path) -> None:
    one, other = tmp_path / "one.py", tmp_path / "other.py"
    one.write_text("A_TIMEOUT_S = 2 * 5.0\nB_TIMEOUT_S = A_TIMEOUT_S + 1\nC_TIMEOUT_S = max(1, 2)\n")
    other.write_text("from solo5_systemd.task.workload import STOP_TIMEOUT_S\n\nD_TIMEOUT_S = STOP_TIMEOUT_S - 1\n")
    assert constant(one, "B_TIMEOUT_S") == 11
    assert constant(one, "C_TIMEOUT_S") is None
    assert constant(other, "D_TIMEOUT_S") == seconds("task/workload.py:STOP_TIMEOUT_S") - 1
