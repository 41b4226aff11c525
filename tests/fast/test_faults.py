"""docs/faults.md names fifty faults and the tests that keep them out; all of these are there."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
TABLE = (TESTS.parent / "docs" / "faults.md").read_text()
ROWS = {int(row[1]): row[2] for row in re.finditer(r"^\| (\d+) \|(?:[^|]*\|){2}([^|]*)\|$", TABLE, re.MULTILINE)}


@cache
def names(file: Path) -> frozenset[str]:
    """The tests of a file."""
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    return frozenset(node.name for node in ast.parse(file.read_text()).body if isinstance(node, functions))


def test_every_fault_has_its_row() -> None:
    assert sorted(ROWS) == list(range(1, 51))
    assert len(re.findall(r"^\| \d+ \|", TABLE, re.MULTILINE)) == 50


@pytest.mark.parametrize("fault", sorted(ROWS))
def test_every_test_that_is_named_is_there(fault: int) -> None:
    named = re.findall(r"`([^`]+)::(test_\w+)`", ROWS[fault])
    assert len(named) == ROWS[fault].count("`") / 2 > 0
    assert [f"{path}::{name}" for path, name in named if name not in names(TESTS / path)] == []
