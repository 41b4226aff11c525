"""Tables of the documentation: their cells, and the tests that they name, which must be there."""

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
DOCS = TESTS.parent / "docs"


@cache
def names(file: Path) -> frozenset[str]:
    """The functions of a file."""
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    return frozenset(node.name for node in ast.parse(file.read_text()).body if isinstance(node, functions))


def missing(cell: str) -> list[str]:
    """What a cell names that is no test; every word between backquotes must be one, and one there must be."""
    quoted = re.findall(r"`([^`]+)`", cell)
    named = [match.groups() for each in quoted if (match := re.fullmatch(r"([^`]+)::(test_\w+)(?:\[\w+\])?", each))]
    gone = [f"{path}::{name}" for path, name in named if name not in names(TESTS / path)]
    return gone if quoted and len(named) == len(quoted) else [f"no test in {cell!r}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """A row of the table in docs/security-tests.md: `attacker → asset`, and the tests that perform it."""

    name: str
    row: str
    tests: tuple[str, ...]

    def with_tests(self, tests: Iterable[str]) -> "Attack":
        """Return the same attack with other tests."""
        return replace(self, tests=tuple(tests))


def attacks() -> list[Attack]:
    """Return the attacks of docs/security-tests.md, in its order."""
    section = (DOCS / "security-tests.md").read_text().partition("## What stops what")[2].partition("\n## ")[0]
    rows = re.findall(r"^\|.*\|$", section, re.MULTILINE)[2:]
    cells = ([cell.strip() for cell in row.strip("|").split("|")] for row in rows)
    return [Attack(name=row[0], row=" | ".join(row), tests=tuple(re.findall(r"`([^`]+)`", row[-1]))) for row in cells]


def table(text: str, heading: str) -> dict[str, dict[str, str]]:
    """The first table below a heading: its cells by row, which is named by its first cell, and by column."""
    [section] = re.findall(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    lines = re.findall(r"^\|(.*)\|$", section[section.index("|") :].partition("\n\n")[0], re.MULTILINE)
    head, _, *rows = ([cell.strip() for cell in line.split("|")] for line in lines)
    return {name: dict(zip(head[1:], cells, strict=True)) for name, *cells in rows}
