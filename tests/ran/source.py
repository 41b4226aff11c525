"""What the source of the tests says of them."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class Assertion:
    """An `assert` or a `with pytest.raises` of a test, and the lines of which one is its own when it holds."""

    test: str
    first: int
    last: int


def functions(text: str) -> list[Function]:
    """Return the functions of a module that pytest collects."""
    return [
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")
    ]


def assertions(text: str) -> list[Assertion]:
    """Return the assertions in the tests of a module."""
    return [
        Assertion(test=test.name, first=lines[0], last=lines[1])
        for test in functions(text)
        for node in ast.walk(test)
        if (lines := _lines(node))
    ]


def _lines(node: ast.AST) -> tuple[int, int] | None:
    """Return the first and the last line of an assertion, without what it is the head of; None for other nodes."""
    if isinstance(node, ast.Assert):
        return node.lineno, node.lineno
    if isinstance(node, ast.With | ast.AsyncWith) and any(_raises(item.context_expr) for item in node.items):
        return node.lineno, max(item.context_expr.end_lineno or 0 for item in node.items)
    return None


def _raises(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.raises"


def own(test: Function) -> Iterator[ast.AST]:
    """Yield what is in a test, without what is in functions of its own."""
    waiting: list[ast.AST] = list(test.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            waiting.extend(ast.iter_child_nodes(node))
