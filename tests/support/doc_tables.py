"""Tables of the documentation whose rows name tests: those must be there."""

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
DOCS = TESTS.parent / "docs"


@cache
def _names(file: Path) -> frozenset[str]:
    """The tests of a file."""
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    return frozenset(node.name for node in ast.parse(file.read_text()).body if isinstance(node, functions))


def missing(cell: str) -> list[str]:
    """What a cell names that is no test; every word between backquotes must be one, and one there must be."""
    quoted = re.findall(r"`([^`]+)`", cell)
    named = [match.groups() for each in quoted if (match := re.fullmatch(r"([^`]+)::(test_\w+)(?:\[\w+\])?", each))]
    gone = [f"{path}::{name}" for path, name in named if name not in _names(TESTS / path)]
    return gone if quoted and len(named) == len(quoted) else [f"no test in {cell!r}"]
